// Measures the whole Pool: lock, front cache, statistics. Beside it, in the same run, the sub-allocator
// without lock, an uncontended lock, and, for the rows with threads, plain arithmetic, which shows the
// machine's rate for that many threads at that moment.

#include <benchmark/benchmark.h>
#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <chrono>
#include <cmath>
#include <cstring>
#include <memory>
#include <mutex>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "allocator/suballocator.h"
#include "lgpu/pool.h"

namespace lgpu {
namespace {

// Addresses out of nothing: no chunk is ever touched.
class BumpSource final : public RegionSource {
 public:
  explicit BumpSource(Bytes limit) : limit_(limit) {}
  std::byte* base() const override { return reinterpret_cast<std::byte*>(std::uintptr_t{1} << 44); }
  Bytes reserved() const override { return limit_ * 4; }
  Bytes granularity() const override { return 2_MiB; }
  Bytes limit() const override { return limit_; }
  absl::StatusOr<std::vector<Chunk>> Grow(const GrowRequest& request) override {
    std::vector<Chunk> chunks;
    for (Bytes left = request.at_least; !left.is_zero(); left -= 2_MiB) {
      chunks.push_back({ChunkId{++next_}, 2_MiB});
    }
    return chunks;
  }
  absl::Status Map(std::span<const ChunkPlacement>) override { return absl::OkStatus(); }
  absl::Status Unmap(std::span<const ChunkId>) override { return absl::OkStatus(); }
  absl::Status Return(std::span<const ChunkId>) override { return absl::OkStatus(); }

