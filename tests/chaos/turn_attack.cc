#include "tests/chaos/turn_attack.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "lgpu/status.h"
#include "tests/support/daemon_process.h"
#include "tests/support/lease_program.h"

namespace lgpu::testing {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kAttackers = 8;
constexpr Bytes kWanted(std::uint64_t{900} << 20);  // of 1 GiB
constexpr std::chrono::hours kPatience{1};
constexpr std::chrono::milliseconds kStep{2};
constexpr std::chrono::minutes kLongest{3};  // if turns do not come

struct Played {
  absl::Status status;
  std::atomic<int> turns = 0;
  Clock::duration longest_wait{};
};

int SumOf(const std::vector<Played>& players) {
  int sum = 0;
  for (const Played& played : players) sum += played.turns;
  return sum;
}

void Wait(Played& played, Clock::time_point since) {
  played.longest_wait = std::max(played.longest_wait, Clock::now() - since);
}

/// Works whenever it has its memory.
absl::Status Play(const std::string& dir, const std::atomic<bool>& over, Played& played) {
  MovingProgram program;
  LGPU_RETURN_IF_ERROR(program.Start(dir, 0, wire::Preemptible::kAlways));
  Clock::time_point asked = Clock::now();
  LGPU_RETURN_IF_ERROR(program.program().Grow(kWanted, kPatience));
  while (!over) {
    Wait(played, asked);
    ++played.turns;
    std::optional<MovingProgram::TimePoint> gave_way;
    while (!over && !gave_way) {
      program.NoteUse();
      std::this_thread::sleep_for(kStep);
      LGPU_ASSIGN_OR_RETURN(gave_way, program.GiveWayIfTold());
    }
    asked = Clock::now();
    bool is_back = false;
    while (!over && !is_back) {
      program.NoteUse();
      std::this_thread::sleep_for(kStep);
      LGPU_ASSIGN_OR_RETURN(is_back, program.ComeBackIfTold());
    }
  }
  return absl::OkStatus();
}

}  // namespace

bool RunTurnAttack(uid_t attacker, int turns) {
  DaemonProcess::Options options{.simulate = "1GiB", .config = "[memory]\nmin_run = \"100ms\"\n"};
  options.open_to_everybody = true;
  const absl::StatusOr<std::unique_ptr<DaemonProcess>> daemon = DaemonProcess::Start(options);
  if (!daemon.ok()) {
    std::fprintf(stderr, "%s\n", std::string(daemon.status().message()).c_str());
    return false;
  }
  const std::string dir = (*daemon)->dir();
  std::atomic<bool> over = false;
  std::vector<Played> attackers(kAttackers);
  Played honest;
  std::vector<std::thread> threads;
  threads.emplace_back([&] {
    honest.status = Play(dir, over, honest);
    over = true;  // it has failed, if it is not over
  });
  while (honest.turns == 0 && !over) std::this_thread::sleep_for(kStep);
  for (Played& played : attackers) {
    threads.emplace_back([&] {
      // The raw system call changes this thread alone, and the threads that it starts.
      if (::syscall(SYS_setresuid, -1, attacker, -1) != 0) std::abort();
      played.status = Play(dir, over, played);
    });
  }
  const Clock::time_point end = Clock::now() + kLongest;
  while (!over && honest.turns + SumOf(attackers) < turns && Clock::now() < end) {
    std::this_thread::sleep_for(kStep);
  }
  over = true;
  for (std::thread& thread : threads) thread.join();
  const int all = honest.turns + SumOf(attackers);
  std::printf("%-28s %5d of %d turns; it waited at most %.1f s for one\n", "eight that want its turns",
              honest.turns.load(), all, std::chrono::duration<double>(honest.longest_wait).count());
  absl::Status failed = honest.status;
  for (const Played& played : attackers) failed.Update(played.status);
  if (!failed.ok()) std::printf("FAILED: %s\n", std::string(failed.message()).c_str());
  std::fflush(stdout);
  return failed.ok() && all >= turns && 3 * honest.turns >= all;
}

}  // namespace lgpu::testing
