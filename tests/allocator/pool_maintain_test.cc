// Growing ahead of demand and giving back: with a clock that the test moves.

#include <algorithm>
#include <atomic>
#include <chrono>
#include <future>
#include <random>
#include <vector>

#include "tests/support/fake_stream_fences.h"
#include "tests/support/pool_fixture.h"

namespace lgpu {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

class PoolMaintainTest : public PoolFixture {
 protected:
  void OpenWithWake(Bytes limit) {
    Open({.limit = limit, .options = {.wake = [this] { ++wakes_; }}});
  }
  // Calls Maintain as its thread does: when it asked for it, or was woken.
  void Pass(std::chrono::nanoseconds time) {
    const auto end = now_ + time;
    while (now_ < end) {
      now_ = std::min(end, next_.value_or(end));
      Tick();
    }
  }
  void Tick() {
    wakes_ = 0;
    next_ = pool_->Maintain(now_);
    if (next_) {
      EXPECT_GT(*next_, now_);
    }
  }
  void TickIfWoken() {
    if (wakes_ > 0) {
      now_ += milliseconds(1);
      Tick();
    }
  }

  std::atomic<int> wakes_{0};
  std::chrono::steady_clock::time_point now_{seconds(1000)};
  std::optional<std::chrono::steady_clock::time_point> next_;
};

TEST_F(PoolMaintainTest, IdleMemoryDecaysInSteps) {
  OpenWithWake(1_GiB);
  const Block keep = Must(1_MiB);
  Tick();
  MustFree(Must(200_MiB));
  const Bytes held = pool_->stats().held;
  Pass(milliseconds(900));
  EXPECT_EQ(pool_->stats().held, held) << "kept for a second";
  Pass(seconds(3));
  // Half of the larger one of 16 pages and 2 % of the peak.
  EXPECT_LE(pool_->stats().idle, 16_MiB);
  EXPECT_GE(pool_->stats().idle, 14_MiB);
  Pass(seconds(5));
  EXPECT_GE(pool_->stats().idle, 14_MiB);
  Pass(seconds(8));
  EXPECT_EQ(pool_->stats().idle, Bytes());
  EXPECT_EQ(pool_->stats().held, 2_MiB);
  EXPECT_FALSE(next_.has_value()) << "nothing is left to do";
  MustFree(keep);
  EXPECT_GT(wakes_, 0) << "now there is";
  Tick();
  Pass(seconds(20));
  EXPECT_EQ(pool_->stats().held, Bytes());
  ExpectSound();
}

TEST_F(PoolMaintainTest, MemoryThatIsUsedEverySecondStays) {
  OpenWithWake(1_GiB);
  const Block keep = Must(1_MiB);
  MustFree(Must(100_MiB));
  const std::uint64_t round_trips = pool_->stats().source_round_trips;
  for (int i = 0; i < 50; ++i) {
    MustFree(Must(100_MiB));
    Pass(milliseconds(400));
  }
  EXPECT_EQ(pool_->stats().source_round_trips, round_trips);
  EXPECT_GE(pool_->stats().held, 101_MiB);
  MustFree(keep);
}

TEST_F(PoolMaintainTest, CachesOfQuietThreadsKeepNothing) {
  OpenWithWake(64_MiB);
  MustFree(Must(4_KiB));
  Tick();
  EXPECT_EQ(pool_->stats().cached, 4_KiB);
  Pass(seconds(2));
  EXPECT_EQ(pool_->stats().cached, Bytes());
  Pass(seconds(15));
  EXPECT_EQ(pool_->stats().held, Bytes());
}

TEST_F(PoolMaintainTest, GrowsAheadWhereDemandRises) {
  OpenWithWake(4_GiB);
  std::vector<Block> blocks;
  for (int i = 0; i < 1500; ++i) {
    blocks.push_back(Must(1_MiB));
    TickIfWoken();
  }
  const MemoryStats stats = pool_->stats();
  EXPECT_GT(stats.source_round_trips_ahead, 0u);
  EXPECT_LT(stats.source_round_trips, 40u) << "of 750 pages";
  EXPECT_LT(stats.held, 1500_MiB + 200_MiB);
  ExpectSound();
  for (const Block& block : blocks) MustFree(block);
  ExpectEmptyAfterTrim();
}

TEST_F(PoolMaintainTest, ATrimStopsGrowthAheadUpToTheEarlierUse) {
  OpenWithWake(4_GiB);
  MustFree(Must(4_MiB));
  EXPECT_GT(wakes_, 0);
  ExpectEmptyAfterTrim();
  Tick();
  EXPECT_EQ(pool_->stats().source_round_trips_ahead, 0u);
  EXPECT_EQ(upstream_->granted, 0u);
}

TEST_F(PoolMaintainTest, ChunksGrantedAheadAfterATrimAreReturned) {
  OpenWithWake(4_GiB);
  const Block block = Must(4_MiB);
  upstream_->on_its_way = [&] {
    EXPECT_GT(upstream_->granted, (4_MiB).count());
    MustFree(block);
    EXPECT_EQ(pool_->Trim(1_TiB).value_or(Bytes()), 4_MiB);
  };
  Tick();
  EXPECT_EQ(pool_->stats().source_round_trips_ahead, 1u);
  EXPECT_EQ(pool_->stats().held, Bytes());
  EXPECT_EQ(upstream_->granted, 0u);
  ExpectSound();
}

TEST_F(PoolMaintainTest, AsksForTheLimitWithoutItsLock) {
  OpenWithWake(4_GiB);
  const Block block = Must(4_MiB);
  std::vector<std::future<void>> others;
  upstream_->on_limit = [&] {
    others.push_back(std::async(std::launch::async, [this] { pool_->ResetPeak(); }));
    EXPECT_EQ(others.back().wait_for(seconds(10)), std::future_status::ready) << "it takes the lock";
  };
  Tick();
  upstream_->on_limit = nullptr;
  EXPECT_FALSE(others.empty());
  EXPECT_EQ(pool_->stats().source_round_trips_ahead, 1u);
  MustFree(block);
}

// The first call that finds nothing left may miss a block that a thread is putting into its cache.
TEST_F(PoolMaintainTest, APoolFallsAsleepAfterASecondLook) {
  OpenWithWake(1_GiB);
  const Block block = Must(2_MiB);
  EXPECT_EQ(pool_->Trim(1_GiB).value_or(1_GiB), Bytes());
  Tick();
  EXPECT_EQ(pool_->stats().held, 2_MiB);
  Pass(seconds(1));
  EXPECT_EQ(next_, now_ + seconds(1));
  now_ += milliseconds(1);  // another device of the program woke the thread
  Tick();
  EXPECT_EQ(next_, now_ + milliseconds(999));
  now_ += milliseconds(999);
  Tick();
  EXPECT_FALSE(next_);
  MustFree(block);
  EXPECT_GT(wakes_, 0);
  Tick();
  Pass(seconds(30));
  EXPECT_EQ(pool_->stats().held, Bytes());
}

TEST_F(PoolMaintainTest, NeverGrowsAheadBeyondTheLimit) {
  OpenWithWake(33_MiB);
  std::vector<Block> blocks;
  for (int i = 0; i < 33; ++i) {
    blocks.push_back(Must(1_MiB));
    Tick();
    ASSERT_LE(pool_->stats().held, 34_MiB);
  }
  MustRefuse(Bytes(1));
  ExpectSound();
  upstream_->limit = (64_MiB).count();
  blocks.push_back(Must(8_MiB));
  upstream_->limit = (16_MiB).count();
  const Bytes held = pool_->stats().held;
  Pass(seconds(5));
  EXPECT_LE(pool_->stats().held, held) << "over its limit it does not grow";
  for (const Block& block : blocks) MustFree(block);
  ExpectEmptyAfterTrim();
}

TEST_F(PoolMaintainTest, HoldsOnlyNeededChunksUnderASharedLimit) {
  Open({.limit = 4_GiB, .options = {.grow_ahead = false, .wake = [this] { ++wakes_; }}});
  std::vector<Block> blocks;
  for (int i = 0; i < 20; ++i) {
    blocks.push_back(Must(50_MiB));
    Tick();
    ASSERT_LE(pool_->stats().held, 50_MiB * (blocks.size()) + 2_MiB);
  }
  EXPECT_EQ(pool_->stats().source_round_trips_ahead, 0u);
  for (const Block& block : blocks) MustFree(block);
  ExpectEmptyAfterTrim();
}

TEST_F(PoolMaintainTest, ARefusalAheadOfDemandIsNotReported) {
  OpenWithWake(1_GiB);
  const Block block = Must(64_MiB);
  upstream_->card = pool_->stats().held.count();
  Tick();
  EXPECT_EQ(pool_->stats().num_refusals, 0u);
  EXPECT_TRUE(pool_->stats().last_refusal == RefusalReason::kUnspecified);
  ExpectSound();
  MustFree(block);
  ExpectEmptyAfterTrim();
}

// Steps of a training whose sizes vary, 700 ms and 2.5 s long: persistent blocks, activations that are freed
// in reverse, and a peak in the middle. Once the largest step was seen, no allocation waits for the daemon.
TEST_F(PoolMaintainTest, TrainingWaitsForNoGrantAfterWarmUp) {
  for (const milliseconds step_time : {milliseconds(700), milliseconds(2500)}) {
    OpenWithWake(8_GiB);
    now_ += seconds(100);
    std::mt19937 random(7);
    std::vector<Block> weights;
    for (int i = 0; i < 200; ++i) {
      weights.push_back(Must(Bytes(1 + random() % 4'000'000)));
      TickIfWoken();
    }
    std::uint64_t warm = 0;
    for (int step = 0; step < 40; ++step) {
      const std::uint64_t length = step % 5 == 0 ? 1024 : 512 + random() % 513;
      std::vector<Block> activations;
      for (int layer = 0; layer < 48; ++layer) {
        for (const std::uint64_t unit : {8192u, 24576u, 512u, 64u}) {
          activations.push_back(Must(Bytes(length * unit)));
          TickIfWoken();
        }
        Pass(step_time / 96);
      }
      const Block logits = Must(Bytes(length * 262'144));
      Pass(step_time / 8);
      MustFree(logits);
      while (!activations.empty()) {
        MustFree(activations.back());
        activations.pop_back();
      }
      Pass(step_time / 2);
      if (step == 14) warm = pool_->stats().source_round_trips;
    }
    EXPECT_EQ(pool_->stats().source_round_trips, warm) << "after warm-up";
    std::printf("%lld ms: %llu round trips on the way up, %llu ahead\n",
                static_cast<long long>(step_time.count()), static_cast<unsigned long long>(warm),
                static_cast<unsigned long long>(pool_->stats().source_round_trips_ahead));
    for (const Block& block : weights) MustFree(block);
    Pass(std::chrono::minutes(30));
    EXPECT_EQ(pool_->stats().held, Bytes());
    ExpectSound();
  }
}

TEST_F(PoolMaintainTest, GivesNothingBackThatFencesGuard) {
  const auto fences = std::make_shared<FakeStreamFences>();
  Open({.limit = 64_MiB, .options = {.fences = fences}});
  const Block block = Must(32_MiB);
  fences->Queue(0);
  MustFree(block);
  Pass(seconds(30));
  EXPECT_EQ(pool_->stats().held, 32_MiB);
  fences->Finish(0);
  Pass(seconds(30));
  EXPECT_EQ(pool_->stats().held, Bytes());
  EXPECT_EQ(fences->waits(), 0u);
}

TEST_F(PoolMaintainTest, TrimForAnotherReturnsALargerChunkWhereNoneIsSmallEnough) {
  Open({.limit = 256_MiB, .chunk = 32_MiB});
  MustFree(Must(64_MiB));
  ASSERT_EQ(pool_->stats().held, 64_MiB);
  ASSERT_EQ(*pool_->Trim(2_MiB), Bytes()) << "at most is at most";
  absl::StatusOr<Pool::Trimmed> trimmed = pool_->TrimFor(2_MiB);
  ASSERT_TRUE(trimmed.ok()) << trimmed.status();
  EXPECT_EQ(trimmed->returned, 32_MiB);
  EXPECT_EQ(trimmed->pending, Bytes());
  EXPECT_EQ(pool_->stats().held, 32_MiB);
  EXPECT_EQ(pool_->TrimFor(40_MiB)->returned, 32_MiB) << "all there is";
  ExpectEmptyAfterTrim();
}

TEST_F(PoolMaintainTest, TrimForAnotherProgramReturnsSpareChunksFirst) {
  OpenWithWake(1_GiB);
  const Block block = Must(64_MiB);
  Tick();
  const MemoryStats before = pool_->stats();
  ASSERT_GT(before.idle, Bytes());
  EXPECT_EQ(pool_->TrimFor(before.idle)->returned, before.idle);
  EXPECT_EQ(pool_->stats().held, 64_MiB);
  ExpectSound();
  MustFree(block);
}

TEST_F(PoolMaintainTest, TrimForAnotherProgramReportsFencedMemory) {
  const auto fences = std::make_shared<FakeStreamFences>();
  Open({.limit = 64_MiB, .options = {.fences = fences}});
  const Block block = Must(32_MiB);
  fences->Queue(0);
  MustFree(block);
  absl::StatusOr<Pool::Trimmed> trimmed = pool_->TrimFor(8_MiB);
  ASSERT_TRUE(trimmed.ok()) << trimmed.status();
  EXPECT_EQ(trimmed->returned, Bytes());
  EXPECT_EQ(trimmed->pending, 32_MiB);
  fences->Finish(0);
  trimmed = pool_->TrimFor(8_MiB);
  EXPECT_EQ(trimmed->returned, 8_MiB);
  EXPECT_EQ(trimmed->pending, Bytes());
  EXPECT_EQ(fences->waits(), 0u);
}

TEST_F(PoolMaintainTest, AnAllocationTakesItsPoolsIdleMemoryBeforeItWaits) {
  Open({.limit = 64_MiB, .options = {.grow_ahead = false}});
  upstream_->card = (32_MiB).count();
  const Block first = Must(14_MiB);
  const Block middle = Must(2_MiB);
  const Block last = Must(14_MiB);
  MustFree(first);
  MustFree(last);
  const Block block = Must(26_MiB, {.timeout = seconds(60)});
  EXPECT_EQ(upstream_->waits, 0u);
  EXPECT_EQ(pool_->Allocate(8_MiB, {.timeout = seconds(60)}).status().code(),
            absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(upstream_->waits, 1u) << "where his own is not enough he does";
  MustFree(block);
  MustFree(middle);
  ExpectEmptyAfterTrim();
}

TEST_F(PoolMaintainTest, SourceThatFailsAtAnyCallLeavesNoResidue) {
  for (std::uint64_t n = 1;; ++n) {
    OpenWithWake(64_MiB);
    upstream_->faults.FailCall(n);
    std::vector<Block> blocks;
    for (int i = 0; i < 20; ++i) {
      if (const auto block = pool_->Allocate(1_MiB); block.ok()) blocks.push_back(*block);
      Tick();
    }
    for (const Block& block : blocks) MustFree(block);
    Pass(seconds(30));
    const bool clean = !upstream_->faults.has_failed();
    upstream_->faults.Heal();
    ASSERT_NO_FATAL_FAILURE(ExpectSound()) << "call " << n;
    Pass(seconds(30));
    EXPECT_EQ(pool_->stats().held, Bytes()) << "call " << n;
    if (clean) break;
  }
}

TEST_F(PoolMaintainTest, ABlockThatIsFreedOnAnotherStreamWakesASleepingPool) {
  for (const StreamId stream : {StreamId{0}, StreamId{1}}) {
    const auto fences = std::make_shared<FakeStreamFences>();
    Open({.limit = 8_GiB, .options = {.fences = fences, .wake = [this] { ++wakes_; }}});
    const Block block = Must(4_GiB, {.stream = stream});
    Tick();
    Pass(seconds(100));
    ASSERT_FALSE(next_) << "stream " << stream;
    MustFree(block);
    EXPECT_GT(wakes_, 0) << "stream " << stream;
    TickIfWoken();
    Pass(seconds(100));
    EXPECT_EQ(pool_->stats().held, Bytes()) << "stream " << stream;
  }
}

// Blocks that the freeing thread could keep in its cache.
TEST_F(PoolMaintainTest, ANewLimitDoesNotOpenTheCachesOfASleepingPool) {
  OpenWithWake(64_MiB);
  const Block small = Must(4_KiB);
  Tick();
  Pass(seconds(100));
  ASSERT_FALSE(next_);
  upstream_->limit = (32_MiB).count();
  MustRefuse(64_MiB);
  wakes_ = 0;
  MustFree(small);
  EXPECT_GT(wakes_, 0);
  EXPECT_EQ(pool_->stats().cached, Bytes());
}

TEST_F(PoolMaintainTest, ASmallBlockWakesASleepingPool) {
  OpenWithWake(1_GiB);
  std::vector<Block> kept;
  for (int i = 0; i < 400; ++i) {
    const Block block = Must(64_KiB);
    if (i % 40 == 0) {
      kept.push_back(block);
    } else {
      MustFree(block);
    }
  }
  Tick();
  Pass(seconds(100));
  ASSERT_FALSE(next_);
  for (const Block& block : kept) MustFree(block);
  EXPECT_GT(wakes_, 0);
  TickIfWoken();
  Pass(seconds(100));
  EXPECT_EQ(pool_->stats().held, Bytes());
  const Block later = Must(64_KiB);
  TickIfWoken();
  MustFree(later);
  EXPECT_GT(pool_->stats().cached, Bytes()) << "a pool that is awake caches again";
}

}  // namespace
}  // namespace lgpu