 private:
  const Bytes limit_;
  std::atomic<std::uint64_t> next_{0};
};

struct Workload {
  std::size_t live;
  double smallest;
  double largest;
  Bytes limit;
};
const Workload kA{100'000, 256, 1 << 20, 64_GiB};
const Workload kB{20'000, 256, 64 << 20, 160_GiB};
const Workload kD{1'000, 512, 64 << 10, 1_GiB};

// Sizes whose logarithms are evenly spread, made beforehand: so many that every block has its turn before
// they come again.
class Sizes {
 public:
  Sizes(const Workload& workload, unsigned seed)
      : random_(seed),
        sizes_(std::bit_ceil(8 * std::max<std::size_t>(workload.live, 8'000))),
        victims_(sizes_.size()) {
    std::uniform_real_distribution<double> logs(std::log(workload.smallest), std::log(workload.largest));
    for (std::size_t i = 0; i < sizes_.size(); ++i) {
      sizes_[i] = static_cast<std::uint64_t>(std::exp(logs(random_)));
      victims_[i] = static_cast<std::uint32_t>(random_() % workload.live);
    }
  }
  Bytes size() const { return Bytes(sizes_[at_]); }
  std::uint32_t victim() const { return victims_[at_]; }
  void Next() { at_ = (at_ + 1) & (sizes_.size() - 1); }

 private:
  std::mt19937_64 random_;
  std::vector<std::uint64_t> sizes_;
  std::vector<std::uint32_t> victims_;
  std::size_t at_ = 0;
};

std::unique_ptr<Pool> MakePool(Bytes limit) {
  return std::make_unique<Pool>(std::make_unique<BumpSource>(limit), PoolOptions{});
}

// Frees a random block and allocates another one; the blocks of one thread.
class Churn {
 public:
  Churn(Pool& pool, const Workload& workload, unsigned seed)
      : pool_(pool), sizes_(workload, seed), live_(workload.live) {
    for (Block& block : live_) {
      block = *pool_.Allocate(sizes_.size());
      sizes_.Next();
    }
    for (std::size_t i = 0; i < 4 * workload.live; ++i) Step();
  }
  ~Churn() {
    for (const Block& block : live_) pool_.Free(block).IgnoreError();
  }
  void Step() {
    Block& block = live_[sizes_.victim()];
    benchmark::DoNotOptimize(pool_.Free(block));
    block = *pool_.Allocate(sizes_.size());
    sizes_.Next();
  }
  // By address, for callers that keep no handle.
  void StepByAddress() {
    Block& block = live_[sizes_.victim()];
    benchmark::DoNotOptimize(pool_.Free(static_cast<const void*>(block.address)));
    block = *pool_.Allocate(sizes_.size());
    sizes_.Next();
  }

 private:
  Pool& pool_;
  Sizes sizes_;
  std::vector<Block> live_;
};

void BM_Pool(benchmark::State& state, const Workload& workload) {
  const auto pool = MakePool(workload.limit);
  Churn churn(*pool, workload, 1);
  const MemoryStats before = pool->stats();
  for (auto _ : state) churn.Step();
  const MemoryStats after = pool->stats();
  state.counters["hits"] = static_cast<double>(after.cache_hits - before.cache_hits) /
                           static_cast<double>(after.num_allocs - before.num_allocs);
}
BENCHMARK_CAPTURE(BM_Pool, A, kA);
BENCHMARK_CAPTURE(BM_Pool, B, kB);
BENCHMARK_CAPTURE(BM_Pool, D, kD);

void BM_PoolByAddress(benchmark::State& state, const Workload& workload) {
  const auto pool = MakePool(workload.limit);
  Churn churn(*pool, workload, 1);
  for (auto _ : state) churn.StepByAddress();
}
BENCHMARK_CAPTURE(BM_PoolByAddress, A, kA);
BENCHMARK_CAPTURE(BM_PoolByAddress, D, kD);

// A block, in new pages where the mapped ones have no place: as the pool does where the limit allows it.
Suballocator::Handle Place(Suballocator& blocks, Bytes bytes) {
  if (const auto handle = blocks.Allocate({.bytes = bytes}, Suballocator::Effort::kQuick)) return *handle;
  if (const auto handle = blocks.Allocate({.bytes = bytes}, Suballocator::Effort::kExhaustive)) {
    return *handle;
  }
  const auto placement = blocks.PlanGrowth({.bytes = bytes}, {});
  std::vector<Suballocator::Range> pages;
  for (const Suballocator::Run& run : blocks.UnmappedRuns(*placement)) {
    for (Bytes at; at < run.pages.bytes; at += 2_MiB) pages.push_back({run.pages.offset + at, 2_MiB});
  }
  const Suballocator::Range all{pages.front().offset, pages.back().end() - pages.front().offset};
  return blocks.Commit(blocks.ClaimGrowth({.bytes = bytes}, *placement, all), pages);
}

// The same without lock, cache, entries and statistics.
void BM_Core(benchmark::State& state, const Workload& workload) {
  const auto pool = std::make_unique<Suballocator>(workload.limit * 4, 2_MiB);
  Sizes sizes(workload, 1);
  std::vector<Suballocator::Handle> live(workload.live);
  for (Suballocator::Handle& handle : live) {
    handle = Place(*pool, sizes.size());
    sizes.Next();
  }
  const auto step = [&] {
    Suballocator::Handle& handle = live[sizes.victim()];
    pool->Free(handle, 1);
    handle = Place(*pool, sizes.size());
    sizes.Next();
  };
  for (std::size_t i = 0; i < 4 * workload.live; ++i) step();
  for (auto _ : state) step();
}
BENCHMARK_CAPTURE(BM_Core, A, kA);
BENCHMARK_CAPTURE(BM_Core, B, kB);
BENCHMARK_CAPTURE(BM_Core, D, kD);

void BM_UncontendedLock(benchmark::State& state) {
  std::mutex mutex;
  for (auto _ : state) {
    mutex.lock();
    benchmark::ClobberMemory();
    mutex.unlock();
  }
}
BENCHMARK(BM_UncontendedLock);

// Single operations, timed one by one; the clock's own time is in all of them.
void BM_PoolTail(benchmark::State& state, const Workload& workload) {
  const auto pool = MakePool(workload.limit);
  Churn churn(*pool, workload, 1);
  std::vector<double> nanoseconds;
  nanoseconds.reserve(1 << 22);
  for (auto _ : state) {
    const auto start = std::chrono::steady_clock::now();
    churn.Step();
    const auto end = std::chrono::steady_clock::now();
    if (nanoseconds.size() < nanoseconds.capacity()) {
      nanoseconds.push_back(std::chrono::duration<double, std::nano>(end - start).count());
    }
  }
  std::sort(nanoseconds.begin(), nanoseconds.end());
  const auto at = [&](double part) {
    return nanoseconds[static_cast<std::size_t>(part * static_cast<double>(nanoseconds.size() - 1))];
  };
  state.counters["p50"] = at(0.5);
  state.counters["p99.9"] = at(0.999);
  state.counters["max"] = at(1);
}
BENCHMARK_CAPTURE(BM_PoolTail, A, kA);

// How often the scheduler took the processor from this thread for another one.
std::int64_t Preemptions() {
  rusage usage{};
  getrusage(RUSAGE_THREAD, &usage);
  return usage.ru_nivcsw;
}

// How long a thread that allocates waits for a snapshot of so many blocks: its longest operation while one is
// taken, beside its longest in as much time without a snapshot, and beside one copy of the blocks' nodes.
void BM_SnapshotStop(benchmark::State& state) {
  const auto count = static_cast<std::size_t>(state.range(0));
  const auto pool = MakePool(4_GiB);
  std::vector<Block> live(count);
  for (std::size_t i = 0; i < count; ++i) live[i] = *pool->Allocate(Bytes(512 + i % 7 * 512));
  std::atomic<std::int64_t> longest{0};
  std::atomic<std::uint64_t> operations{0};
  std::atomic<bool> done{false};
  std::thread allocating([&] {
    std::int64_t preemptions = Preemptions();
    while (!done) {
      const auto start = std::chrono::steady_clock::now();
      benchmark::DoNotOptimize(pool->Free(*pool->Allocate(1_MiB)));
      const std::int64_t took = (std::chrono::steady_clock::now() - start).count();
      if (took > longest.load()) {
        // An operation during which the scheduler ran another thread says nothing about the pool.
        const std::int64_t now = Preemptions();
        longest = std::exchange(preemptions, now) == now ? took : longest.load();
      }
      ++operations;
    }
  });
  std::vector<std::byte> from(live.size() * 32);
  std::vector<std::byte> to(from.size());
  std::vector<std::int64_t> stops;
  std::vector<std::int64_t> copies;
  std::vector<std::int64_t> quiet;
  // The operation that the snapshot held up may end after the snapshot.
  const auto wait_for_operation = [&operations] {
    const std::uint64_t seen = operations;
    while (operations < seen + 2) std::this_thread::yield();
  };
  for (auto _ : state) {
    longest = 0;
    const auto began = std::chrono::steady_clock::now();
    benchmark::DoNotOptimize(pool->Snapshot());
    const auto took = std::chrono::steady_clock::now() - began;
    wait_for_operation();
    stops.push_back(longest);
    longest = 0;
    std::this_thread::sleep_for(took);
    wait_for_operation();
    quiet.push_back(longest);
    const auto start = std::chrono::steady_clock::now();
    std::memcpy(to.data(), from.data(), from.size());
    benchmark::DoNotOptimize(to.data());
    copies.push_back((std::chrono::steady_clock::now() - start).count());
  }
  done = true;
  allocating.join();
  const auto median = [](std::vector<std::int64_t>& values) {
    std::sort(values.begin(), values.end());
    return static_cast<double>(values[values.size() / 2]) / 1000;
  };
  state.counters["stop us"] = median(stops);
  state.counters["most us"] = static_cast<double>(stops.back()) / 1000;
  state.counters["without us"] = median(quiet);
  state.counters["most without us"] = static_cast<double>(quiet.back()) / 1000;
  state.counters["copy us"] = median(copies);
}
BENCHMARK(BM_SnapshotStop)->Arg(100'000)->Arg(1'000'000)->UseRealTime()->Unit(benchmark::kMicrosecond);

// ---- threads: each has its own blocks of one pool

std::unique_ptr<Pool> shared_pool;

void BM_PoolThreads(benchmark::State& state) {
  if (state.thread_index() == 0) shared_pool = MakePool(16_GiB);
  std::unique_ptr<Churn> churn;
  for (auto _ : state) {
    if (churn == nullptr) {
      state.PauseTiming();
      churn = std::make_unique<Churn>(*shared_pool, kD, static_cast<unsigned>(state.thread_index()));
      state.ResumeTiming();
    }
    churn->Step();
  }
  churn.reset();
  if (state.thread_index() == 0) {
    const MemoryStats stats = shared_pool->stats();
    state.counters["hits"] = static_cast<double>(stats.cache_hits) / static_cast<double>(stats.num_allocs);
  }
  state.SetItemsProcessed(state.iterations());
}
BENCHMARK(BM_PoolThreads)->Threads(1)->Threads(2)->Threads(8)->UseRealTime();

// The baseline of the threads: they share nothing but the machine.
void BM_OwnPoolThreads(benchmark::State& state) {
  const std::unique_ptr<Pool> pool = MakePool(16_GiB);
  Churn churn(*pool, kD, static_cast<unsigned>(state.thread_index()));
  for (auto _ : state) churn.Step();
  state.SetItemsProcessed(state.iterations());
}
BENCHMARK(BM_OwnPoolThreads)->Threads(1)->Threads(2)->Threads(8)->UseRealTime();

void BM_ArithmeticThreads(benchmark::State& state) {
  std::uint64_t x = static_cast<std::uint64_t>(state.thread_index()) + 1;
  for (auto _ : state) {
    for (int i = 0; i < 16; ++i) {
      x ^= x << 13;
      x ^= x >> 7;
      x ^= x << 17;
    }
    benchmark::DoNotOptimize(x);
  }
  state.SetItemsProcessed(state.iterations());
}
BENCHMARK(BM_ArithmeticThreads)->Threads(1)->Threads(2)->Threads(8)->UseRealTime();

}  // namespace
}  // namespace lgpu

BENCHMARK_MAIN();
