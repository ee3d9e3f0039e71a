// Measures a session: the first tensor of a program, in a new process and in one that had a Context before,
// and connect, lease and first block, against a bare connect to the same socket; the daemon's private memory
// for each idle session; many processes that start at once.

#include <benchmark/benchmark.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/spawn.h"
#include "client/runtime/open_lease.h"
#include "client/session/endpoint.h"
#include "lgpu/lgpu.h"
#include "lgpu/pool.h"
#include "proto/wire/connect.h"
#include "tests/support/child_program.h"
#include "tests/support/daemon_process.h"

namespace lgpu {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kRepetitions = 15;
constexpr int kIdleSessions = 100;
constexpr int kProcesses = 200;

/// A lease of 64 MiB with one block of 1 MiB in it.
struct Client {
  std::unique_ptr<Lease> lease;
  std::unique_ptr<Pool> pool;
};

absl::StatusOr<Client> StartClient(const std::string& directory) {
  ContextOptions options;
  options.endpoint = directory;
  options.logical_devices = {{.memory_limit = 64_MiB}};
  absl::StatusOr<std::unique_ptr<Lease>> lease = OpenLease(options, Contents::kBlocksOfCaller);
  if (!lease.ok()) return lease.status();
  Client client{*std::move(lease), nullptr};
  client.pool = std::make_unique<Pool>(client.lease->TakeSource(0), PoolOptions());
  const absl::StatusOr<Block> block = client.pool->Allocate(1_MiB, {});
  if (!block.ok()) return block.status();
  std::memset(block->address, 1, 4096);
  return client;
}

absl::Status End(Client& client) {
  client.pool.reset();
  return client.lease->Close();
}

void BM_BareConnect(benchmark::State& state) {
  auto daemon = testing::DaemonProcess::Start();
  if (!daemon.ok()) {
    state.SkipWithError("lgpud does not start");
    return;
  }
  const std::string path = SessionSocketPath((*daemon)->dir());
  for (auto _ : state) {
    if (!ConnectUnix(path, SOCK_SEQPACKET).ok()) {
      state.SkipWithError("no connection");
      break;
    }
  }
}
BENCHMARK(BM_BareConnect)->UseRealTime()->Repetitions(kRepetitions)->Iterations(50)->ReportAggregatesOnly();

void BM_ConnectLeaseFirstBlock(benchmark::State& state) {
  auto daemon = testing::DaemonProcess::Start();
  if (!daemon.ok()) {
    state.SkipWithError("lgpud does not start");
    return;
  }
  for (auto _ : state) {
    absl::StatusOr<Client> client = StartClient((*daemon)->dir());
    state.PauseTiming();
    if (!client.ok() || !End(*client).ok()) {
      state.SkipWithError(client.status().ToString().c_str());
      break;
    }
    state.ResumeTiming();
  }
}
BENCHMARK(BM_ConnectLeaseFirstBlock)
    ->UseRealTime()
    ->Repetitions(kRepetitions)
    ->Iterations(50)
    ->ReportAggregatesOnly();

/// The first steps of a program: a Context with one logical device, and a tensor on it.
struct FirstTensor {
  absl::StatusOr<Context> context;
  absl::StatusOr<Tensor> tensor;
  std::chrono::duration<double> seconds;
};

FirstTensor MakeFirstTensor(const std::string& directory) {
  const auto start = Clock::now();
  FirstTensor first{
      .context = Context::Create({.logical_devices = {{.memory_limit = 64_MiB}}, .endpoint = directory}),
      .tensor = absl::UnknownError(""),
      .seconds = {}};
  first.tensor =
      first.context.ok() ? first.context->Constant<float>({{1, 2, 3}, {4, 5, 6}}) : first.context.status();
  first.seconds = Clock::now() - start;
  return first;
}

/// Each run in a process of its own, which says how long it took from the start of Context::Create: that
/// includes the libraries' lazy work. `process_ms`: with the start and the end of the process.
void BM_FirstTensorOfProcess(benchmark::State& state) {
  auto daemon = testing::DaemonProcess::Start();
  if (!daemon.ok()) {
    state.SkipWithError("lgpud does not start");
    return;
  }
  double process_seconds = 0;
  for (auto _ : state) {
    const auto start = Clock::now();
    const auto run = testing::RunProgram({.argv = {"/proc/self/exe", "--first-tensor", (*daemon)->dir()}});
    process_seconds += std::chrono::duration<double>(Clock::now() - start).count();
    if (!run.ok() || run->code != 0) {
      state.SkipWithError(run.ok() ? run->err.c_str() : run.status().ToString().c_str());
      break;
    }
    state.SetIterationTime(std::stod(run->out));
  }
  state.counters["process_ms"] = process_seconds * 1e3 / static_cast<double>(state.iterations());
}
BENCHMARK(BM_FirstTensorOfProcess)
    ->UseManualTime()
    ->Repetitions(kRepetitions)
    ->Iterations(10)
    ->ReportAggregatesOnly()
    ->Unit(benchmark::kMillisecond);

void BM_FirstTensorOfLaterContext(benchmark::State& state) {
  auto daemon = testing::DaemonProcess::Start();
  if (!daemon.ok()) {
    state.SkipWithError("lgpud does not start");
    return;
  }
  (void)MakeFirstTensor((*daemon)->dir());
  for (auto _ : state) {
    const FirstTensor first = MakeFirstTensor((*daemon)->dir());
    if (!first.tensor.ok()) {
      state.SkipWithError(first.tensor.status().ToString().c_str());
      break;
    }
    state.SetIterationTime(first.seconds.count());
  }
}
BENCHMARK(BM_FirstTensorOfLaterContext)
    ->UseManualTime()
    ->Repetitions(kRepetitions)
    ->Iterations(50)
    ->ReportAggregatesOnly()
    ->Unit(benchmark::kMillisecond);

/// Private bytes of a process, from the kernel's account of its mappings.
double PrivateBytes(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/smaps_rollup");
  double kib = 0;
  for (std::string word; file >> word;) {
    double value = 0;
    if ((word == "Private_Clean:" || word == "Private_Dirty:") && file >> value) kib += value;
  }
  return kib * 1024;
}

void BM_IdleSessionMemory(benchmark::State& state) {
  auto daemon = testing::DaemonProcess::Start({.simulate = "8GiB"});
  if (!daemon.ok()) {
    state.SkipWithError("lgpud does not start");
    return;
  }
  ContextOptions options;
  options.endpoint = (*daemon)->dir();
  options.logical_devices = {{.memory_limit = 64_MiB}};
  (void)OpenLease(options,
                  Contents::kBlocksOfCaller);  // the daemon's growth for its very first lease is not counted
  const double before = PrivateBytes((*daemon)->pid());
  std::vector<std::unique_ptr<Lease>> leases;
  for (auto _ : state) {
    for (int i = 0; i < kIdleSessions; ++i) {
      absl::StatusOr<std::unique_ptr<Lease>> lease = OpenLease(options, Contents::kBlocksOfCaller);
      if (!lease.ok()) {
        state.SkipWithError(lease.status().ToString().c_str());
        return;
      }
      leases.push_back(*std::move(lease));
    }
  }
  state.counters["private_bytes_per_session"] = (PrivateBytes((*daemon)->pid()) - before) / kIdleSessions;
  for (const std::unique_ptr<Lease>& lease : leases) (void)lease->Close();
}
BENCHMARK(BM_IdleSessionMemory)->UseRealTime()->Iterations(1)->Unit(benchmark::kMillisecond);

void BM_ManyProcessesAtOnce(benchmark::State& state) {
  auto daemon = testing::DaemonProcess::Start({.simulate = "16GiB"});
  if (!daemon.ok()) {
    state.SkipWithError("lgpud does not start");
    return;
  }
  int succeeded = 0;
  for (auto _ : state) {
    std::vector<SpawnedProcess> children;
    for (int i = 0; i < kProcesses; ++i) {
      auto child = SpawnedProcess::Start({.argv = {"/proc/self/exe", "--child", (*daemon)->dir()}});
      if (child.ok()) children.push_back(*std::move(child));
    }
    for (SpawnedProcess& child : children) succeeded += child.Wait() == 0 ? 1 : 0;
  }
  state.counters["processes"] = kProcesses;
  state.counters["succeeded"] = succeeded;
}
BENCHMARK(BM_ManyProcessesAtOnce)->UseRealTime()->Iterations(1)->Unit(benchmark::kMillisecond);

int RunChild(const std::string& directory) {
  absl::StatusOr<Client> client = StartClient(directory);
  const absl::Status status = client.ok() ? End(*client) : client.status();
  if (!status.ok()) std::fprintf(stderr, "%s\n", status.ToString().c_str());
  return status.ok() ? 0 : 1;
}

int RunFirstTensor(const std::string& directory) {
  const FirstTensor first = MakeFirstTensor(directory);
  if (first.tensor.ok()) {
    std::printf("%.9f\n", first.seconds.count());
  } else {
    std::fprintf(stderr, "%s\n", first.tensor.status().ToString().c_str());
  }
  return first.tensor.ok() ? 0 : 1;
}

}  // namespace
}  // namespace lgpu

int main(int argc, char** argv) {
  if (argc == 3 && std::string(argv[1]) == "--child") return lgpu::RunChild(argv[2]);
  if (argc == 3 && std::string(argv[1]) == "--first-tensor") return lgpu::RunFirstTensor(argv[2]);
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
