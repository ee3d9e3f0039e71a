// Measures how soon a waiting request is served after an idle lease has given memory up for it: from the
// moment that its release hook, or its program that lgpud suspends, begins to free memory until the request's
// grant. Beside it, in the same run, its bare counterpart: a program frees as much as the hook of its own
// accord while a request waits, and no lease is asked. lgpud is a real one with simulated GPUs; programs and
// hook are threads of this process.
//
// usage: give_way_bench [ROUNDS]

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "bench/load_figures.h"
#include "lgpu/status.h"
#include "tests/support/daemon_process.h"
#include "tests/support/lease_program.h"

namespace lgpu::bench {
namespace {

using SteadyClock = std::chrono::steady_clock;
using std::chrono::milliseconds;
using testing::LeaseProgram;
using testing::MovingProgram;

constexpr Bytes kRequest = 2_MiB;
constexpr std::chrono::seconds kPatience{30};
/// The request is in its queue by then. Where a lease is asked it takes as long, or longer.
constexpr milliseconds kUntilItWaits{20};
constexpr double kGoalMs = 50;

struct Times {
  std::vector<double> ms;
  void Add(SteadyClock::duration time) {
    ms.push_back(std::chrono::duration<double, std::milli>(time).count());
  }
  double At(double part) {
    std::sort(ms.begin(), ms.end());
    return ms[static_cast<std::size_t>(part * static_cast<double>(ms.size() - 1))];
  }
  void Print(const char* what) {
    std::printf("  %-44s p50 %7.2f ms   p99 %7.2f ms   worst %7.2f ms\n", what, At(0.5), At(0.99), At(1));
  }
};

/// A program that holds its whole GPU, and one that asks for a part of it.
struct Gpu {
  LeaseProgram holder, asker;

