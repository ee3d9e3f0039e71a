// Measures the shim in front of the CUDA driver beside the driver itself, in one run. The driver is the fake
// one, whose own work is the same on both sides. The program starts a daemon on a fake machine and itself
// again by `lgpu run`. `cores` says where this program and its daemon, or the other end of a ping-pong, run:
// 1 both on one core, 2 on two.

#include <benchmark/benchmark.h>
#include <dlfcn.h>
#include <sched.h>

#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "base/spawn.h"
#include "base/unique_fd.h"
#include "bench/bare_message.h"
#include "bench/peer_process.h"
#include "client/driver/cuda_abi.h"
#include "tests/fake_cuda/fake_machine.h"
#include "tests/support/daemon_process.h"

namespace lgpu {
namespace {

using shim::DevicePtr;
using shim::Result;

constexpr char kInside[] = "--inside";
// Variables for this program inside `lgpu run`.
constexpr char kDaemonPid[] = "LGPU_BENCH_DAEMON";
constexpr char kLibrariesBefore[] = "LGPU_BENCH_LD_LIBRARY_PATH";  // what was set outside
constexpr char kEcho[] = "echo";
constexpr std::size_t kSmall = std::size_t{4} << 10;  // shares a block of 2 MiB with others
constexpr std::size_t kMiB = std::size_t{1} << 20;
constexpr std::size_t kLarge = 128 * kMiB;  // more than any allowance
constexpr std::size_t kAtOnce = 24;         // fewer than the limit holds
constexpr int kProcesses = 200;

/// The calls of one library: the shim's, or the driver's behind it.
struct Driver {
  Result (*alloc)(DevicePtr*, std::size_t) = nullptr;
  Result (*free)(DevicePtr) = nullptr;
  Result (*info)(std::size_t*, std::size_t*) = nullptr;
  Result (*look_up)(const char*, void**, int, shim::Flags64) = nullptr;
  Result (*unchanged)(shim::Context*) = nullptr;  // one that the shim does not define
  Result (*used)(void*) = nullptr;                // one whose use is noted; the driver does nothing in it

  explicit Driver(const char* name) {
    void* const library = ::dlopen(name, RTLD_NOW);
    Find(library, "cuMemAlloc_v2", alloc);
    Find(library, "cuMemFree_v2", free);
    Find(library, "cuMemGetInfo_v2", info);
    Find(library, "cuGetProcAddress", look_up);
    Find(library, "cuCtxGetCurrent", unchanged);
    Find(library, "cuLaunch", used);
  }
  template <typename Call>
  static void Find(void* library, const char* symbol, Call& call) {
    call = reinterpret_cast<Call>(library == nullptr ? nullptr : ::dlsym(library, symbol));
    if (call != nullptr) return;
    std::fprintf(stderr, "%s: %s\n", symbol, ::dlerror());
    std::exit(1);
  }
};

Driver& Shim() {
  static Driver driver("libcuda.so.1");
  return driver;
}
Driver& Bare() {
  static Driver driver("liblgpu_real_cuda.so.1");
  return driver;
}

void AllocFree(benchmark::State& state, Driver& driver, std::size_t bytes) {
  for (auto _ : state) {
    DevicePtr address = 0;
    if (driver.alloc(&address, bytes) != shim::kSuccess) {
      state.SkipWithError("refused");
      return;
    }
    driver.free(address);
  }
}
void AllocFreeOfArgument(benchmark::State& state, Driver& driver) {
  AllocFree(state, driver, static_cast<std::size_t>(state.range(0)));
}
void BM_AllocFree_Bare(benchmark::State& state) { AllocFreeOfArgument(state, Bare()); }
void BM_AllocFree_Shim_InAllowance(benchmark::State& state) { AllocFreeOfArgument(state, Shim()); }

/// As long as it lives, this thread runs on the first CPU and the daemon, where there is one, on the first or
/// on the second.
class OnCores {
 public:
  explicit OnCores(benchmark::State& state) {
    (void)::sched_getaffinity(0, sizeof(before_), &before_);
    std::vector<int> cpus;
    for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
      if (CPU_ISSET(static_cast<std::size_t>(cpu), &before_)) cpus.push_back(cpu);
    }
    const auto wanted = static_cast<std::size_t>(state.range(0));
    if (cpus.size() < wanted) {
      state.SkipWithError("this needs two CPUs");
      return;
    }
    Pin(0, cpus[0]);
    const char* const daemon = std::getenv(kDaemonPid);
    std::error_code error;
    for (const auto& task : std::filesystem::directory_iterator(
             "/proc/" + std::string(daemon == nullptr ? "" : daemon) + "/task", error)) {
      Pin(std::atoi(task.path().filename().c_str()), cpus[wanted - 1]);
    }
  }
  ~OnCores() { (void)::sched_setaffinity(0, sizeof(before_), &before_); }
  OnCores(const OnCores&) = delete;
  OnCores& operator=(const OnCores&) = delete;

