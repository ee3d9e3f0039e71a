// Grants under load: sessions that grow by one chunk and return it, all at once, over lgpud's session server,
// leases, broker and journal in this process; with a backend whose memory costs nothing, and with memfds
// beside the rate at which this machine makes memfds.

#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <functional>
#include <iostream>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "allocator/device/simulated/simulated_backend.h"
#include "bench/load_figures.h"
#include "bench/null_backend.h"
#include "bench/session_host.h"
#include "client/session/daemon_connection.h"
#include "lgpu/status.h"
#include "tests/support/child_program.h"
#include "tests/support/open_files_limit.h"

namespace lgpu::bench {
namespace {

using Clock = std::chrono::steady_clock;
constexpr Bytes kChunk = 2_MiB;
constexpr int kRounds = 3;

struct Flags {
  int sessions = 200;
  double seconds = 2;
};

/// The processor time of this process, all of its threads.
double CpuSeconds() {
  rusage usage = {};
  ::getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

struct Measured {
  double per_second = 0;
  double cpu_us = 0;  // of one call; it means the same on a loaded machine
};

/// `call`, on each of `threads` threads, which stop after `seconds` or at an error.
absl::StatusOr<Measured> Measure(int threads, double seconds, const std::function<absl::Status(int)>& call) {
  std::atomic<std::uint64_t> calls = 0;
  std::atomic<bool> stop = false;
  std::vector<absl::Status> results(static_cast<std::size_t>(threads));
  std::vector<std::thread> running;
  const auto start = Clock::now();
  const double cpu_before = CpuSeconds();
  for (int i = 0; i < threads; ++i) {
    running.emplace_back([&, i] {
      absl::Status& result = results[static_cast<std::size_t>(i)];
      while (!stop && result.ok()) {
        result = call(i);
        if (result.ok()) calls.fetch_add(1, std::memory_order_relaxed);
      }
    });
  }
  std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
  stop = true;
  for (std::thread& thread : running) thread.join();
  const double took = std::chrono::duration<double>(Clock::now() - start).count();
  for (const absl::Status& result : results) LGPU_RETURN_IF_ERROR(result);
  const auto count = static_cast<double>(calls);
  return Measured{.per_second = count / took,
                  .cpu_us = 1e6 * (CpuSeconds() - cpu_before) / std::max(count, 1.0)};
}

/// Sessions of one host, each with a lease.
class Sessions {
 public:
  static absl::StatusOr<std::unique_ptr<Sessions>> Open(DeviceMemory& memory, int count) {
    std::unique_ptr<Sessions> sessions(new Sessions());
    LGPU_ASSIGN_OR_RETURN(
        sessions->host_,
        SessionHost::Start(
            memory, {.max_sessions = 4096, .descriptors = 4096, .journal_dir = sessions->directory_.path()}));
    for (int i = 0; i < count; ++i) {
      int ends[2] = {-1, -1};
      if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) {
        return absl::ResourceExhaustedError("no more sockets; raise the limit of open files (ulimit -n)");
      }
      UniqueFd ours(ends[0]);
      LGPU_RETURN_IF_ERROR(sessions->host_->Serve(UniqueFd(ends[1])));
      LGPU_ASSIGN_OR_RETURN(std::unique_ptr<DaemonConnection> connection,
                            DaemonConnection::Open(std::move(ours), {.directory = "(this benchmark)"}));
      LGPU_ASSIGN_OR_RETURN(const std::uint64_t device,
                            sessions->host_->MakeLease(connection->token(), 64_MiB));
      sessions->each_.push_back({std::move(connection), device});
    }
    return sessions;
  }

  absl::Status GrowAndReturn(int session) {
    const Each& each = each_[static_cast<std::size_t>(session)];
    std::vector<ChunkId> chunks;
    {
      LGPU_ASSIGN_OR_RETURN(auto call,
                            each.connection->Grow(each.device, {.at_least = kChunk, .wanted = kChunk}));
      LGPU_ASSIGN_OR_RETURN(const DaemonConnection::GrantPage page, call.Next());
      for (const auto& granted : page.chunks) chunks.push_back(granted.chunk.id);
    }
    return each.connection->Return(each.device, chunks);
  }

  absl::Status Close() {
    for (const Each& each : each_) LGPU_RETURN_IF_ERROR(each.connection->Close());
    return host_->CheckInvariants();
  }

 private:
  struct Each {
    std::unique_ptr<DaemonConnection> connection;
    std::uint64_t device = 0;
  };
  Sessions() = default;
  testing::TempDir directory_;
  std::unique_ptr<SessionHost> host_;
  std::vector<Each> each_;
};

absl::StatusOr<Measured> MeasureGrants(DeviceMemory& memory, const Flags& flags) {
  LGPU_ASSIGN_OR_RETURN(const std::unique_ptr<Sessions> sessions, Sessions::Open(memory, flags.sessions));
  LGPU_ASSIGN_OR_RETURN(const Measured grants, Measure(flags.sessions, flags.seconds, [&](int session) {
                          return sessions->GrowAndReturn(session);
                        }));
  LGPU_RETURN_IF_ERROR(sessions->Close());
  return grants;
}

std::unique_ptr<DeviceBackend> Memfds() {
  return MakeSimulatedBackend({.devices = {SimulatedDevice(0, 16_GiB, "grant_load_bench")}});
}

/// The cost of a grant and a return of a chunk without lgpud: a memfd is made and freed.
absl::StatusOr<Measured> MeasureCreates(const Flags& flags) {
  const std::unique_ptr<DeviceBackend> memory = Memfds();
  return Measure(flags.sessions, flags.seconds, [&](int) -> absl::Status {
    LGPU_ASSIGN_OR_RETURN(const MemoryHandle chunk, memory->Create(0, kChunk));
    return memory->Reclaim(chunk);
  });
}

/// The medians of several rounds.
struct Rounds {
  std::vector<double> per_second, cpu_us;
  void Add(const Measured& measured) {
    per_second.push_back(measured.per_second);
    cpu_us.push_back(measured.cpu_us);
  }
  void Print(const char* what) const {
    std::printf("  %-34s %10.0f a second, %8.1f us of CPU time each\n", what, Median(per_second),
                Median(cpu_us));
  }
};

absl::Status RunGrants(const Flags& flags) {
  Rounds null_grants, creates, memfd_grants;
  for (int round = 0; round < kRounds; ++round) {
    LGPU_ASSIGN_OR_RETURN(const std::unique_ptr<DeviceMemory> null, MakeNullBackend());
    LGPU_ASSIGN_OR_RETURN(const Measured free_of_cost, MeasureGrants(*null, flags));
    null_grants.Add(free_of_cost);
    LGPU_ASSIGN_OR_RETURN(const Measured bare, MeasureCreates(flags));
    creates.Add(bare);
    const std::unique_ptr<DeviceBackend> memfds = Memfds();
    LGPU_ASSIGN_OR_RETURN(const Measured real, MeasureGrants(*memfds, flags));
    memfd_grants.Add(real);
  }
  std::printf("%d sessions, %u cores, medians of %d rounds, load %s\n", flags.sessions,
              std::thread::hardware_concurrency(), kRounds, Load().c_str());
  null_grants.Print("grants, memory costs nothing");
  creates.Print("memfds of 2 MiB made and freed");
  memfd_grants.Print("grants, memfds of 2 MiB");
  std::printf(
      "  goals: 10,000 grants a second where memory costs nothing; with memfds 0.8 of their bare rate: it "
      "is\n"
      "  %.2f a second, and %.2f by CPU time\n",
      Median(memfd_grants.per_second) / Median(creates.per_second),
      Median(creates.cpu_us) / Median(memfd_grants.cpu_us));
  return absl::OkStatus();
}

}  // namespace
}  // namespace lgpu::bench

int main(int argc, char** argv) {
  lgpu::bench::Flags flags;
  CLI::App app("Grants for many sessions at once.", "grant_load_bench");
  app.add_option("--sessions", flags.sessions, "Sessions that grow and return")->check(CLI::PositiveNumber);
  app.add_option("--seconds", flags.seconds, "Length of one measurement")->check(CLI::PositiveNumber);
  CLI11_PARSE(app, argc, argv);
  const lgpu::OpenFilesLimit files(lgpu::OpenFilesLimit::kAll);
  if (const absl::Status status = lgpu::bench::RunGrants(flags); !status.ok()) {
    std::cerr << "grant_load_bench: " << status << "\n";
    return 1;
  }
  return 0;
}
