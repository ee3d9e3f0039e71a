#include "allocator/suballocator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <set>
#include <vector>

namespace lgpu {
namespace {

using Handle = Suballocator::Handle;
using Range = Suballocator::Range;
using State = Suballocator::State;
constexpr auto kQuick = Suballocator::Effort::kQuick;
constexpr auto kExhaustive = Suballocator::Effort::kExhaustive;
constexpr auto kAnywhere = Suballocator::Effort::kAnywhere;

class SuballocatorTest : public ::testing::Test {
 protected:
  // A block in pages that are mapped for it, in chunks of one page or in one chunk for each run.
  Handle Grow(Bytes bytes, Bytes chunk = 2_MiB, Bytes alignment = Bytes(256)) {
    const Suballocator::Request request{.bytes = bytes, .alignment = alignment};
    const auto plan = blocks_.PlanGrowth(request, {});
    EXPECT_TRUE(plan.has_value()) << bytes;
    if (!plan) return 0;
    const auto runs = blocks_.UnmappedRuns(*plan);
    std::vector<Range> chunks;
    Range pages;
    for (const auto& run : runs) {
      for (Bytes at = run.pages.offset; at < run.pages.end(); at += chunk) chunks.push_back({at, chunk});
    }
    if (!chunks.empty()) pages = {chunks.front().offset, chunks.back().end() - chunks.front().offset};
    const auto claim = blocks_.ClaimGrowth(request, *plan, pages);
    EXPECT_TRUE(blocks_.CheckInvariants().ok()) << blocks_.CheckInvariants();
    return blocks_.Commit(claim, chunks);
  }
  Handle Must(Bytes bytes, Bytes alignment = Bytes(256)) {
    const auto handle = blocks_.Allocate({.bytes = bytes, .alignment = alignment}, kQuick);
    EXPECT_TRUE(handle.has_value()) << bytes;
    return handle.value_or(0);
  }
  void Free(Handle block) { blocks_.Free(block, ++stamp_); }
  // Takes idle pages away.
  void Unmap(Range pages) {
    for (const auto& run : blocks_.IdleRuns(Suballocator::kYoungest)) {
      if (run.range.offset <= pages.offset && pages.end() <= run.range.end()) {
        blocks_.CommitUnmapped(blocks_.Detach(run, pages));
        return;
      }
    }
    FAIL() << "no idle run at " << pages.offset;
  }
  std::vector<State> States() const {
    std::vector<State> states;
    Suballocator::Snapshot snapshot;
    blocks_.CopyTo(snapshot);
    snapshot.ForEach([&](const Suballocator::NodeInfo& node) { states.push_back(node.state); });
    return states;
  }
  void TearDown() override { EXPECT_TRUE(blocks_.CheckInvariants().ok()) << blocks_.CheckInvariants(); }

