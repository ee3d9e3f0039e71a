// Measures recovery: the time from the end of a killed client's process until its quota is free, and from the
// start of a new daemon until all sessions of the old one are back. Beside each, in the same run, its bare
// counterpart: the death of a process without memory and the kernel's freeing of as many pages, and the start
// of a daemon without earlier sessions.
//
// usage: restart_bench [SESSIONS [KILLS]]

#include <poll.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "allocator/device/simulated/memfd.h"
#include "client/control/control_client.h"
#include "client/runtime/open_lease.h"
#include "client/session/endpoint.h"
#include "lgpu/lgpu.h"
#include "lgpu/pool.h"
#include "tests/support/child_program.h"
#include "tests/support/daemon_process.h"
#include "tests/support/daemon_stats.h"

namespace lgpu {
namespace {

using Clock = std::chrono::steady_clock;
using testing::ChildProgram;
using testing::DaemonProcess;
using testing::Eventually;
using testing::TempDir;

double Milliseconds(Clock::duration time) { return std::chrono::duration<double, std::milli>(time).count(); }

struct Figures {
  std::vector<double> all;
  double At(double part) {
    std::sort(all.begin(), all.end());
    return all[static_cast<std::size_t>(part * static_cast<double>(all.size() - 1))];
  }
};

/// A lease with one block of 1 MiB in it.
struct Client {
  std::unique_ptr<Lease> lease;
  std::unique_ptr<Pool> pool;
};

absl::StatusOr<Client> StartClient(const std::string& directory, Bytes bytes) {
  ContextOptions options;
  options.endpoint = directory;
  options.logical_devices = {{.memory_limit = bytes}};
  LGPU_ASSIGN_OR_RETURN(std::unique_ptr<Lease> lease, OpenLease(options, Contents::kBlocksOfCaller));
  Client client{std::move(lease), nullptr};
  client.pool = std::make_unique<Pool>(client.lease->TakeSource(0), PoolOptions());
  LGPU_ASSIGN_OR_RETURN(const Block block, client.pool->Allocate(bytes, {}));
  std::memset(block.address, 1, 4096);
  return client;
}

/// The part of a program that is killed: holds memory (or, with no directory, nothing) and says so.
int Hold(const char* directory, const char* bytes) {
  absl::StatusOr<Client> client;
  if (*directory != '\0') {
    client = StartClient(directory, Bytes(std::strtoull(bytes, nullptr, 10)));
    if (!client.ok()) return 1;
  }
  std::puts("ready");
  std::fflush(stdout);
  while (true) ::pause();
}

std::shared_ptr<ControlClient> Connect(const std::string& directory) {
  auto socket = FindDaemon({.directories = {directory}});
  if (!socket.ok()) return nullptr;
  return ControlClient::Create(std::move(socket->control), directory).value_or(nullptr);
}

/// The kernel's time to free the pages of so much memory in chunks.
double FreePages(std::uint64_t bytes) {
  constexpr Bytes kChunk = 2_MiB;
  std::vector<UniqueFd> chunks;
  for (std::uint64_t made = 0; made < bytes; made += kChunk.count()) {
    auto chunk = CreateChunkMemfd(kChunk, /*sparse=*/false, "lgpu-restart-bench");
    if (!chunk.ok()) return 0;
    chunks.push_back(*std::move(chunk));
  }
  const auto start = Clock::now();
  for (const UniqueFd& chunk : chunks) (void)EmptyChunkMemfd(chunk.get());
  return Milliseconds(Clock::now() - start);
}

int KillClients(const char* self, const std::string& directory, std::uint64_t bytes, int kills) {
  const std::shared_ptr<ControlClient> control = Connect(directory);
  Figures gone, free_after, bare, kernel;
  for (int i = 0; i < 2 * kills; ++i) {
    const bool holds = i % 2 == 0;
    auto victim =
        ChildProgram::Start({.argv = {self, "--hold", holds ? directory : "", std::to_string(bytes)}});
    if (!victim.ok() || (*victim)->ReadLine() != "ready") return 1;
    const UniqueFd pidfd(static_cast<int>(::syscall(SYS_pidfd_open, (*victim)->pid(), 0u)));
    const auto killed = Clock::now();
    (*victim)->Signal(SIGKILL);
    pollfd polled = {.fd = pidfd.get(), .events = POLLIN, .revents = 0};
    ::poll(&polled, 1, -1);
    const auto end = Clock::now();
    if (!holds) {
      bare.all.push_back(Milliseconds(end - killed));
      kernel.all.push_back(FreePages(bytes));
      continue;
    }
    while (true) {
      const auto stats = testing::StatsOf(*control);
      if (!stats.ok()) return 1;
      if (stats->cards(0).held_bytes() == 0) break;
    }
    gone.all.push_back(Milliseconds(end - killed));
    free_after.all.push_back(Milliseconds(Clock::now() - end));
  }
  std::printf("SIGKILL of a client with %llu MiB, %d times\n", static_cast<unsigned long long>(bytes >> 20),
              kills);
  std::printf("  process gone        median %7.2f ms   p99 %7.2f ms   (one that holds nothing: %.2f, %.2f)\n",
              gone.At(0.5), gone.At(0.99), bare.At(0.5), bare.At(0.99));
  std::printf(
      "  quota free after it median %7.2f ms   p99 %7.2f ms   (to free its pages alone: %.2f, %.2f)\n",
      free_after.At(0.5), free_after.At(0.99), kernel.At(0.5), kernel.At(0.99));
  return 0;
}

int RestartWithSessions(std::size_t sessions) {
  TempDir directory;
  const DaemonProcess::Options options{.simulate = "2GiB",
                                       .dir = directory.path() + "/run",
                                       .lock_dir = directory.path() + "/locks",
                                       .state_dir = directory.path() + "/state"};
  auto start = Clock::now();
  auto daemon = DaemonProcess::Start(options);
  if (!daemon.ok()) return 1;
  const double bare = Milliseconds(Clock::now() - start);
  std::vector<Client> clients;
  while (clients.size() < sessions) {
    auto client = StartClient((*daemon)->dir(), 2_MiB);
    if (!client.ok()) {
      std::fprintf(stderr, "%s\n", client.status().ToString().c_str());
      return 1;
    }
    clients.push_back(*std::move(client));
  }
  (*daemon)->program().Signal(SIGKILL);
  (*daemon)->program().Wait();
  start = Clock::now();
  daemon = DaemonProcess::Start(options);
  if (!daemon.ok()) return 1;
  const double ready = Milliseconds(Clock::now() - start);
  const std::shared_ptr<ControlClient> control = Connect((*daemon)->dir());
  const bool all_back = Eventually([&] {
    const auto stats = testing::StatsOf(*control);
    if (!stats.ok()) return false;
    std::size_t live = 0;
    for (const v1::LeaseStats& lease : stats->leases()) {
      for (const v1::SessionStats& session : lease.sessions()) {
        live += session.state() == v1::SessionStats::STATE_LIVE ? 1 : 0;
      }
    }
    return live == sessions;
  });
  const double back = Milliseconds(Clock::now() - start);
  std::printf("restart with %zu sessions\n", sessions);
  std::printf("  daemon ready %7.1f ms (one that finds nothing: %.1f), all sessions back %7.1f ms%s\n", ready,
              bare, back, all_back ? "" : "  NOT ALL CAME BACK");
  return all_back ? 0 : 1;
}

int Main(int argc, char** argv) {
  if (argc == 4 && std::strcmp(argv[1], "--hold") == 0) return Hold(argv[2], argv[3]);
  const std::size_t sessions = argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 200;
  const int kills = argc > 2 ? std::atoi(argv[2]) : 40;
  if (const int failed = RestartWithSessions(sessions); failed != 0) return failed;
  auto daemon = DaemonProcess::Start({.simulate = "1GiB"});
  if (!daemon.ok()) return 1;
  for (const std::uint64_t mib : {8, 256}) {
    if (const int failed = KillClients(argv[0], (*daemon)->dir(), mib << 20, kills); failed != 0) {
      return failed;
    }
  }
  return 0;
}

}  // namespace
}  // namespace lgpu

int main(int argc, char** argv) { return lgpu::Main(argc, argv); }
