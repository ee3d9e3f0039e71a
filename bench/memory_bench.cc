// Measures an allocation and its free through LogicalMemory, by block and by address. Beside it, in the same
// run, the Pool below it, and an allocator such as programs write themselves: free lists by size and a map of
// live blocks, under a mutex.

#include <benchmark/benchmark.h>

#include <cstdlib>
#include <map>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "allocator/device/simulated/simulated_backend.h"
#include "client/session/device_pool.h"
#include "client/session/local_lease.h"
#include "client/session/memory_session.h"
#include "lgpu/memory.h"

namespace lgpu {
namespace {

constexpr Bytes kLimit = 512_MiB;

class FreeLists {
 public:
  std::byte* Allocate(std::size_t bytes) {
    const std::lock_guard lock(mutex_);
    std::vector<std::byte*>& free = free_[bytes];
    std::byte* address = next_;
    if (free.empty()) {
      next_ += bytes;
    } else {
      address = free.back();
      free.pop_back();
    }
    live_.emplace(address, bytes);
    return address;
  }
  void Free(std::byte* address) {
    const std::lock_guard lock(mutex_);
    const auto found = live_.find(address);
    free_[found->second].push_back(address);
    live_.erase(found);
  }

 private:
  std::mutex mutex_;
  std::byte* next_ = reinterpret_cast<std::byte*>(std::uintptr_t{1} << 44);
  std::map<std::size_t, std::vector<std::byte*>> free_;
  std::unordered_map<std::byte*, std::size_t> live_;
};

/// A DevicePool, as a Context has it.
class OnePool {
 public:
  OnePool() {
    auto backend = MakeSimulatedBackend({.devices = {SimulatedDevice(0, 1_GiB, "bench")}});
    const std::string uuid = backend->devices()[0].uuid;
    auto lease = LocalLease::Open(std::move(backend), "bench", {{.cards = {uuid}, .limit = kLimit}});
    if (!lease.ok()) std::abort();
    session_ = std::make_unique<MemorySession>(*std::move(lease));
    if (!session_->memory(0).AddStream(*session_->lease().backend().CreateStream(0, 0)).ok()) std::abort();
    session_->StartUpkeep();
  }
  DevicePool& pool() { return session_->memory(0); }

 private:
  std::unique_ptr<MemorySession> session_;
};

LogicalMemory MustOpen() {
  absl::StatusOr<LogicalMemory> opened =
      LogicalMemory::Open({.memory_limit = kLimit, .endpoint = "local:1x1GiB"});
  if (!opened.ok()) std::abort();
  return *std::move(opened);
}

const LogicalMemory& Memory() {
  static const LogicalMemory memory = MustOpen();
  return memory;
}

void BM_FreeLists(benchmark::State& state) {
  static FreeLists lists;
  for (auto _ : state) lists.Free(lists.Allocate(static_cast<std::size_t>(state.range(0))));
}

void BM_DevicePool(benchmark::State& state) {
  static OnePool one;
  const Bytes bytes(static_cast<std::uint64_t>(state.range(0)));
  for (auto _ : state) {
    const absl::StatusOr<Block> block = one.pool().Allocate(bytes);
    if (!block.ok() || !one.pool().Free(*block, bytes).ok()) std::abort();
  }
}

void BM_LogicalMemory(benchmark::State& state) {
  const Bytes bytes(static_cast<std::uint64_t>(state.range(0)));
  for (auto _ : state) {
    const absl::StatusOr<Block> block = Memory().Allocate(bytes);
    if (!block.ok() || !Memory().Free(*block, nullptr).ok()) std::abort();
  }
}

// The fourth stream: neither the first of the memory nor one whose number is never looked up.
void BM_LogicalMemoryOtherStream(benchmark::State& state) {
  const Bytes bytes(static_cast<std::uint64_t>(state.range(0)));
  void* stream = nullptr;
  for (std::uintptr_t i = 0; i < 4; ++i) {
    stream = reinterpret_cast<void*>(i * 64);
    if (!Memory().Free(*Memory().Allocate(bytes, {.stream = stream}), stream).ok()) std::abort();
  }
  for (auto _ : state) {
    const absl::StatusOr<Block> block = Memory().Allocate(bytes, {.stream = stream});
    if (!block.ok() || !Memory().Free(*block, stream).ok()) std::abort();
  }
}

// In a memory of its own: the first look-up makes an index of all blocks, which every later call keeps.
void BM_LogicalMemoryByAddress(benchmark::State& state) {
  static const LogicalMemory memory = MustOpen();
  const Bytes bytes(static_cast<std::uint64_t>(state.range(0)));
  for (auto _ : state) {
    const absl::StatusOr<Block> block = memory.Allocate(bytes);
    if (!block.ok() || !memory.Free(static_cast<void*>(block->address), nullptr).ok()) std::abort();
  }
}

constexpr std::int64_t kSmall = 4096;
constexpr std::int64_t kLarge = 1 << 20;
BENCHMARK(BM_FreeLists)->Arg(kSmall)->Arg(kLarge)->Threads(1)->Threads(2)->UseRealTime();
BENCHMARK(BM_DevicePool)->Arg(kSmall)->Arg(kLarge)->Threads(1)->Threads(2)->UseRealTime();
BENCHMARK(BM_LogicalMemory)->Arg(kSmall)->Arg(kLarge)->Threads(1)->Threads(2)->UseRealTime();
BENCHMARK(BM_LogicalMemoryOtherStream)->Arg(kSmall)->Arg(kLarge)->Threads(1)->UseRealTime();
BENCHMARK(BM_LogicalMemoryByAddress)->Arg(kSmall)->Arg(kLarge)->Threads(1)->UseRealTime();

}  // namespace
}  // namespace lgpu

BENCHMARK_MAIN();
