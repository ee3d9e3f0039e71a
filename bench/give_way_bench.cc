// Measures how soon a waiting request is served after an idle lease has given memory up for it: from the
// moment that its release hook begins to free memory until the request's grant. Beside it, in the same run
// and in turns, its bare counterpart: a program frees as much of its own accord while a request waits, and no
// lease is asked. lgpud is a real one with simulated GPUs; programs and hook are threads of this process.
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
#include "client/control/control_client.h"
#include "client/control/lease_calls.h"
#include "client/session/daemon_connection.h"
#include "client/session/endpoint.h"
#include "lgpu/status.h"
#include "tests/support/daemon_process.h"

namespace lgpu::bench {
namespace {

using SteadyClock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr Bytes kRequest = 2_MiB;
/// The request is in its queue by then. Where a lease is asked it takes as long, or longer.
constexpr milliseconds kUntilItWaits{20};
constexpr std::chrono::seconds kPatience{30};
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

/// A program in a lease of its own, which makes no use of a GPU: the lease is idle from its start on.
struct Program {
  std::unique_ptr<DaemonConnection> connection;
  std::string lease;
  std::uint64_t device = 0;
  std::vector<ChunkId> chunks;

  absl::Status Grow(std::chrono::nanoseconds timeout) {
    LGPU_ASSIGN_OR_RETURN(
        DaemonConnection::GrowCall call,
        connection->Grow(device, {.at_least = kRequest, .wanted = kRequest, .timeout = timeout}));
    LGPU_ASSIGN_OR_RETURN(const DaemonConnection::GrantPage page, call.Next());
    for (const DaemonConnection::GrantedChunk& granted : page.chunks) chunks.push_back(granted.chunk.id);
    return absl::OkStatus();
  }
  absl::Status FreeOne() {
    const std::vector<ChunkId> one = {chunks.back()};
    chunks.pop_back();
    return connection->Return(device, one);
  }
};

absl::StatusOr<std::unique_ptr<DaemonConnection>> Connect(const std::string& directory,
                                                          DaemonConnection::Options options) {
  options.reconnect_path = SessionSocketPath(directory);
  options.makes_no_use = true;
  return DaemonConnection::Connect(std::move(options));
}

absl::StatusOr<Program> StartProgram(const std::string& directory, int gpu) {
  Program program;
  LGPU_ASSIGN_OR_RETURN(program.connection, Connect(directory, {.directory = directory}));
  LGPU_ASSIGN_OR_RETURN(DaemonSocket daemon, FindDaemon({.directories = {directory}}));
  LGPU_ASSIGN_OR_RETURN(const std::shared_ptr<ControlClient> control,
                        ControlClient::Create(std::move(daemon.control), directory));
  control->UseToken(program.connection->token());
  LGPU_ASSIGN_OR_RETURN(const wire::ListPhysicalDevicesResponse machine, ListPhysicalDevices(*control));
  wire::LogicalDeviceSpec spec;
  for (const wire::CardStats& card : machine.devices) {
    if (static_cast<int>(card.index) == gpu) spec.card_uuid = card.uuid;
  }
  spec.mode = wire::LogicalDeviceSpec::Mode::kGrowth;
  wire::CreateLeaseRequest request;
  request.devices.push_back(spec);
  LGPU_ASSIGN_OR_RETURN(const wire::Lease lease, CreateLease(*control, request));
  program.lease = lease.id;
  program.device = lease.devices.at(0).id;
  return program;
}

/// A program that holds its whole GPU, and one that asks for a part of it.
struct Gpu {
  Program holder, asker;

  static absl::StatusOr<std::unique_ptr<Gpu>> Fill(const std::string& directory, int index) {
    auto gpu = std::make_unique<Gpu>();
    LGPU_ASSIGN_OR_RETURN(gpu->holder, StartProgram(directory, index));
    LGPU_ASSIGN_OR_RETURN(gpu->asker, StartProgram(directory, index));
    // None of its memory is idle.
    DaemonConnection& session = *gpu->holder.connection;
    session.StartMaintenance([&session](Maintenance::TimePoint) {
      for (const TrimOrder& order : session.TakeTrims()) session.AnswerTrim(order.id, /*pending=*/false);
      return std::optional<Maintenance::TimePoint>();
    });
    absl::Status grown;
    while (grown.ok()) grown = gpu->holder.Grow({});
    if (!absl::IsResourceExhausted(grown)) return grown;
    return gpu;
  }
};

/// A request waits, `free` frees as much, and the time from there to its grant.
template <typename Free>
absl::Status Measure(Gpu& gpu, const Free& free, Times& times) {
  absl::Status served;
  SteadyClock::time_point end;
  std::thread asking([&] {
    served = gpu.asker.Grow(kPatience);
    end = SteadyClock::now();
  });
  const absl::StatusOr<SteadyClock::time_point> begin = free();
  asking.join();
  LGPU_RETURN_IF_ERROR(begin.status());
  LGPU_RETURN_IF_ERROR(served);
  times.Add(end - *begin);
  // As it was.
  LGPU_RETURN_IF_ERROR(gpu.asker.FreeOne());
  return gpu.holder.Grow(kPatience);
}

absl::Status Run(int rounds) {
  LGPU_ASSIGN_OR_RETURN(const auto daemon, testing::DaemonProcess::Start({.simulate = "2x256MiB"}));
  LGPU_ASSIGN_OR_RETURN(const std::unique_ptr<Gpu> asked, Gpu::Fill(daemon->dir(), 0));
  LGPU_ASSIGN_OR_RETURN(const std::unique_ptr<Gpu> plain, Gpu::Fill(daemon->dir(), 1));
  const UniqueFd changed(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  LGPU_ASSIGN_OR_RETURN(
      const std::unique_ptr<DaemonConnection> hook,
      Connect(daemon->dir(),
              {.directory = daemon->dir(), .runs_release = true, .on_change = [fd = changed.get()] {
                 [[maybe_unused]] const int written = ::eventfd_write(fd, 1);
               }}));
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
    LGPU_RETURN_IF_ERROR(asked->holder.FreeOne());
    hook->AnswerRelease(orders.front(), absl::OkStatus());
    return begin;
  };
  const auto free_plainly = [&]() -> absl::StatusOr<SteadyClock::time_point> {
    std::this_thread::sleep_for(kUntilItWaits);
    const auto begin = SteadyClock::now();
    LGPU_RETURN_IF_ERROR(plain->holder.FreeOne());
    return begin;
  };
  for (int round = 0; round < rounds; ++round) {
    LGPU_RETURN_IF_ERROR(Measure(*asked, give_way, with_asking));
    LGPU_RETURN_IF_ERROR(Measure(*plain, free_plainly, without));
  }
  std::printf("from the free of %llu MiB to the grant of a request that waits for it, %d times, load %s\n",
              static_cast<unsigned long long>(kRequest.count() >> 20), rounds, Load().c_str());
  with_asking.Print("freed by the hook of a lease that was asked");
  without.Print("freed by a program of its own accord");
  std::printf("  goal: at most %.0f ms after the hook's free\n", kGoalMs);
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