  Suballocator blocks_{64_MiB, 2_MiB};
  Suballocator::Stamp stamp_ = 0;
};

TEST_F(SuballocatorTest, NothingFitsBeforePagesAreMapped) {
  EXPECT_FALSE(blocks_.Allocate({.bytes = Bytes(1)}, kAnywhere).has_value());
  const auto plan = blocks_.PlanGrowth({.bytes = 3_MiB}, {});
  ASSERT_TRUE(plan.has_value());
  EXPECT_EQ(plan->fresh, 4_MiB);
  EXPECT_EQ(plan->whole, 4_MiB);
  EXPECT_EQ(plan->block.offset, Bytes());
}

TEST_F(SuballocatorTest, SmallAndLargeBlocksLieInTheirZones) {
  const Handle large = Grow(1_MiB + Bytes(1));
  const Handle small = Grow(1_MiB);
  EXPECT_EQ(blocks_.range(large).offset, Bytes());
  EXPECT_EQ(blocks_.range(small).offset, blocks_.small_zone());
  EXPECT_FALSE(blocks_.Allocate({.bytes = 2_MiB}, kExhaustive).has_value());
  Free(small);
  EXPECT_FALSE(blocks_.Allocate({.bytes = 2_MiB}, kExhaustive).has_value()) << "not in its own zone";
  const auto crossed = blocks_.Allocate({.bytes = 2_MiB}, kAnywhere);
  ASSERT_TRUE(crossed.has_value());
  EXPECT_EQ(blocks_.range(*crossed).offset, blocks_.small_zone());
  // The other way round; nearly 1 MiB is left behind the large block.
  const auto other = blocks_.Allocate({.bytes = 512_KiB}, kAnywhere);
  ASSERT_TRUE(other.has_value());
  EXPECT_EQ(blocks_.range(*other).offset, 1_MiB + Bytes(512));
  Free(large);
}

TEST_F(SuballocatorTest, BlocksAreRoundedToGranulesAndDoNotOverlap) {
  const Handle a = Grow(Bytes(1));
  const Handle b = Must(Bytes(513));
  EXPECT_EQ(blocks_.range(a).bytes, Bytes(512));
  EXPECT_EQ(blocks_.range(b).bytes, Bytes(1024));
  EXPECT_GE(blocks_.range(b).offset, blocks_.range(a).end());
  EXPECT_EQ(blocks_.used(), Bytes(1536));
  EXPECT_EQ(blocks_.live_blocks(), 2u);
}

TEST_F(SuballocatorTest, FreeMergesBothNeighbours) {
  const Handle a = Grow(512_KiB);
  const Handle b = Must(512_KiB);
  const Handle c = Must(512_KiB);
  const Handle d = Must(512_KiB);
  EXPECT_EQ(blocks_.largest_free(), Bytes());
  Free(a);
  Free(c);
  EXPECT_EQ(blocks_.largest_free(), 512_KiB);
  Free(b);
  EXPECT_EQ(blocks_.largest_free(), 1536_KiB);
  Free(d);
  EXPECT_EQ(blocks_.largest_free(), 2_MiB);
  EXPECT_THAT(States(), ::testing::ElementsAre(State::kUnmapped, State::kFree, State::kUnmapped));
}

TEST_F(SuballocatorTest, SaysWhenTheMemoryOfABlockWasFreed) {
  const Handle a = Grow(8_KiB);
  const Handle b = Must(8_KiB);
  const Handle c = Must(8_KiB);
  Must(8_KiB);
  blocks_.Free(a, 3);
  blocks_.Free(c, 5);
  Must(8_KiB, Bytes(1024));  // looks for its place the longer way
  const Suballocator::Stamp first = blocks_.freed_at();
  Must(8_KiB);
  EXPECT_EQ(first + blocks_.freed_at(), 8u) << "one is where a was, one where c was";
  blocks_.Free(b, 7);
  Must(1_KiB);
  EXPECT_EQ(blocks_.freed_at(), 7u) << "a part of it";
}

TEST_F(SuballocatorTest, StaleHandlesAreNotLive) {
  const Handle a = Grow(4_KiB);
  EXPECT_TRUE(blocks_.IsLive(a));
  Free(a);
  EXPECT_FALSE(blocks_.IsLive(a));
  const Handle b = Must(4_KiB);
  EXPECT_FALSE(blocks_.IsLive(a)) << "the place is the same, the block is not";
  EXPECT_TRUE(blocks_.IsLive(b));
  EXPECT_FALSE(blocks_.IsLive(0));
  EXPECT_FALSE(blocks_.IsLive(~Handle{0}));
}

// Nodes of several homes.
class SuballocatorHomesTest : public ::testing::Test {
 protected:
  static constexpr Bytes kPageSize = 2_MiB;
  static constexpr std::uint32_t kNodesOfALine = 64 / sizeof(Node);

  SuballocatorHomesTest() {
    const Suballocator::Request all{.bytes = 2_MiB * 16};
    const auto plan = blocks_.PlanGrowth(all, {});
    std::vector<Suballocator::Range> pages;
    for (Bytes at = plan->block.offset; at < plan->block.end(); at += kPageSize) {
      pages.push_back({at, kPageSize});
    }
    blocks_.Free(blocks_.Commit(blocks_.ClaimGrowth(all, *plan, plan->block), pages), 0);
  }
  void TearDown() override { EXPECT_TRUE(blocks_.CheckInvariants().ok()) << blocks_.CheckInvariants(); }
  Handle Must(Bytes bytes, std::uint32_t home) {
    const auto block = blocks_.Allocate({.bytes = bytes, .home = home}, kAnywhere);
    EXPECT_TRUE(block.has_value());
    return block.value_or(0);
  }
  static std::uint32_t LineOf(Handle block) { return Suballocator::SlotOf(block) / kNodesOfALine; }

