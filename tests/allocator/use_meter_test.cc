#include "allocator/pool/use_meter.h"

#include <gtest/gtest.h>

#include <atomic>

namespace lgpu {
namespace {

class UseMeterTest : public ::testing::Test {
 protected:
  Bytes Budget() const { return Bytes(static_cast<std::uint64_t>(bounds_.cache_budget.load())); }
  // The calls of a pool whenever the bytes in blocks change.
  bool Charge(Bytes charged, Bytes scratch = {}) {
    return meter_.Update(charged, scratch) && meter_.Reassess(meter_.limit());
  }

  HitBounds bounds_;
  FrontCache cache_;
  std::atomic<std::uint64_t> fenced_{0};
  UseMeter meter_{32_MiB, bounds_, cache_, fenced_};
};

TEST_F(UseMeterTest, CachesMayHoldA64thOfTheLimitWhileMemoryIsAmple) {
  meter_.Reassess(1_GiB);
  EXPECT_EQ(Budget(), 16_MiB);
  meter_.Reassess(16_GiB);
  EXPECT_EQ(Budget(), 32_MiB) << "never more than cache_per_thread";
}

TEST_F(UseMeterTest, CachesShrinkAtHalfOfTheLimitAndEndCloseToIt) {
  meter_.Reassess(1_GiB);
  EXPECT_FALSE(Charge(511_MiB));
  EXPECT_TRUE(Charge(512_MiB)) << "the caches have to be flushed";
  EXPECT_EQ(Budget(), 256_KiB);
  EXPECT_FALSE(meter_.is_scarce());
  EXPECT_TRUE(Charge(832_MiB));
  EXPECT_EQ(Budget(), Bytes());
  EXPECT_TRUE(meter_.is_scarce());
}

TEST_F(UseMeterTest, LessUseThanAtTheBorderEndsScarcity) {
  meter_.Reassess(1_GiB);
  Charge(832_MiB);
  EXPECT_FALSE(Charge(800_MiB));
  EXPECT_TRUE(meter_.is_scarce()) << "still above 12/16";
  EXPECT_FALSE(Charge(767_MiB)) << "nothing to flush";
  EXPECT_FALSE(meter_.is_scarce());
  EXPECT_EQ(Budget(), 256_KiB);
  Charge(447_MiB);
  EXPECT_EQ(Budget(), 16_MiB);
}

TEST_F(UseMeterTest, ALowerLimitMakesTheSameUseScarce) {
  meter_.Reassess(1_GiB);
  Charge(300_MiB);
  EXPECT_TRUE(meter_.Reassess(300_MiB));
  EXPECT_TRUE(meter_.is_scarce());
}

TEST_F(UseMeterTest, HitsReadAnUpperBoundThatFollowsInSteps) {
  meter_.Reassess(1_GiB);
  for (const Bytes charged : {Bytes(1), 1_MiB, 9_MiB, 100_MiB, 64_MiB, Bytes()}) {
    Charge(charged);
    EXPECT_GE(Bytes(bounds_.charged_at_most), charged);
    EXPECT_LE(Bytes(bounds_.charged_at_most), charged + 8_MiB + Bytes(2)) << "two steps of a 256th";
  }
}

TEST_F(UseMeterTest, ThePeakLeavesOutScratchAndFencedMemory) {
  meter_.Reassess(1_GiB);
  Charge(100_MiB, 30_MiB);
  EXPECT_EQ(meter_.peak_used(), 70_MiB);
  fenced_ = (50_MiB).count();
  Charge(150_MiB, 30_MiB);
  EXPECT_EQ(meter_.peak_used(), 70_MiB);
  meter_.ResetPeak(10_MiB);
  EXPECT_EQ(meter_.peak_used(), 10_MiB);
  Charge(151_MiB, 30_MiB);
  EXPECT_EQ(meter_.peak_used(), 71_MiB);
}

TEST_F(UseMeterTest, AHitOfASingleThreadRaisesThePeak) {
  meter_.Reassess(1_GiB);
  FrontCache::Shard* const shard = cache_.Mine();
  ASSERT_NE(shard, nullptr);
  ASSERT_TRUE(shard->Put(2, 1, 0, std::int64_t{1} << 20));
  Charge(10_MiB);
  EXPECT_EQ(meter_.peak_used(), 10_MiB - Bytes(1024));
  ASSERT_EQ(shard->Take(2), 1u);
  shard->CountHit(2, 0);
  meter_.NoteHit(shard->bytes());
  EXPECT_EQ(meter_.peak_used(), 10_MiB);
}

}  // namespace
}  // namespace lgpu