  static absl::StatusOr<std::unique_ptr<Gpu>> Fill(const std::string& directory, int index) {
    auto gpu = std::make_unique<Gpu>();
    // They make no use of a GPU: their leases are idle from their start on.
    DaemonConnection::Options options;
    options.makes_no_use = true;
    LGPU_ASSIGN_OR_RETURN(gpu->holder, LeaseProgram::Start(directory, index, options));
    LGPU_ASSIGN_OR_RETURN(gpu->asker, LeaseProgram::Start(directory, index, options));
    absl::Status grown;
    while (grown.ok()) grown = gpu->holder.Grow(kRequest, {});
    if (!absl::IsResourceExhausted(grown)) return grown;
    return gpu;
  }
};

/// A request of the asker waits, `free` frees memory and returns when it began; the time from there to the
/// grant. What was granted is free again afterwards.
template <typename Free>
absl::Status Measure(LeaseProgram& asker, const Free& free, Times& times) {
  absl::Status served;
  SteadyClock::time_point end;
  std::thread asking([&] {
    served = asker.Grow(kRequest, kPatience);
    end = SteadyClock::now();
  });
  const absl::StatusOr<SteadyClock::time_point> begin = free();
  asking.join();
  LGPU_RETURN_IF_ERROR(begin.status());
  LGPU_RETURN_IF_ERROR(served);
  times.Add(end - *begin);
  return asker.Free(1);
}

/// Until `told` says yes.
template <typename Told>
auto Await(const Told& told) -> decltype(told()) {
  const auto end = SteadyClock::now() + kPatience;
  while (SteadyClock::now() < end) {
    auto answer = told();
    if (!answer.ok() || *answer) return answer;
    std::this_thread::sleep_for(milliseconds(1));
  }
  return absl::DeadlineExceededError("lgpud told the program nothing");
}

/// From the free by a program that lgpud suspends to the grant.
absl::Status MeasureSuspensions(const std::string& directory, int gpu, int rounds, Times& times) {
  MovingProgram holder;
  LGPU_RETURN_IF_ERROR(holder.Start(directory, gpu, wire::Preemptible::kIdle));
  absl::Status grown;
  while (grown.ok()) grown = holder.program().Grow(kRequest, {});
  if (!absl::IsResourceExhausted(grown)) return grown;
  holder.NoteUse();
  MovingProgram asker;
  LGPU_RETURN_IF_ERROR(asker.Start(directory, gpu, wire::Preemptible::kIdle));
  const auto give_way = [&]() -> absl::StatusOr<SteadyClock::time_point> {
    LGPU_ASSIGN_OR_RETURN(const auto began, Await([&] { return holder.GiveWayIfTold(); }));
    return *began;
  };
  for (int round = 0; round < rounds; ++round) {
    LGPU_RETURN_IF_ERROR(Measure(asker.program(), give_way, times));
    holder.NoteUse();
    LGPU_RETURN_IF_ERROR(Await([&] { return holder.ComeBackIfTold(); }).status());
  }
  return absl::OkStatus();
}

absl::Status Run(int rounds) {
  LGPU_ASSIGN_OR_RETURN(const auto daemon, testing::DaemonProcess::Start({.simulate = "2x256MiB,1x64MiB"}));
  LGPU_ASSIGN_OR_RETURN(const std::unique_ptr<Gpu> asked, Gpu::Fill(daemon->dir(), 0));
  LGPU_ASSIGN_OR_RETURN(const std::unique_ptr<Gpu> plain, Gpu::Fill(daemon->dir(), 1));
  const UniqueFd changed(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  DaemonConnection::Options options;
  options.runs_release = true;
  options.makes_no_use = true;
  options.on_change = [fd = changed.get()] { [[maybe_unused]] const int written = ::eventfd_write(fd, 1); };
  LGPU_ASSIGN_OR_RETURN(const std::unique_ptr<DaemonConnection> hook,
                        testing::ConnectTo(daemon->dir(), options));
  LGPU_RETURN_IF_ERROR(hook->Attach(asked->holder.lease).status());

  Times with_asking, without;
  const auto give_way = [&]() -> absl::StatusOr<SteadyClock::time_point> {
    const auto patience = std::chrono::duration_cast<milliseconds>(kPatience);
    std::vector<DaemonConnection::ReleaseOfDaemon> orders;
    while (orders.empty()) {
      pollfd polled = {.fd = changed.get(), .events = POLLIN, .revents = 0};
      if (::poll(&polled, 1, static_cast<int>(patience.count())) <= 0) {
        return absl::DeadlineExceededError("lgpud asks no lease to give way");
      }
      eventfd_t count = 0;
      [[maybe_unused]] const int read = ::eventfd_read(changed.get(), &count);
      orders = hook->TakeReleases();
    }
    const auto begin = SteadyClock::now();
    LGPU_RETURN_IF_ERROR(asked->holder.Free(1));
    hook->AnswerRelease(orders.front(), absl::OkStatus());
    return begin;
  };
  const auto free_plainly = [&]() -> absl::StatusOr<SteadyClock::time_point> {
    std::this_thread::sleep_for(kUntilItWaits);
    const auto begin = SteadyClock::now();
    LGPU_RETURN_IF_ERROR(plain->holder.Free(1));
    return begin;
  };
  for (int round = 0; round < rounds; ++round) {
    LGPU_RETURN_IF_ERROR(Measure(asked->asker, give_way, with_asking));
    LGPU_RETURN_IF_ERROR(asked->holder.Grow(kRequest, kPatience));
    LGPU_RETURN_IF_ERROR(Measure(plain->asker, free_plainly, without));
    LGPU_RETURN_IF_ERROR(plain->holder.Grow(kRequest, kPatience));
  }
  // Each takes more than two seconds: the lease has to be idle for so long.
  Times suspended;
  const int suspensions = std::max(1, rounds / 15);
  LGPU_RETURN_IF_ERROR(MeasureSuspensions(daemon->dir(), 2, suspensions, suspended));
  std::printf("from the free of %llu MiB to the grant of a request that waits for it, %d times, load %s\n",
              static_cast<unsigned long long>(kRequest.count() >> 20), rounds, Load().c_str());
  with_asking.Print("freed by the hook of a lease that was asked");
  without.Print("freed by a program of its own accord");
  std::printf("from the free of 64 MiB, %d times\n", suspensions);
  suspended.Print("freed by a program that lgpud suspends");
  std::printf("  goal: at most %.0f ms after the free\n", kGoalMs);
  return absl::OkStatus();
}

}  // namespace
}  // namespace lgpu::bench

int main(int argc, char** argv) {
  const int rounds = argc > 1 ? std::atoi(argv[1]) : 300;
  if (rounds < 1) {
    std::fprintf(stderr, "usage: give_way_bench [ROUNDS]\n");
    return 2;
  }
  if (const absl::Status status = lgpu::bench::Run(rounds); !status.ok()) {
    std::fprintf(stderr, "give_way_bench: %s\n", status.ToString().c_str());
    return 1;
  }
  return 0;
}