  Suballocator blocks_{{.reserved = 256_MiB, .page = kPageSize, .spare_slots = 1024}};
};

TEST_F(SuballocatorHomesTest, AnExactFitGetsANodeOfItsHome) {
  std::vector<Handle> first;
  for (int i = 0; i < 40; ++i) first.push_back(Must(4_KiB, 0));
  std::set<std::uint32_t> lines;
  for (const Handle block : first) lines.insert(LineOf(block));
  const Suballocator::Range hole = blocks_.range(first[20]);
  blocks_.Free(first[20], 1);
  const Handle other = Must(4_KiB, 1);
  EXPECT_EQ(blocks_.range(other), hole);
  EXPECT_EQ(lines.count(LineOf(other)), 0u);
  EXPECT_FALSE(blocks_.IsLive(first[20]));
  // And back: the first home's slot was free to be used again.
  blocks_.Free(other, 2);
  const Handle again = Must(4_KiB, 0);
  EXPECT_EQ(blocks_.range(again), hole);
  EXPECT_EQ(LineOf(again), LineOf(first[20]));
}

TEST_F(SuballocatorHomesTest, HomesThatTakeTurnsDoNotEachKeepNodesForAllBlocks) {
  constexpr std::size_t kBlocks = 8000;
  for (std::uint32_t home = 0; home < Suballocator::kHomes; ++home) {
    std::vector<Handle> live;
    for (std::size_t i = 0; i < kBlocks; ++i) live.push_back(Must(Bytes(512), home));
    for (const Handle block : live) blocks_.Free(block, 1);
  }
  EXPECT_LE(blocks_.nodes().end(), 2 * kBlocks + 1024 + 2 * Suballocator::kHomeRun);
}

TEST(SuballocatorNamesTest, NoHandleIsEverGivenTwice) {
  Suballocator blocks({.reserved = 8_MiB, .page = 2_MiB, .names_per_slot = 3});
  std::vector<Handle> all;
  for (int i = 0; i < 200; ++i) {
    const Suballocator::Request request{.bytes = i % 3 == 0 ? 2_MiB : 4_KiB};
    auto handle = blocks.Allocate(request, kAnywhere);
    if (!handle) {
      const auto plan = blocks.PlanGrowth(request, {});
      ASSERT_TRUE(plan.has_value());
      const Range pages = blocks.UnmappedRuns(*plan).front().pages;
      const auto claim = blocks.ClaimGrowth(request, *plan, pages);
      if (i % 2 == 0) {
        blocks.Abandon(claim);
        ASSERT_TRUE(blocks.CheckInvariants().ok()) << blocks.CheckInvariants();
        continue;
      }
      handle = blocks.Commit(claim, std::vector{pages});
    }
    EXPECT_EQ(std::count(all.begin(), all.end(), *handle), 0) << i;
    for (const Handle old : all) ASSERT_FALSE(blocks.IsLive(old));
    all.push_back(*handle);
    ASSERT_TRUE(blocks.CheckInvariants().ok()) << blocks.CheckInvariants();
    blocks.Free(*handle, 1);
    ASSERT_TRUE(blocks.CheckInvariants().ok()) << blocks.CheckInvariants();
    for (const auto& run : blocks.IdleRuns(1)) {
      const Handle detached = blocks.Detach(run, run.range);
      i % 4 == 1 ? blocks.CommitUnmapped(detached) : blocks.Reattach(detached);
      ASSERT_TRUE(blocks.CheckInvariants().ok()) << blocks.CheckInvariants();
    }
  }
}

TEST_F(SuballocatorTest, GrowthUsesTheFreeTail) {
  Grow(3_MiB);  // 1 MiB is free behind it
  const auto plan = blocks_.PlanGrowth({.bytes = 5_MiB}, {});
  ASSERT_TRUE(plan.has_value());
  EXPECT_EQ(plan->fresh, 4_MiB);
  EXPECT_EQ(plan->block.offset, 3_MiB);
  const Handle block = Grow(5_MiB);
  EXPECT_EQ(blocks_.range(block).offset, 3_MiB);
  EXPECT_EQ(blocks_.free(), Bytes());
}

TEST_F(SuballocatorTest, AbandonedClaimLeavesEverythingAsItWas) {
  Grow(3_MiB);
  const std::vector<State> before = States();
  const Suballocator::Request request{.bytes = 5_MiB};
  const auto plan = blocks_.PlanGrowth(request, {});
  const auto claim = blocks_.ClaimGrowth(request, *plan, blocks_.UnmappedRuns(*plan)[0].pages);
  EXPECT_EQ(blocks_.free(), Bytes());
  ASSERT_TRUE(blocks_.CheckInvariants().ok()) << blocks_.CheckInvariants();
  EXPECT_EQ(blocks_.PlanGrowth(request, {})->block.offset, 8_MiB) << "the claimed place is nobody else's";
  blocks_.Abandon(claim);
  EXPECT_EQ(blocks_.free(), 1_MiB);
  EXPECT_EQ(States(), before);
}

TEST_F(SuballocatorTest, AChunkMayReachBeyondTheBlock) {
  const Handle block = Grow(3_MiB, 8_MiB);
  EXPECT_EQ(blocks_.mapped(), 8_MiB);
  EXPECT_EQ(blocks_.free(), 5_MiB);
  EXPECT_TRUE(blocks_.IdleRuns(Suballocator::kYoungest).empty()) << "a live block holds the chunk";
  EXPECT_EQ(blocks_.PlanGrowth({.bytes = 6_MiB}, {})->fresh, 2_MiB);
  Free(block);
  EXPECT_EQ(blocks_.idle(Suballocator::kYoungest), 8_MiB);
}

TEST_F(SuballocatorTest, SmallBlocksKeepOutOfLargeChunks) {
  const Handle large = Grow(3_MiB, 8_MiB);
  EXPECT_FALSE(blocks_.Allocate({.bytes = 4_KiB}, kAnywhere).has_value());
  const auto any = blocks_.Allocate({.bytes = 4_KiB, .any_chunk = true}, kAnywhere);
  ASSERT_TRUE(any.has_value()) << "unless there are no others";
  EXPECT_TRUE(blocks_.CheckInvariants().ok()) << blocks_.CheckInvariants();
  Free(large);
  EXPECT_FALSE(blocks_.Allocate({.bytes = 4_KiB}, kAnywhere).has_value());
}

TEST_F(SuballocatorTest, HolesBetweenFreeRangesNeedOnlyTheirOwnPages) {
  const Handle front = Grow(3_MiB);
  const Handle middle = Grow(14_MiB);
  const Handle back = Grow(3_MiB);
  ASSERT_EQ(blocks_.range(back).offset, 17_MiB);
  Free(middle);
  Unmap({6_MiB, 2_MiB});
  Unmap({12_MiB, 4_MiB});
  ASSERT_TRUE(blocks_.CheckInvariants().ok()) << blocks_.CheckInvariants();
  const Suballocator::Request request{.bytes = 14_MiB};
  const auto plan = blocks_.PlanGrowth(request, {});
  ASSERT_TRUE(plan.has_value());
  EXPECT_EQ(plan->fresh, 6_MiB);
  EXPECT_EQ(plan->whole, 12_MiB) << "8 to 12 MiB is idle, 3 to 4 and 16 to 17 share pages with live blocks";
  EXPECT_EQ(blocks_.UnmappedRuns(*plan).size(), 2u);
  const Handle again = Grow(14_MiB);
  EXPECT_EQ(blocks_.range(again).offset, 3_MiB);
  Free(again);
  Free(front);
  Free(back);
  EXPECT_EQ(blocks_.largest_free(), 20_MiB);
}

TEST_F(SuballocatorTest, DetachedPagesCanStay) {
  Free(Grow(6_MiB));
  const auto runs = blocks_.IdleRuns(Suballocator::kYoungest);
  ASSERT_EQ(runs.size(), 1u);
  const Handle pages = blocks_.Detach(runs[0], {2_MiB, 2_MiB});
  EXPECT_EQ(blocks_.largest_free(), 2_MiB);
  blocks_.Reattach(pages);
  EXPECT_EQ(blocks_.largest_free(), 6_MiB);
}

TEST_F(SuballocatorTest, MergedRangesHaveTheYoungestStamp) {
  const Handle a = Grow(4_MiB);
  const Handle b = Grow(4_MiB);
  const Handle c = Grow(4_MiB);
  blocks_.Free(c, 5);
  blocks_.Free(a, 7);
  EXPECT_EQ(blocks_.idle(4), Bytes());
  EXPECT_EQ(blocks_.idle(5), 4_MiB);
  EXPECT_EQ(blocks_.idle(7), 8_MiB);
  blocks_.Free(b, 9);
  EXPECT_EQ(blocks_.idle(8), Bytes());
  EXPECT_EQ(blocks_.IdleRuns(9).front().stamp, 9u);
  blocks_.RebaseStamps(6);
  EXPECT_EQ(blocks_.idle(2), Bytes());
  EXPECT_EQ(blocks_.idle(3), 12_MiB);
  blocks_.RebaseStamps(100);
  EXPECT_EQ(blocks_.idle(0), 12_MiB);
}

TEST_F(SuballocatorTest, PagesThatAreNotSettledCountAsPinned) {
  const Handle a = Grow(4_MiB);
  Grow(4_MiB);
  blocks_.Free(a, 7);
  EXPECT_EQ(blocks_.PlanGrowth({.bytes = 6_MiB}, {.settled = 7})->whole, 6_MiB);
  Unmap({2_MiB, 2_MiB});
  const Suballocator::GrowthOptions options{.prefer = Suballocator::Prefer::kFewestWhole,
                                            .search = Suballocator::Search::kExhaustive,
                                            .settled = 6};
  EXPECT_EQ(blocks_.PlanGrowth({.bytes = 4_MiB}, options)->whole, 2_MiB);
}

TEST_F(SuballocatorTest, ExhaustiveSearchFindsTheTightFit) {
  // Many ranges of one size class, of which only the one that was freed first, deep in the list, fits.
  std::vector<Handle> blocks = {Grow(Bytes(65 * 512))};
  for (int i = 1; i < 16; ++i) {
    Must(Bytes(33 * 512));
    blocks.push_back(Must(Bytes(64 * 512)));
  }
  while (!blocks_.largest_free().is_zero()) {
    ASSERT_TRUE(blocks_.Allocate({.bytes = std::min(blocks_.largest_free(), 1_MiB)}, kAnywhere).has_value());
  }
  for (const Handle block : blocks) Free(block);
  EXPECT_TRUE(blocks_.Allocate({.bytes = Bytes(65 * 512)}, kExhaustive).has_value());
}

TEST_F(SuballocatorTest, AlignmentsHoldForEverySize) {
  Free(Grow(16_MiB));
  for (std::uint64_t alignment = 256; alignment <= (2u << 20); alignment *= 2) {
    for (const std::uint64_t size : {1u, 511u, 512u, 513u, 4096u, 100'000u, 3'000'000u}) {
      const Suballocator::Request request{.bytes = Bytes(size), .alignment = Bytes(alignment)};
      const Handle pad = blocks_.Allocate({.bytes = Bytes(512)}, kAnywhere).value_or(0);
      const auto block = blocks_.Allocate(request, kAnywhere);
      ASSERT_TRUE(block.has_value()) << size << " at " << alignment;
      EXPECT_EQ(blocks_.range(*block).offset.count() % alignment, 0u);
      Free(*block);
      Free(pad);
    }
  }
}

TEST_F(SuballocatorTest, NoPlaceForMoreThanTheRegion) {
  EXPECT_FALSE(blocks_.PlanGrowth({.bytes = 65_MiB}, {}).has_value());
  EXPECT_FALSE(blocks_.PlanGrowth({.bytes = Bytes(~std::uint64_t{0})}, {}).has_value());
  EXPECT_TRUE(blocks_.PlanGrowth({.bytes = 64_MiB}, {}).has_value());
}

TEST_F(SuballocatorTest, TagsStayWithTheirBlocks) {
  const Handle a = Grow(4_KiB);
  const Handle b = Must(4_KiB);
  EXPECT_EQ(blocks_.tag(a), 0u);
  blocks_.SetTag(a, 7);
  blocks_.SetTag(b, 8);
  Free(b);
  EXPECT_EQ(blocks_.tag(Must(4_KiB)), 0u);
  EXPECT_EQ(blocks_.tag(a), 7u);
}

TEST(SuballocatorHugeTest, AddressesOfTerabytesArePossible) {
  Suballocator blocks(Suballocator::kMaxReserved, 2_MiB);
  const Suballocator::Request request{.bytes = 512_GiB};
  const auto plan = blocks.PlanGrowth(request, {});
  ASSERT_TRUE(plan.has_value());
  const auto runs = blocks.UnmappedRuns(*plan);
  ASSERT_EQ(runs.size(), 1u);
  const Handle block =
      blocks.Commit(blocks.ClaimGrowth(request, *plan, runs[0].pages), std::vector{runs[0].pages});
  EXPECT_EQ(blocks.range(block).bytes, 512_GiB);
  EXPECT_TRUE(blocks.CheckInvariants().ok()) << blocks.CheckInvariants();
  blocks.Free(block, 1);
  EXPECT_EQ(blocks.idle(1), 512_GiB);
  EXPECT_EQ(blocks.largest_free(), 512_GiB);
  EXPECT_FALSE(blocks.PlanGrowth({.bytes = 2_TiB}, {}).has_value());
}

}  // namespace
}  // namespace lgpu
