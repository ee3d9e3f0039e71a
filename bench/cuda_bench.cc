// Measures lgpu on a real GPU, each row beside the bare calls of the driver in the same run: the first tensor
// of a running process, growth by 1 GiB, a pool hit, copies over memory of grants, and how soon the next
// program gets the memory of a killed one. Without a GPU every benchmark is skipped and says why; on the fake
// driver the figures mean nothing.

#include <benchmark/benchmark.h>
#include <dlfcn.h>
#include <signal.h>

#include <chrono>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "allocator/device/cuda/cuda_driver.h"
#include "client/runtime/open_lease.h"
#include "lgpu/lgpu.h"
#include "lgpu/pool.h"
#include "tests/support/daemon_process.h"

namespace lgpu {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::size_t kMiB = std::size_t{1} << 20;

/// A daemon on the machine's GPUs, and a lease on the first one.
struct World {
  std::unique_ptr<testing::DaemonProcess> daemon;
  std::unique_ptr<Lease> lease;
  std::unique_ptr<Pool> pool;
  StreamHandle stream;

  ~World() {
    pool.reset();
    if (lease != nullptr) (void)lease->Close();
  }
};

std::unique_ptr<World> Start(benchmark::State& state) {
  auto world = std::make_unique<World>();
  auto daemon = testing::DaemonProcess::Start({.simulate = ""});
  if (!daemon.ok()) {
    state.SkipWithError("lgpud serves no GPU here");
    return nullptr;
  }
  world->daemon = *std::move(daemon);
  ContextOptions options;
  options.endpoint = world->daemon->dir();
  absl::StatusOr<std::unique_ptr<Lease>> lease = OpenLease(options, Contents::kBlocksOfCaller);
  if (!lease.ok()) {
    state.SkipWithError(std::string(lease.status().message()).c_str());
    return nullptr;
  }
  world->lease = *std::move(lease);
  world->pool = std::make_unique<Pool>(world->lease->TakeSource(0), PoolOptions());
  const auto stream = world->lease->backend().CreateStream(world->lease->devices()[0].backend_device, 0);
  if (stream.ok()) world->stream = *stream;
  return world;
}

/// The driver's own memory: cuMemAlloc, which lgpu never calls.
class Bare {
 public:
  bool Start(benchmark::State& state) {
    const absl::StatusOr<CudaDriver> driver = CudaDriver::Open();
    if (!driver.ok()) {
      state.SkipWithError("no CUDA driver");
      return false;
    }
    cu_ = *driver;
    void* const library = ::dlopen("libcuda.so.1", RTLD_NOW);
    allocate = reinterpret_cast<PFN_cuMemAlloc_v3020>(::dlsym(library, "cuMemAlloc_v2"));
    release = reinterpret_cast<PFN_cuMemFree_v3020>(::dlsym(library, "cuMemFree_v2"));
    if (allocate == nullptr || release == nullptr) {
      state.SkipWithError("this driver has no cuMemAlloc");
      return false;
    }
    return cu_.DevicePrimaryCtxRetain(&context_, 0) == CUDA_SUCCESS &&
           cu_.CtxPushCurrent(context_) == CUDA_SUCCESS &&
           cu_.StreamCreateWithPriority(&stream, CU_STREAM_NON_BLOCKING, 0) == CUDA_SUCCESS;
  }
  ~Bare() {
    if (stream != nullptr) cu_.StreamDestroy(stream);
    CUcontext popped = nullptr;
    if (context_ != nullptr) {
      cu_.CtxPopCurrent(&popped);
      cu_.DevicePrimaryCtxRelease(0);
    }
  }
  const CudaDriver& cu() const { return cu_; }
  PFN_cuMemAlloc_v3020 allocate = nullptr;
  PFN_cuMemFree_v3020 release = nullptr;
  CUstream stream = nullptr;