 private:
  static void Pin(pid_t thread, int cpu) {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(static_cast<std::size_t>(cpu), &set);
    (void)::sched_setaffinity(thread, sizeof(set), &set);
  }
  cpu_set_t before_;
};

// Allocations of more than any allowance, one after the other: each charge asks the daemon. The frees, of
// which the daemon is told without an answer, are not timed; the daemon has heard of them before the next
// round.
void Allocations(benchmark::State& state, Driver& driver) {
  const OnCores cores(state);
  std::array<DevicePtr, kAtOnce> addresses = {};
  for (auto _ : state) {
    bool ok = true;
    const auto before = std::chrono::steady_clock::now();
    for (DevicePtr& address : addresses) ok = ok && driver.alloc(&address, kLarge) == shim::kSuccess;
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - before;
    state.SetIterationTime(took.count() / kAtOnce);
    for (const DevicePtr address : addresses) driver.free(address);
    std::size_t free = 0, total = 0;
    driver.info(&free, &total);  // waits for the daemon
    if (!ok) {
      state.SkipWithError("refused");
      return;
    }
  }
}
void BM_Alloc_BareLarge(benchmark::State& state) { Allocations(state, Bare()); }
void BM_Alloc_Shim_ByDaemon(benchmark::State& state) { Allocations(state, Shim()); }

/// In a process of its own: answers each message until the other end is gone.
void Echo() {
  const UniqueFd socket(bench::PeerProcess::kSessionFd);
  UniqueFd none;
  while (bench::BareReceive(socket.get(), none) && bench::BareSend(socket.get(), -1)) {
  }
}

// One after the other: the free's message meets the next charge in the daemon.
void AllocFreeLarge(benchmark::State& state, Driver& driver) {
  const OnCores cores(state);
  AllocFree(state, driver, kLarge);
}
void BM_AllocFree_BareLarge(benchmark::State& state) { AllocFreeLarge(state, Bare()); }
void BM_AllocFree_Shim_ByDaemon(benchmark::State& state) { AllocFreeLarge(state, Shim()); }

// A message of 32 bytes to another process and one back: the least cost of a question to it.
void BM_PingPong_Bare(benchmark::State& state) {
  auto peer = bench::PeerProcess::Start(kEcho, static_cast<bench::Cores>(state.range(0)));
  if (!peer.ok()) {
    state.SkipWithError(peer.status().ToString().c_str());
    return;
  }
  const UniqueFd socket = (*peer)->TakeSession();
  UniqueFd none;
  for (auto _ : state) {
    if (!bench::BareSend(socket.get(), -1) || !bench::BareReceive(socket.get(), none)) {
      state.SkipWithError("the echo is gone");
      return;
    }
  }
}

// A program that is started and ends, with the environment of `lgpu run` and without it.
void Exec(benchmark::State& state, const SpawnOptions::Environment& environment) {
  const OnCores cores(state);
  const SpawnOptions options{.argv = {"/bin/true"}, .environment = environment};
  for (auto _ : state) {
    absl::StatusOr<SpawnedProcess> process = SpawnedProcess::Start(options);
    if (!process.ok() || process->Wait() != 0) {
      state.SkipWithError("/bin/true cannot be run");
      return;
    }
  }
}
void BM_Exec_Bare(benchmark::State& state) {
  const char* const before = std::getenv(kLibrariesBefore);
  Exec(state, {{"LD_PRELOAD", std::nullopt}, {"LD_LIBRARY_PATH", before == nullptr ? "" : before}});
}
void BM_Exec_Redirect(benchmark::State& state) { Exec(state, {}); }

void LookUp(benchmark::State& state, Driver& driver, const char* name) {
  void* found = nullptr;
  for (auto _ : state) benchmark::DoNotOptimize(driver.look_up(name, &found, 12000, 0));
}
void BM_LookUp_Bare(benchmark::State& state) { LookUp(state, Bare(), "cuLaunchKernel"); }
void BM_LookUp_Shim(benchmark::State& state) { LookUp(state, Shim(), "cuLaunchKernel"); }

void Unchanged(benchmark::State& state, Driver& driver) {
  shim::Context context = nullptr;
  for (auto _ : state) benchmark::DoNotOptimize(driver.unchanged(&context));
}
void BM_Unchanged_Bare(benchmark::State& state) { Unchanged(state, Bare()); }
void BM_Unchanged_Shim(benchmark::State& state) { Unchanged(state, Shim()); }

// A call that returns at once: what is measured is the way to it.
void Used(benchmark::State& state, Driver& driver) {
  for (auto _ : state) benchmark::DoNotOptimize(driver.used(nullptr));
}
void BM_Used_Bare(benchmark::State& state) { Used(state, Bare()); }
void BM_Used_Shim(benchmark::State& state) { Used(state, Shim()); }
/// By the address that a look-up answers, as the CUDA runtime calls.
void BM_Used_ShimLookedUp(benchmark::State& state) {
  void* found = nullptr;
  Shim().look_up("cuLaunch", &found, 12000, 0);
  const auto call = reinterpret_cast<Result (*)(void*)>(found);
  for (auto _ : state) benchmark::DoNotOptimize(call(nullptr));
}

BENCHMARK(BM_AllocFree_Bare)->ArgName("bytes")->Arg(kSmall)->Arg(kMiB);
BENCHMARK(BM_AllocFree_Shim_InAllowance)->ArgName("bytes")->Arg(kSmall)->Arg(kMiB);
BENCHMARK(BM_Alloc_BareLarge)->ArgName("cores")->Arg(1)->Arg(2)->UseManualTime();
BENCHMARK(BM_Alloc_Shim_ByDaemon)->ArgName("cores")->Arg(1)->Arg(2)->UseManualTime();
BENCHMARK(BM_AllocFree_BareLarge)->ArgName("cores")->Arg(1)->Arg(2)->UseRealTime();
BENCHMARK(BM_AllocFree_Shim_ByDaemon)->ArgName("cores")->Arg(1)->Arg(2)->UseRealTime();
BENCHMARK(BM_PingPong_Bare)->ArgName("cores")->Arg(1)->Arg(2)->UseRealTime();
BENCHMARK(BM_LookUp_Bare);
BENCHMARK(BM_LookUp_Shim);
BENCHMARK(BM_Unchanged_Bare);
BENCHMARK(BM_Unchanged_Shim);
BENCHMARK(BM_Used_Bare);
BENCHMARK(BM_Used_Shim);
BENCHMARK(BM_Used_ShimLookedUp);
BENCHMARK(BM_Exec_Bare)->ArgName("cores")->Arg(1)->UseRealTime();
BENCHMARK(BM_Exec_Redirect)->ArgName("cores")->Arg(1)->UseRealTime();

/// Inside `lgpu run`: the benchmarks.
int Inside(int argc, char** argv) {
  Result (*init)(unsigned) = nullptr;
  Result (*retain)(shim::Context*, shim::Device) = nullptr;
  Result (*push)(shim::Context) = nullptr;
  void* const library = ::dlopen("libcuda.so.1", RTLD_NOW);
  Driver::Find(library, "cuInit", init);
  Driver::Find(library, "cuDevicePrimaryCtxRetain", retain);
  Driver::Find(library, "cuCtxPushCurrent_v2", push);
  shim::Context context = nullptr;
  if (init(0) != shim::kSuccess || retain(&context, 0) != shim::kSuccess || push(context) != shim::kSuccess) {
    return 1;
  }
  // The first charge fills the allowance.
  DevicePtr address = 0;
  if (Shim().alloc(&address, kMiB) != shim::kSuccess) return 1;
  benchmark::Initialize(&argc, argv);
  benchmark::RunSpecifiedBenchmarks();
  Result (*release)(shim::Device) = nullptr;
  Driver::Find(library, "cuDevicePrimaryCtxRelease_v2", release);
  Shim().free(address);
  release(0);
  return 0;
}

/// The time in which so many processes of a new lease start, attach and end.
void StartMany(const std::vector<std::string>& run, const SpawnOptions::Environment& environment) {
  std::vector<std::string> command = run;
  const std::string script = "for i in $(seq " + std::to_string(kProcesses) +
                             "); do " LGPU_DRIVER_CLIENT " dlopen libcuda.so.1 </dev/null & done; wait";
  command.insert(command.end(), {"sh", "-c", script});
  const auto before = std::chrono::steady_clock::now();
  auto started = testing::RunProgram({.argv = command, .environment = environment});
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - before;
  std::size_t ok = 0;
  for (std::size_t at = 0; started.ok() && (at = started->out.find("ok\n", at)) != std::string::npos; ++at) {
    ++ok;
  }
  std::printf("%zu of %d processes started at once, in %.1f s\n", ok, kProcesses, took.count());
}

int Outside(int argc, char** argv) {
  fake_cuda::FakeMachine machine({{.total = Bytes(std::uint64_t{64} << 30), .context = 1_MiB}});
  const auto daemon = testing::DaemonProcess::Start({.simulate = "", .environment = machine.environment()});
  if (!daemon.ok()) {
    std::fprintf(stderr, "%s\n", std::string(daemon.status().message()).c_str());
    return 1;
  }
  SpawnOptions::Environment environment = machine.environment();
  environment["LGPU_ENDPOINT"] = (*daemon)->dir();
  environment[kDaemonPid] = std::to_string((*daemon)->pid());
  environment[kLibrariesBefore] = environment["LD_LIBRARY_PATH"];
  const std::vector<std::string> run = {testing::DaemonProcess::LgpuPath(), "run", "-q", "-m", "4GiB", "--"};
  std::vector<std::string> inside = run;
  inside.insert(inside.end(), {argv[0], kInside});
  inside.insert(inside.end(), argv + 1, argv + argc);
  absl::StatusOr<SpawnedProcess> bench = SpawnedProcess::Start({.argv = inside, .environment = environment});
  const int code = bench.ok() ? bench->Wait() : 1;
  if (code == 0) StartMany(run, environment);
  return code;
}

}  // namespace
}  // namespace lgpu

int main(int argc, char** argv) {
  if (argc > 1 && argv[1] == std::string("--peer=") + lgpu::kEcho) {
    lgpu::Echo();
    return 0;
  }
  if (argc > 1 && std::strcmp(argv[1], lgpu::kInside) == 0) {
    argv[1] = argv[0];
    return lgpu::Inside(argc - 1, argv + 1);
  }
  return lgpu::Outside(argc, argv);
}
