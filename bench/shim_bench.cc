// What the shim in front of the CUDA driver costs a program, beside the driver itself, in one run: the fake
// driver, whose own work is the same on both sides. It starts a daemon on a fake machine and itself again by
// `lgpu run`.

#include <benchmark/benchmark.h>
#include <dlfcn.h>
#include <sys/socket.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/spawn.h"
#include "base/unique_fd.h"
#include "client/driver/cuda_abi.h"
#include "tests/fake_cuda/fake_machine.h"
#include "tests/support/daemon_process.h"

namespace lgpu {
namespace {

using shim::DevicePtr;
using shim::Result;

constexpr char kInside[] = "--inside";
constexpr std::size_t kMiB = std::size_t{1} << 20;
constexpr int kProcesses = 200;

/// The calls of one library: the shim's, or the driver's behind it.
struct Driver {
  Result (*alloc)(DevicePtr*, std::size_t) = nullptr;
  Result (*free)(DevicePtr) = nullptr;
  Result (*look_up)(const char*, void**, int, shim::Flags64) = nullptr;
  Result (*unchanged)(shim::Context*) = nullptr;  // one that the shim does not define

  explicit Driver(const char* name) {
    void* const library = ::dlopen(name, RTLD_NOW);
    Find(library, "cuMemAlloc_v2", alloc);
    Find(library, "cuMemFree_v2", free);
    Find(library, "cuGetProcAddress", look_up);
    Find(library, "cuCtxGetCurrent", unchanged);
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
void BM_AllocFree_Bare(benchmark::State& state) { AllocFree(state, Bare(), kMiB); }
void BM_AllocFree_Shim_InAllowance(benchmark::State& state) { AllocFree(state, Shim(), kMiB); }
// More than any allowance: the daemon is asked, and told of the free.
void BM_AllocFree_BareLarge(benchmark::State& state) { AllocFree(state, Bare(), 256 * kMiB); }
void BM_AllocFree_Shim_ByDaemon(benchmark::State& state) { AllocFree(state, Shim(), 256 * kMiB); }

// 64 bytes each way between two threads: the least that a question to another process could cost.
void BM_PingPong_Bare(benchmark::State& state) {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) std::abort();
  const UniqueFd here(ends[0]), there(ends[1]);
  std::thread echo([&there] {
    char bytes[64];
    while (::recv(there.get(), bytes, sizeof(bytes), 0) > 0)
      ::send(there.get(), bytes, sizeof(bytes), MSG_NOSIGNAL);
  });
  char bytes[64] = {};
  for (auto _ : state) {
    ::send(here.get(), bytes, sizeof(bytes), MSG_NOSIGNAL);
    ::recv(here.get(), bytes, sizeof(bytes), 0);
  }
  ::shutdown(here.get(), SHUT_RDWR);
  echo.join();
}

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

BENCHMARK(BM_AllocFree_Bare);
BENCHMARK(BM_AllocFree_Shim_InAllowance);
BENCHMARK(BM_AllocFree_BareLarge);
BENCHMARK(BM_AllocFree_Shim_ByDaemon);
BENCHMARK(BM_PingPong_Bare);
BENCHMARK(BM_LookUp_Bare);
BENCHMARK(BM_LookUp_Shim);
BENCHMARK(BM_Unchanged_Bare);
BENCHMARK(BM_Unchanged_Shim);

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
  if (init(0) != shim::kSuccess || retain(&context, 0) != shim::kSuccess || push(context) != shim::kSuccess)
    return 1;
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
  for (std::size_t at = 0; started.ok() && (at = started->out.find("ok\n", at)) != std::string::npos; ++at)
    ++ok;
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
  if (argc > 1 && std::strcmp(argv[1], lgpu::kInside) == 0) {
    argv[1] = argv[0];
    return lgpu::Inside(argc - 1, argv + 1);
  }
  return lgpu::Outside(argc, argv);
}
