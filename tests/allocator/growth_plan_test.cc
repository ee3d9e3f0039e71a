#include "allocator/pool/growth_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "lgpu/status.h"

namespace lgpu {
namespace {

using Kind = GrowthPlan::Kind;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr Bytes kPlanPage = 2_MiB;
constexpr GrowthSteps kSteps{.page = kPlanPage, .least = kPlanPage, .ahead = false};

// A pool of 64 pages of addresses under a limit of 8 pages; the test takes the steps that a plan asks for.
class GrowthPlanTest : public ::testing::Test {
 protected:
  GrowthPlan::Step Next(GrowthPlan& plan) {
    return plan.Next({.blocks = blocks_,
                      .chunks = chunks_,
                      .limit = limit_,
                      .settled = settled_,
                      .fenced = fenced_,
                      .caches_empty = caches_empty_});
  }
  static GrowthPlan Plan(Bytes bytes, const GrowthPolicy& policy = {}) {
    return GrowthPlan({.bytes = bytes, .alignment = Bytes(256)}, kSteps, policy);
  }
  std::vector<Chunk> Grant(GrowthPlan& plan, std::vector<Bytes> sizes) {
    std::vector<Chunk> chunks;
    for (const Bytes bytes : sizes) chunks.push_back({ChunkId{next_id_++}, bytes});
    plan.NoteGranted(chunks, chunks_);
    return chunks;
  }
  Suballocator::Handle Map(const GrowthPlan::Step& step) {
    std::vector<Suballocator::Range> places;
    for (std::size_t i = 0; i < step.placements.size(); ++i) {
      chunks_.NoteMapped(step.placements[i].offset, step.placed[i]);
      places.push_back({step.placements[i].offset, step.placed[i].bytes});
    }
    return blocks_.Commit(step.claim, places);
  }
  void Move(GrowthPlan& plan, const GrowthPlan::Step& step) {
    for (const ChunkStore::Run& run : step.runs) {
      blocks_.CommitUnmapped(run.detached);
      chunks_.NoteUnmapped(run.range);
    }
    plan.NoteMoved(step.runs);
  }
  // A block of so many pages, in chunks of one page.
  Suballocator::Handle Allocate(std::uint64_t pages) {
    GrowthPlan plan = Plan(kPlanPage * pages);
    const GrowthPlan::Step grow = Next(plan);
    EXPECT_EQ(grow.kind, Kind::kGrow);
    Grant(plan, std::vector<Bytes>(grow.grow.at_least / kPlanPage, kPlanPage));
    const GrowthPlan::Step map = Next(plan);
    EXPECT_EQ(map.kind, Kind::kMap);
    return Map(map);
  }

