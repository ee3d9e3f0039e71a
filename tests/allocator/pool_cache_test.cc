// The front caches: their blocks are free memory in every respect, from any thread.

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <barrier>
#include <cstring>
#include <random>
#include <thread>
#include <vector>

#include "tests/support/pool_fixture.h"
#include "tests/support/test_seed.h"

namespace lgpu {
namespace {

class PoolCacheTest : public PoolFixture {};

TEST_F(PoolCacheTest, ACachedBlockIsNotUsed) {
  Open({.limit = 64_MiB});
  const Block keep = Must(Bytes(1000));
  const Block block = Must(Bytes(10'000));
  MustFree(block);
  MemoryStats stats = pool_->stats();
  EXPECT_EQ(stats.used, Bytes(1024));
  EXPECT_EQ(stats.requested, Bytes(1000));
  EXPECT_EQ(stats.cached, Bytes(10'240));
  EXPECT_EQ(stats.live_blocks, 1u);
  EXPECT_EQ(stats.peak_used, Bytes(11'264));
  const Block again = Must(Bytes(9'999));
  EXPECT_EQ(again.address, block.address);
  EXPECT_NE(again.generation, block.generation);
  stats = pool_->stats();
  EXPECT_EQ(stats.used, Bytes(11'264));
  EXPECT_EQ(stats.requested, Bytes(10'999));
  EXPECT_EQ(stats.cached, Bytes());
  EXPECT_EQ(stats.live_blocks, 2u);
  EXPECT_EQ(stats.cache_hits, 1u);
  EXPECT_EQ(stats.num_allocs, 3u);
  MustFree(keep);
  MustFree(again);
  ExpectEmptyAfterTrim();
}

TEST_F(PoolCacheTest, ThePeakOfOneThreadIsExact) {
  Open({.limit = 64_MiB});
  std::mt19937 random(TestSeed());
  std::vector<Block> live;
  Bytes used;
  Bytes peak;
  for (int i = 0; i < 5000; ++i) {
    if (live.empty() || random() % 100 < 52) {
      live.push_back(Must(Bytes(1 + random() % 65'536)));
      used += live.back().bytes;
    } else {
      std::swap(live[random() % live.size()], live.back());
      used -= live.back().bytes;
      MustFree(live.back());
      live.pop_back();
    }
    peak = std::max(peak, used);
    ASSERT_EQ(pool_->stats().used, used);
    ASSERT_EQ(pool_->stats().peak_used, peak);
  }
  for (const Block& block : live) MustFree(block);
  ExpectEmptyAfterTrim();
}

TEST_F(PoolCacheTest, FlushedBeforeARefusal) {
  Open({.limit = 16_MiB});
  std::vector<Block> blocks;
  for (int i = 0; i < 4; ++i) blocks.push_back(Must(32_KiB));
  for (const Block& block : blocks) MustFree(block);
  EXPECT_GT(pool_->stats().cached, Bytes());
  const Block all = Must(16_MiB);
  EXPECT_EQ(pool_->stats().cached, Bytes());
  EXPECT_EQ(MustRefuse(Bytes(1)).used, 16_MiB);
  MustFree(all);
  ExpectEmptyAfterTrim();
}

TEST_F(PoolCacheTest, FlushedForAnotherThreadsRequest) {
  Open({.limit = 16_MiB});
  std::barrier<> step(2);
  std::thread other([&] {
    const Block block = Must(48_KiB);
    MustFree(block);
    step.arrive_and_wait();  // the main thread takes everything
    step.arrive_and_wait();
    const Block mine = Must(48_KiB);
    MustFree(mine);
  });
  step.arrive_and_wait();
  EXPECT_EQ(pool_->stats().cached, 48_KiB);
  const Block all = Must(16_MiB);
  MustFree(all);
  step.arrive_and_wait();
  other.join();
  ExpectEmptyAfterTrim();
}

TEST_F(PoolCacheTest, ThreadsThatEndLeaveNothing) {
  Open({.limit = 64_MiB});
  for (int i = 0; i < 300; ++i) {  // more than there are shards
    std::thread([&] {
      MustFree(Must(4_KiB));
      MustFree(Must(8_KiB));
    }).join();
  }
  EXPECT_LE(pool_->stats().cached, 64_MiB / 64 * 64);
  ExpectEmptyAfterTrim();
}

TEST_F(PoolCacheTest, ALoweredLimitHoldsForCachedBlocks) {
  Open({.limit = 16_MiB});
  const Block keep = Must(8_MiB);
  MustFree(Must(4_KiB));
  upstream_->limit = (8_MiB).count();
  EXPECT_EQ(MustRefuse(4_KiB).used, 8_MiB);
  upstream_->limit = (8_MiB + 4_KiB).count();
  MustFree(Must(4_KiB));
  MustFree(keep);
  ExpectEmptyAfterTrim();
}

TEST_F(PoolCacheTest, NoCacheIfNoneIsWanted) {
  Open({.options = {.cache_per_thread = Bytes()}});
  MustFree(Must(4_KiB));
  EXPECT_EQ(pool_->stats().cached, Bytes());
  EXPECT_EQ(Must(4_KiB).bytes, 4_KiB);
  EXPECT_EQ(pool_->stats().cache_hits, 0u);
}

TEST_F(PoolCacheTest, OnlyOneOfTwoThatFreeTheSameBlockSucceeds) {
  Open({.limit = 64_MiB});
  constexpr int kRounds = 2000;
  std::atomic<int> freed{0};
  std::vector<Block> blocks(2);
  std::barrier<> step(3);
  const auto free_it = [&] {
    for (int i = 0; i < kRounds; ++i) {
      step.arrive_and_wait();
      for (const Block& block : blocks) freed += pool_->Free(block).ok() ? 1 : 0;
      step.arrive_and_wait();
    }
  };
  std::thread a(free_it);
  std::thread b(free_it);
  for (int i = 0; i < kRounds; ++i) {
    blocks = {Must(4_KiB), Must(100_KiB)};
    step.arrive_and_wait();
    step.arrive_and_wait();
  }
  a.join();
  b.join();
  EXPECT_EQ(freed, 2 * kRounds);
  ExpectEmptyAfterTrim();
}

// Eight threads over their common limit: their own count never passes it, and at the end every byte is
// accounted for.
TEST_F(PoolCacheTest, TheLimitIsExactUnderEightThreads) {
  const unsigned seed = TestSeed();
  Open({.limit = 8_MiB});
  std::atomic<std::uint64_t> used{0};
  std::atomic<int> refusals{0};
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < 8; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937 random(seed + t);
      std::vector<Block> live;
      for (int i = 0; i < 3000; ++i) {
        if (random() % 2 == 0 || live.empty()) {
          const auto block = pool_->Allocate(Bytes(1 + random() % (random() % 8 == 0 ? 400'000 : 65'536)));
          if (block.ok()) {
            const std::uint64_t now = used += block->bytes.count();
            EXPECT_LE(now, (8_MiB).count());
            block->address[0] = static_cast<std::byte>(t);
            live.push_back(*block);
          } else {
            EXPECT_TRUE(absl::IsResourceExhausted(block.status())) << block.status();
            ++refusals;
          }
        }
        if (!live.empty() && (random() % 2 == 0 || live.size() > 60)) {
          std::swap(live[random() % live.size()], live.back());
          EXPECT_EQ(live.back().address[0], static_cast<std::byte>(t));
          used -= live.back().bytes.count();
          EXPECT_TRUE(pool_->Free(live.back()).ok());
          live.pop_back();
        }
        if (random() % 256 == 0) {
          EXPECT_LE(pool_->stats().used, 8_MiB);
        }
      }
      for (const Block& block : live) {
        used -= block.bytes.count();
        EXPECT_TRUE(pool_->Free(block).ok());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(pool_->stats().used, Bytes());
  ExpectEmptyAfterTrim();
}

// Blocks that one thread allocates and another one frees, while a third thread empties the caches all the
// time.
TEST_F(PoolCacheTest, FreedInAnotherThread) {
  Open({.limit = 64_MiB});
  constexpr int kBlocks = 20'000;
  constexpr std::size_t kRing = 64;
  std::vector<std::atomic<std::uint64_t>> ready(kRing);
  std::vector<Block> ring(kRing);
  std::atomic<bool> done{false};
  std::thread consumer([&] {
    for (std::uint64_t i = 1; i <= kBlocks; ++i) {
      while (ready[i % kRing].load(std::memory_order_acquire) != i) std::this_thread::yield();
      EXPECT_EQ(ring[i % kRing].address[0], static_cast<std::byte>(i));
      EXPECT_TRUE(pool_->Free(ring[i % kRing]).ok());
      ready[i % kRing].store(0, std::memory_order_release);
    }
  });
  std::thread trimmer([&] {
    while (!done) {
      EXPECT_TRUE(pool_->Trim(2_MiB).ok());
      std::this_thread::yield();
    }
  });
  for (std::uint64_t i = 1; i <= kBlocks; ++i) {
    while (ready[i % kRing].load(std::memory_order_acquire) != 0) std::this_thread::yield();
    const Block block = Must(Bytes(512 + 512 * (i % 9)));
    block.address[0] = static_cast<std::byte>(i);
    ring[i % kRing] = block;
    ready[i % kRing].store(i, std::memory_order_release);
  }
  consumer.join();
  done = true;
  trimmer.join();
  ExpectEmptyAfterTrim();
}

TEST_F(PoolCacheTest, AForkedChildTouchesNothing) {
  Open({});
  MustFree(Must(4_KiB));
  const Block keep = Must(8_KiB);
  const pid_t child = fork();
  if (child == 0) {
    const bool refused = absl::IsFailedPrecondition(pool_->Allocate(4_KiB).status()) &&
                         absl::IsFailedPrecondition(pool_->Free(keep)) &&
                         absl::IsFailedPrecondition(pool_->Free(keep.address)) &&
                         !pool_->Maintain(std::chrono::steady_clock::now()).has_value() &&
                         pool_->Snapshot().blocks.empty() && pool_->LargestOwners(1).empty();
    _exit(refused ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  EXPECT_EQ(Must(4_KiB).bytes, 4_KiB);
  EXPECT_EQ(pool_->stats().cache_hits, 1u);
}

}  // namespace
}  // namespace lgpu
