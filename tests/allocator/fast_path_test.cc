// The shape of the fast path, without any clock: a steady operation takes no heap, calls neither its source
// nor the system, and writes to few nodes.

#include <gtest/gtest.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <barrier>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <random>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "allocator/suballocator.h"
#include "lgpu/pool.h"
#include "tests/support/sanitizers.h"

// Sanitizers have a heap of their own, and call the kernel when they like.

namespace {

std::atomic<std::uint64_t> heap_calls{0};

}  // namespace

#if !LGPU_TEST_ASAN && !LGPU_TEST_TSAN
[[gnu::noinline]] void* operator new(std::size_t bytes) {
  heap_calls.fetch_add(1, std::memory_order_relaxed);
  if (void* const memory = std::malloc(bytes)) return memory;
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
#endif

namespace lgpu {
namespace {

// Addresses that no code touches; counts its calls.
class CountingSource final : public RegionSource {
 public:
  std::byte* base() const override { return reinterpret_cast<std::byte*>(std::uintptr_t{1} << 44); }
  Bytes reserved() const override { return 64_GiB; }
  Bytes granularity() const override { return 2_MiB; }
  Bytes limit() const override { return 8_GiB; }
  absl::StatusOr<std::vector<Chunk>> Grow(const GrowRequest& request) override {
    ++calls_;
    std::vector<Chunk> chunks;
    for (Bytes left = request.at_least; !left.is_zero(); left -= 2_MiB) {
      chunks.push_back({ChunkId{++next_}, 2_MiB});
    }
    return chunks;
  }
  absl::Status Map(std::span<const ChunkPlacement>) override { return Called(); }
  absl::Status Unmap(std::span<const ChunkId>) override { return Called(); }
  absl::Status Return(std::span<const ChunkId>) override { return Called(); }

  std::uint64_t calls() const { return calls_; }

 private:
  absl::Status Called() {
    ++calls_;
    return absl::OkStatus();
  }
  std::uint64_t calls_ = 0;
  std::uint64_t next_ = 0;
};

// A pool in its steady state: blocks of a few sizes, freed and allocated again, small and large, cached and
// not.
class Steady {
 public:
  explicit Steady(std::size_t blocks) : live_(blocks) {
    auto source = std::make_unique<CountingSource>();
    source_ = source.get();
    pool_ = std::make_unique<Pool>(std::move(source), PoolOptions{});
    for (std::size_t i = 0; i < live_.size(); ++i) live_[i] = *pool_->Allocate(SizeOf(i));
    Run(4 * blocks);
  }

  /// True if every operation succeeded.
  bool Run(std::size_t steps) {
    bool ok = true;
    for (std::size_t step = 0; step < steps; ++step) {
      // Two blocks of one size are free at a time, so that neither always gets the other's place.
      const std::size_t a = at_ % live_.size();
      const std::size_t b = (at_ + 4 * kSizes) % live_.size();
      at_ += 7;
      ok = ok && pool_->Free(live_[a]).ok() && pool_->Free(live_[b]).ok();
      for (const std::size_t i : {b, a}) {
        const absl::StatusOr<Block> block = pool_->Allocate(SizeOf(i));
        ok = ok && block.ok();
        live_[i] = block.ok() ? *block : Block{};
      }
    }
    return ok;
  }
  const CountingSource& source() const { return *source_; }
  Pool& pool() { return *pool_; }

 private:
  static constexpr std::size_t kSizes = 5;
  static Bytes SizeOf(std::size_t i) {
    constexpr Bytes kBytes[kSizes] = {Bytes(700), 9_KiB, 60_KiB, 300_KiB, 3_MiB};
    return kBytes[i % kSizes];
  }

  CountingSource* source_ = nullptr;
  std::unique_ptr<Pool> pool_;
  std::vector<Block> live_;
  std::size_t at_ = 0;
};

TEST(FastPathTest, SteadyOperationsTakeNoHeapAndAskTheSourceForNothing) {
  Steady steady(1000);
  const std::uint64_t heap = heap_calls;
  const std::uint64_t calls = steady.source().calls();
  const MemoryStats before = steady.pool().stats();
  EXPECT_TRUE(steady.Run(20'000));
  EXPECT_EQ(heap_calls, heap);
  EXPECT_EQ(steady.source().calls(), calls);
  const MemoryStats after = steady.pool().stats();
  EXPECT_EQ(after.num_allocs - before.num_allocs, 40'000u);
  EXPECT_GT(after.cache_hits, before.cache_hits) << "front caches were part of it";
  EXPECT_LT(after.cache_hits - before.cache_hits, 30'000u) << "and the sub-allocator as well";
}

TEST(FastPathTest, SteadyOperationsMakeNoSystemCall) {
#if LGPU_TEST_ASAN || LGPU_TEST_TSAN
  GTEST_SKIP() << "the sanitizer calls the kernel itself";
#endif
  const pid_t child = fork();
  if (child == 0) {
    Steady steady(1000);
    // From here on the kernel ends this process at any call but read, write and exit.
    if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT) != 0) _exit(77);
    const bool ok = steady.Run(20'000);
    syscall(SYS_exit, ok ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  if (WIFEXITED(status) && WEXITSTATUS(status) == 77) GTEST_SKIP() << "this kernel has no seccomp";
  EXPECT_FALSE(WIFSIGNALED(status)) << "killed by signal " << WTERMSIG(status) << ": a system call";
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
}

// The most nodes that an operation writes to.
struct Written {
  std::size_t allocate = 0;
  std::size_t free = 0;
};

Written MostWritten(std::size_t blocks, std::uint32_t homes, unsigned seed) {
  constexpr Bytes kPage = 2_MiB;
  Suballocator core(64_GiB, kPage);
  // All pages at once, in both halves that small blocks and large ones have.
  const Bytes small = core.small_zone();
  const auto map = [&](const Suballocator::Request& request) {
    const auto plan = core.PlanGrowth(request, {});
    std::vector<Suballocator::Range> pages;
    for (const Suballocator::Run& run : core.UnmappedRuns(*plan)) {
      for (Bytes at = run.pages.offset; at < run.pages.end(); at += kPage) pages.push_back({at, kPage});
    }
    const Suballocator::Range all{pages.front().offset, pages.back().end() - pages.front().offset};
    return core.Commit(core.ClaimGrowth(request, *plan, all), pages);
  };
  std::mt19937 random(seed);
  std::vector<Suballocator::Handle> live;
  while (live.size() < blocks) {
    const Suballocator::Request request{
        .bytes = Bytes(1 + random() % (live.size() % 4 == 0 ? 2'000'000 : 90'000)),
        .home = static_cast<std::uint32_t>(random() % homes)};
    const auto block = core.Allocate(request, Suballocator::Effort::kQuick);
    live.push_back(block ? *block : map(request));
  }
  EXPECT_GT(small, Bytes());

  const auto nodes = [&] { return reinterpret_cast<const std::byte*>(core.nodes().data()); };
  const auto copy = [&] {
    return std::vector<std::byte>(nodes(), nodes() + core.nodes().end() * sizeof(Node));
  };
  std::vector<std::byte> before;
  const auto changed = [&] {
    std::size_t count = 0;
    for (std::size_t i = 0; i < core.nodes().end(); ++i) {
      const bool is_new = (i + 1) * sizeof(Node) > before.size();
      count +=
          is_new || std::memcmp(nodes() + i * sizeof(Node), &before[i * sizeof(Node)], sizeof(Node)) != 0;
    }
    return count;
  };
  Written most;
  for (int i = 0; i < 400; ++i) {
    Suballocator::Handle& block = live[random() % live.size()];
    before = copy();
    core.Free(block, 1);
    most.free = std::max(most.free, changed());
    before = copy();
    const Suballocator::Request request{.bytes = Bytes(1 + random() % 90'000),
                                        .home = static_cast<std::uint32_t>(random() % homes)};
    const auto next = core.Allocate(request, Suballocator::Effort::kQuick);
    const std::size_t added = core.nodes().end() - before.size() / sizeof(Node);
    most.allocate = std::max(most.allocate, next ? changed() - added : 0);
    block = next ? *next : map(request);
  }
  EXPECT_TRUE(core.CheckInvariants().ok()) << core.CheckInvariants();
  return most;
}

TEST(FastPathTest, AnOperationWritesToAFewNodesHoweverManyThereAre) {
  for (const auto& [blocks, homes] : {std::pair(100u, 1u), {10'000u, 1u}, {10'000u, 3u}}) {
    const Written most = MostWritten(blocks, homes, 7);
    // The block, the range it comes from and the range before it; three neighbours of the range in the lists
    // of its old and new class; and slot 0, where lists end. Now and then a home gets nodes for many blocks.
    EXPECT_LE(most.allocate, 7u) << blocks;
    // The block, its two neighbours and the one behind them; two beside each that was in a class, the head
    // of the new one; slot 0.
    EXPECT_LE(most.free, 10u) << blocks;
    EXPECT_GE(most.free, 3u) << "the count sees something";
  }
}

// The lines that two threads' blocks have their nodes in, two at a time as processors fetch them.
std::set<std::uint32_t> LinesOf(const std::vector<Block>& blocks) {
  constexpr std::uint32_t kNodes = 128 / sizeof(Node);
  std::set<std::uint32_t> lines;
  for (const Block& block : blocks) lines.insert(block.node / kNodes);
  return lines;
}

TEST(FastPathTest, NodesOfTwoThreadsShareNoCacheLine) {
  // With no cache every block passes the sub-allocator, and ranges of one thread's blocks become the other's.
  for (const Bytes cache : {Bytes(), 32_MiB}) {
    Pool pool(std::make_unique<CountingSource>(), PoolOptions{.cache_per_thread = cache});
    std::array<std::vector<Block>, 2> live;
    std::barrier<> turn(2);
    const auto work = [&](std::size_t self) {
      std::mt19937 random(static_cast<unsigned>(self) + 1);
      std::vector<Block>& mine = live[self];
      for (int round = 0; round < 400; ++round) {
        for (std::size_t i = 0; i < 2; ++i) {
          turn.arrive_and_wait();
          if (i != self) continue;
          for (int step = 0; step < 4; ++step) {
            const absl::StatusOr<Block> block = pool.Allocate(Bytes(512 + 512 * (random() % 4)));
            ASSERT_TRUE(block.ok()) << block.status();
            mine.push_back(*block);
            if (mine.size() > 100) {
              std::swap(mine[random() % mine.size()], mine.back());
              ASSERT_TRUE(pool.Free(mine.back()).ok());
              mine.pop_back();
            }
          }
        }
      }
    };
    std::thread other(work, 1);
    work(0);
    other.join();
    const std::set<std::uint32_t> lines = LinesOf(live[0]);
    EXPECT_GT(lines.size(), 20u);
    for (const std::uint32_t line : LinesOf(live[1])) {
      EXPECT_EQ(lines.count(line), 0u) << "line " << line << ", cache " << cache.count();
    }
    EXPECT_TRUE(pool.CheckInvariants().ok()) << pool.CheckInvariants();
  }
}

}  // namespace
}  // namespace lgpu