  Suballocator blocks_{kPlanPage * 64, kPlanPage};
  ChunkStore chunks_{kPlanPage};
  Bytes limit_ = kPlanPage * 8;
  Suballocator::Stamp settled_ = Suballocator::kYoungest;
  bool fenced_ = false;
  bool caches_empty_ = true;
  std::uint64_t next_id_ = 1;
};

TEST_F(GrowthPlanTest, GrowsByTheMissingBytesAndMapsThem) {
  GrowthPlan plan = Plan(kPlanPage * 3);
  const GrowthPlan::Step grow = Next(plan);
  ASSERT_EQ(grow.kind, Kind::kGrow);
  EXPECT_EQ(grow.grow.at_least, kPlanPage * 3);
  EXPECT_FALSE(grow.grow.ahead);
  Grant(plan, {kPlanPage, kPlanPage, kPlanPage});
  const GrowthPlan::Step map = Next(plan);
  ASSERT_EQ(map.kind, Kind::kMap);
  EXPECT_THAT(map.placements, SizeIs(3));
  EXPECT_TRUE(blocks_.IsLive(Map(map)));
  EXPECT_TRUE(chunks_.CheckInvariants(false).ok());
}

TEST_F(GrowthPlanTest, TakesSpareChunksBeforeItAsksTheSource) {
  const Chunk spare{ChunkId{99}, kPlanPage};
  chunks_.NoteGranted(spare);
  chunks_.AddSpare(spare);
  GrowthPlan plan = Plan(kPlanPage);
  EXPECT_EQ(Next(plan).kind, Kind::kMap);
  EXPECT_THAT(chunks_.spare(), IsEmpty());
}

TEST_F(GrowthPlanTest, MapsWithoutGrowthWhereMemoryCameFreeMeanwhile) {
  const Suballocator::Handle block = Allocate(2);
  GrowthPlan plan = Plan(kPlanPage * 2);
  ASSERT_EQ(Next(plan).kind, Kind::kGrow);
  Grant(plan, {kPlanPage, kPlanPage});
  blocks_.Free(block, 1);
  const GrowthPlan::Step done = Next(plan);
  ASSERT_EQ(done.kind, Kind::kDone);
  EXPECT_TRUE(blocks_.IsLive(done.block));
  EXPECT_EQ(chunks_.spare_bytes(), kPlanPage * 2) << "what was in hand is everybody's";
}

TEST_F(GrowthPlanTest, FlushesTheCachesBeforeItMovesOrRefuses) {
  Allocate(8);
  caches_empty_ = false;
  GrowthPlan plan = Plan(kPlanPage);
  EXPECT_EQ(Next(plan).kind, Kind::kFlush);
  caches_empty_ = true;
  EXPECT_EQ(Next(plan).kind, Kind::kRefuse);
}

TEST_F(GrowthPlanTest, MovesIdleChunksWhereTheLimitLeavesNoRoom) {
  const Suballocator::Handle a = Allocate(3);
  Allocate(2);
  const Suballocator::Handle c = Allocate(3);
  blocks_.Free(a, 1);
  blocks_.Free(c, 2);
  GrowthPlan plan = Plan(kPlanPage * 6);  // six pages are free, in two places
  GrowthPlan::Step step = Next(plan);
  ASSERT_EQ(step.kind, Kind::kMove);
  Move(plan, step);
  step = Next(plan);
  ASSERT_EQ(step.kind, Kind::kMap);
  EXPECT_TRUE(blocks_.IsLive(Map(step)));
  EXPECT_EQ(chunks_.held(), limit_);
}

TEST_F(GrowthPlanTest, APolicyWithoutMovesRefusesWhereAMoveWouldDo) {
  const Suballocator::Handle a = Allocate(3);
  Allocate(2);
  const Suballocator::Handle c = Allocate(3);
  blocks_.Free(a, 1);
  blocks_.Free(c, 2);
  GrowthPlan plan = Plan(kPlanPage * 6, {.moves_idle_chunks = false});
  const GrowthPlan::Step step = Next(plan);
  ASSERT_EQ(step.kind, Kind::kRefuse);
  EXPECT_EQ(step.reason, RefusalReason::kLimit);
}

TEST_F(GrowthPlanTest, WaitsForFencesWhereSettledMemoryWouldSuffice) {
  const Suballocator::Handle a = Allocate(3);
  Allocate(2);
  const Suballocator::Handle c = Allocate(3);
  blocks_.Free(a, 7);
  blocks_.Free(c, 7);
  settled_ = 6;
  GrowthPlan plan = Plan(kPlanPage * 6);
  EXPECT_EQ(Next(plan).kind, Kind::kAwaitFences);
  plan.NoteFences(true);
  settled_ = 7;
  EXPECT_EQ(Next(plan).kind, Kind::kMove);
}

TEST_F(GrowthPlanTest, WaitsForFencedBlocksOnceBeforeItRefuses) {
  Allocate(8);
  fenced_ = true;
  GrowthPlan plan = Plan(kPlanPage);
  EXPECT_EQ(Next(plan).kind, Kind::kAwaitFences);
  plan.NoteFences(false);
  EXPECT_EQ(Next(plan).kind, Kind::kAwaitFences) << "asking is not waiting";
  plan.NoteFences(true);
  EXPECT_EQ(Next(plan).kind, Kind::kRefuse);
}

TEST_F(GrowthPlanTest, TheSourceMayNotWaitWhileEnoughMemoryLiesIdle) {
  const Suballocator::Handle a = Allocate(2);
  Allocate(1);
  const Suballocator::Handle c = Allocate(2);
  Allocate(1);
  blocks_.Free(a, 1);
  blocks_.Free(c, 2);
  GrowthPlan hasty = Plan(kPlanPage * 4);
  limit_ = kPlanPage * 12;
  const GrowthPlan::Step step = Next(hasty);
  ASSERT_EQ(step.kind, Kind::kGrow);
  EXPECT_LE(step.grow.at_least, kPlanPage * 4);
  EXPECT_TRUE(step.grow.ahead);
  GrowthPlan patient = Plan(kPlanPage * 5);
  const GrowthPlan::Step larger = Next(patient);
  ASSERT_EQ(larger.kind, Kind::kGrow);
  EXPECT_EQ(larger.grow.at_least, kPlanPage * 5);
  EXPECT_FALSE(larger.grow.ahead) << "four idle pages are less than the five that are missing";
}

TEST_F(GrowthPlanTest, AfterARefusedStepIdleChunksAndASmallerStepAreCombined) {
  const Suballocator::Handle a = Allocate(2);
  Allocate(1);
  blocks_.Free(a, 1);
  GrowthPlan plan = Plan(kPlanPage * 5);
  ASSERT_EQ(Next(plan).kind, Kind::kGrow);
  plan.NoteGrowRefused(absl::ResourceExhaustedError("the card has no more"));
  const GrowthPlan::Step move = Next(plan);
  ASSERT_EQ(move.kind, Kind::kMove);
  Move(plan, move);
  const GrowthPlan::Step grow = Next(plan);
  ASSERT_EQ(grow.kind, Kind::kGrow);
  EXPECT_LT(grow.grow.at_least, kPlanPage * 5);
}

TEST_F(GrowthPlanTest, LargeChunksGoBackInExchangeForSmallOnes) {
  limit_ = kPlanPage * 4;
  const Chunk large{ChunkId{50}, kPlanPage * 4};
  chunks_.NoteGranted(large);
  chunks_.AddSpare(large);
  GrowthPlan plan = Plan(4_KiB);  // small blocks live in chunks of one page
  const GrowthPlan::Step back = Next(plan);
  ASSERT_EQ(back.kind, Kind::kReturn);
  ASSERT_THAT(back.surplus, SizeIs(1));
  EXPECT_EQ(back.surplus[0].id, large.id);
  chunks_.NoteReturned(back.surplus);
  plan.NoteReturned();
  const GrowthPlan::Step grow = Next(plan);
  ASSERT_EQ(grow.kind, Kind::kGrow);
  EXPECT_EQ(grow.grow.wanted, kPlanPage);
}

TEST_F(GrowthPlanTest, AFailedPlanReturnsItsGrantAndKeepsTheRestSpare) {
  const Chunk spare{ChunkId{70}, kPlanPage};
  chunks_.NoteGranted(spare);
  chunks_.AddSpare(spare);
  GrowthPlan plan = Plan(kPlanPage * 3);
  ASSERT_EQ(Next(plan).kind, Kind::kGrow);
  const std::vector<Chunk> granted = Grant(plan, {kPlanPage, kPlanPage});
  const GrowthPlan::Step map = Next(plan);
  ASSERT_EQ(map.kind, Kind::kMap);
  blocks_.Abandon(map.claim);
  const std::vector<Chunk> returned = plan.GiveUp(chunks_);
  ASSERT_THAT(returned, SizeIs(2));
  EXPECT_EQ(returned[0].id, granted[0].id);
  ASSERT_THAT(chunks_.spare(), SizeIs(1));
  EXPECT_EQ(chunks_.spare()[0].id, spare.id);
}

TEST_F(GrowthPlanTest, ASmallBlockLiesInALargeChunkOnlyWhereItIsAllowed) {
  GrowthPlan plan = Plan(4_KiB);
  ASSERT_EQ(Next(plan).kind, Kind::kGrow);
  Grant(plan, {kPlanPage * 4});
  EXPECT_TRUE(chunks_.only_large) << "the source gave four pages where one was asked for";
  EXPECT_FALSE(plan.AllowAnyChunk()) << "that is allowed already";
  EXPECT_EQ(Next(plan).kind, Kind::kMap);
}

TEST_F(GrowthPlanTest, ASourceThatNeverKeepsItsWordEndsThePlan) {
  GrowthPlan plan = Plan(kPlanPage);
  for (int i = 0; i < 20'000; ++i) {
    const GrowthPlan::Step step = Next(plan);
    if (step.kind == Kind::kRefuse) {
      EXPECT_TRUE(step.endless);
      return;
    }
    ASSERT_EQ(step.kind, Kind::kGrow);
  }
  FAIL() << "the plan goes on for ever";
}

TEST(GrowthStepsTest, StepsGrowWithUseAndStayBelowLargeChunksForSmallBlocks) {
  const GrowthSteps steps{.page = kPlanPage, .least = 2_MiB, .ahead = true};
  EXPECT_EQ(steps.StepFor({}, Bytes(), false), 2_MiB);
  EXPECT_EQ(steps.StepFor({}, 160_MiB, false), 10_MiB);
  EXPECT_EQ(steps.StepFor({}, 1_GiB, false), 64_MiB);
  EXPECT_EQ(steps.StepFor({}, 100_GiB, false), 256_MiB) << "at most";
  EXPECT_EQ(steps.StepFor({}, 100_GiB, true), 30_MiB) << "below the size of large chunks";
  EXPECT_EQ(steps.StepFor(600_MiB, 1_GiB, false), 768_MiB) << "whole chunks of 256 MiB";
  EXPECT_EQ((GrowthSteps{.page = kPlanPage, .least = 4_MiB, .ahead = false}).StepFor(3_MiB, 100_GiB, false),
            4_MiB);
}

}  // namespace
}  // namespace lgpu