 private:
  CudaDriver cu_;
  CUcontext context_ = nullptr;
};

void BM_FirstTensor2MiB(benchmark::State& state) {
  const auto world = Start(state);
  if (world == nullptr) return;
  for (auto _ : state) {
    const absl::StatusOr<Block> block = world->pool->Allocate(2_MiB, {});
    if (!block.ok()) {
      state.SkipWithError(std::string(block.status().message()).c_str());
      return;
    }
    state.PauseTiming();
    (void)world->pool->Free(*block);
    (void)world->pool->Trim(Bytes(~std::uint64_t{0}));
    state.ResumeTiming();
  }
}
BENCHMARK(BM_FirstTensor2MiB)->UseRealTime()->Iterations(50);

void BM_BareAllocation(benchmark::State& state) {
  Bare bare;
  if (!bare.Start(state)) return;
  const auto bytes = static_cast<std::size_t>(state.range(0)) * kMiB;
  for (auto _ : state) {
    CUdeviceptr address = 0;
    if (bare.allocate(&address, bytes) != CUDA_SUCCESS) {
      state.SkipWithError("cuMemAlloc failed");
      return;
    }
    state.PauseTiming();
    bare.release(address);
    state.ResumeTiming();
  }
}
BENCHMARK(BM_BareAllocation)->Arg(2)->Arg(1024)->UseRealTime()->Iterations(20);

void BM_GrowthBy1GiB(benchmark::State& state) {
  const auto world = Start(state);
  if (world == nullptr) return;
  for (auto _ : state) {
    const absl::StatusOr<Block> block = world->pool->Allocate(1_GiB, {});
    if (!block.ok()) {
      state.SkipWithError(std::string(block.status().message()).c_str());
      return;
    }
    state.PauseTiming();
    (void)world->pool->Free(*block);
    (void)world->pool->Trim(Bytes(~std::uint64_t{0}));
    state.ResumeTiming();
  }
}
BENCHMARK(BM_GrowthBy1GiB)->UseRealTime()->Iterations(10);

void BM_PoolHit(benchmark::State& state) {
  const auto world = Start(state);
  if (world == nullptr) return;
  const absl::StatusOr<Block> first = world->pool->Allocate(2_MiB, {});
  if (!first.ok() || !world->pool->Free(*first).ok()) {
    state.SkipWithError("no memory");
    return;
  }
  for (auto _ : state) {
    const absl::StatusOr<Block> block = world->pool->Allocate(2_MiB, {});
    benchmark::DoNotOptimize(block);
    (void)world->pool->Free(*block);
  }
}
BENCHMARK(BM_PoolHit)->UseRealTime();

void BM_CopyOverGrants(benchmark::State& state) {
  const auto world = Start(state);
  if (world == nullptr) return;
  const Bytes bytes = 256_MiB;
  const absl::StatusOr<Block> from = world->pool->Allocate(bytes, {});
  const absl::StatusOr<Block> to = world->pool->Allocate(bytes, {});
  if (!from.ok() || !to.ok()) {
    state.SkipWithError("no memory");
    return;
  }
  DeviceBackend& backend = world->lease->backend();
  for (auto _ : state) {
    (void)backend.CopyOnDevice(world->stream, to->address, from->address, bytes);
    const absl::StatusOr<Fence> fence = backend.Record(world->stream);
    if (!fence.ok() || !backend.Wait(*fence).ok()) {
      state.SkipWithError("the copy failed");
      break;
    }
  }
  state.SetBytesProcessed(static_cast<std::int64_t>(state.iterations() * bytes.count()));
  (void)world->pool->Free(*from);
  (void)world->pool->Free(*to);
}
BENCHMARK(BM_CopyOverGrants)->UseRealTime()->MinTime(0.5);

void BM_BareCopy(benchmark::State& state) {
  Bare bare;
  if (!bare.Start(state)) return;
  const std::size_t bytes = 256 * kMiB;
  CUdeviceptr from = 0;
  CUdeviceptr to = 0;
  if (bare.allocate(&from, bytes) != CUDA_SUCCESS || bare.allocate(&to, bytes) != CUDA_SUCCESS) {
    state.SkipWithError("cuMemAlloc failed");
    return;
  }
  for (auto _ : state) {
    bare.cu().MemcpyDtoDAsync(to, from, bytes, bare.stream);
    bare.cu().StreamSynchronize(bare.stream);
  }
  state.SetBytesProcessed(static_cast<std::int64_t>(state.iterations() * bytes));
  bare.release(from);
  bare.release(to);
}
BENCHMARK(BM_BareCopy)->UseRealTime()->MinTime(0.5);

}  // namespace
}  // namespace lgpu

BENCHMARK_MAIN();
