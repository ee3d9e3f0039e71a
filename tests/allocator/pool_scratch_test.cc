// Memory that lies ready, and scratch memory of libraries, which is a number of its own.

#include <gmock/gmock.h>

#include <atomic>
#include <thread>

#include "tests/support/pool_fixture.h"

namespace lgpu {
namespace {

using ::testing::HasSubstr;

constexpr AllocateOptions kSpare = {.spare_only = true};
constexpr AllocateOptions kScratch = {.spare_only = true, .scratch = true};

class PoolScratchTest : public PoolFixture {
 protected:
  void ExpectNoneToSpare(Bytes bytes) {
    const absl::StatusOr<Block> block = pool_->Allocate(bytes, kSpare);
    EXPECT_TRUE(absl::IsResourceExhausted(block.status())) << block.status();
    EXPECT_FALSE(GetRefusal(block.status()).has_value()) << "it is no refusal";
    EXPECT_EQ(pool_->stats().num_refusals, 0u);
  }
};

TEST_F(PoolScratchTest, SpareMemoryStaysWithinTheLimitAndTheSource) {
  Open({.limit = 16_MiB});
  const Block block = Must(8_MiB, kSpare);
  EXPECT_EQ(pool_->stats().source_round_trips, 1u);
  ExpectNoneToSpare(9_MiB);
  upstream_->card = (10_MiB).count();
  ExpectNoneToSpare(4_MiB);
  EXPECT_EQ(upstream_->waits, 0u) << "no other program is asked";
  upstream_->card = (16_MiB).count();
  const Block second = Must(4_MiB, kSpare);
  ASSERT_TRUE(pool_->Free(block).ok());
  ASSERT_TRUE(pool_->Free(second).ok());
  ExpectEmptyAfterTrim();
}

TEST_F(PoolScratchTest, SpareMemoryIsNotMovedTogether) {
  Open({.limit = 16_MiB});
  std::vector<Block> blocks;
  for (int i = 0; i < 8; ++i) blocks.push_back(Must(2_MiB));
  for (std::size_t i = 0; i < blocks.size(); i += 2) ASSERT_TRUE(pool_->Free(blocks[i]).ok());
  ExpectNoneToSpare(8_MiB);
  EXPECT_EQ(pool_->stats().remapped_chunks, 0u);
  const Block moved = Must(8_MiB);
  EXPECT_NE(pool_->stats().remapped_chunks, 0u);
  ASSERT_TRUE(pool_->Free(moved).ok());
  ExpectSound();
}

TEST_F(PoolScratchTest, SpareMemoryIsNoFence) {
  Open({.limit = 16_MiB});
  const Block block = Must(16_MiB);
  ExpectNoneToSpare(1_MiB);
  ASSERT_TRUE(pool_->Free(block).ok());
  const Block again = Must(1_MiB, kSpare);
  ASSERT_TRUE(pool_->Free(again).ok());
  ExpectSound();
}

TEST_F(PoolScratchTest, ScratchMemoryIsInNoOtherNumber) {
  Open({.limit = 16_MiB});
  const Block tensor = Must(1_MiB);
  const Block scratch = Must(4_MiB, kScratch);
  MemoryStats stats = pool_->stats();
  EXPECT_EQ(stats.workspace, 4_MiB);
  EXPECT_EQ(stats.used, 1_MiB);
  EXPECT_EQ(stats.requested, 1_MiB);
  EXPECT_EQ(stats.peak_used, 1_MiB);
  EXPECT_EQ(stats.live_blocks, 1u);
  EXPECT_EQ(stats.num_allocs, 1u);
  EXPECT_EQ(stats.slack(), stats.held - 5_MiB);
  ExpectSound();
  // Scratch memory counts against the limit.
  EXPECT_TRUE(absl::IsResourceExhausted(pool_->Allocate(12_MiB).status()));
  const Block more = Must(11_MiB);
  ASSERT_TRUE(pool_->Free(more).ok());
  ASSERT_TRUE(pool_->Free(tensor).ok());
  EXPECT_EQ(pool_->stats().peak_used, 12_MiB) << "of the tensors alone, and not forgotten";
  ASSERT_TRUE(pool_->Free(scratch).ok());
  EXPECT_EQ(pool_->stats().peak_used, 12_MiB);
  EXPECT_EQ(pool_->stats().workspace, Bytes());
  ExpectEmptyAfterTrim();
}

TEST_F(PoolScratchTest, SmallBlocksBesideScratchMemoryKeepThePeakRight) {
  Open({.limit = 64_MiB});
  const Block scratch = Must(8_MiB, kScratch);
  for (int i = 0; i < 100; ++i) {
    const Block block = Must(4_KiB);
    ASSERT_TRUE(pool_->Free(block).ok());
  }
  EXPECT_EQ(pool_->stats().peak_used, 4_KiB);
  ASSERT_TRUE(pool_->Free(scratch).ok());
  EXPECT_EQ(pool_->stats().peak_used, 4_KiB);
  ExpectSound();
}

TEST_F(PoolScratchTest, ScratchMemoryIsLargeAndOfTheHomeStream) {
  Open({.limit = 16_MiB});
  for (const auto& [bytes, stream] : {std::pair(64_KiB, StreamId{0}), std::pair(1_MiB, StreamId{1})}) {
    const absl::StatusOr<Block> block = pool_->Allocate(bytes, {.stream = stream, .scratch = true});
    EXPECT_TRUE(absl::IsInvalidArgument(block.status())) << block.status();
    EXPECT_THAT(std::string(block.status().message()), HasSubstr("scratch memory of"));
  }
}

// A snapshot that is taken while scratch memory comes and goes has it whole, once, or not at all.
TEST_F(PoolScratchTest, NumbersAgreeWhileScratchMemoryComesAndGoes) {
  Open({.limit = 64_MiB});
  const Block tensor = Must(1_MiB);
  std::atomic<bool> done{false};
  std::thread user([&] {
    for (int i = 0; i < 2000; ++i) {
      const absl::StatusOr<Block> scratch = pool_->Allocate(8_MiB, kScratch);
      if (!scratch.ok()) continue;
      EXPECT_TRUE(pool_->Free(*scratch).ok());
    }
    done = true;
  });
  while (!done) {
    const MemoryStats stats = pool_->stats();
    ASSERT_EQ(stats.used, 1_MiB);
    ASSERT_EQ(stats.peak_used, 1_MiB);
    ASSERT_EQ(stats.live_blocks, 1u);
    ASSERT_EQ(stats.slack(), stats.held - stats.used - stats.workspace);
    ASSERT_LE(stats.Fragmentation(), 1.0);
    ASSERT_GE(stats.Fragmentation(), 0.0);
  }
  user.join();
  ASSERT_TRUE(pool_->Free(tensor).ok());
  ExpectSound();
}

TEST_F(PoolScratchTest, LimitIsTheSources) {
  Open({.limit = 16_MiB});
  EXPECT_EQ(pool_->limit(), 16_MiB);
  upstream_->limit = (8_MiB).count();
  EXPECT_EQ(pool_->limit(), 8_MiB);
}

TEST(MemoryStatsTest, SlackOfTornNumbersIsNothing) {
  MemoryStats stats;
  stats.held = 2_MiB;
  stats.workspace = 32_MiB;
  EXPECT_EQ(stats.slack(), Bytes());
  EXPECT_EQ(stats.Fragmentation(), 0.0);
}

}  // namespace
}  // namespace lgpu
