#include "allocator/suballocator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <map>
#include <optional>
#include <random>
#include <vector>

namespace lgpu {
namespace {

using Handle = Suballocator::Handle;
constexpr auto kQuick = Suballocator::Effort::kQuick;
constexpr auto kExhaustive = Suballocator::Effort::kExhaustive;
constexpr auto kFewestNew = Suballocator::Prefer::kFewestNew;

class SuballocatorTest : public testing::Test {
 protected:
  // Maps `bytes` behind everything and leaves them free.
  void MapPages(Bytes bytes) {
    const auto claim = blocks_.ClaimGrowth(bytes, Bytes(512), bytes);
    ASSERT_TRUE(claim.has_value());
    blocks_.Free(blocks_.Commit(*claim));
  }
  Handle Must(Bytes bytes, Bytes alignment = Bytes(256)) {
    const auto handle = blocks_.Allocate(bytes, alignment, kQuick);
    EXPECT_TRUE(handle.has_value()) << bytes;
    return handle.value_or(0);
  }
  void TearDown() override { EXPECT_TRUE(blocks_.CheckInvariants().ok()) << blocks_.CheckInvariants(); }

  Suballocator blocks_{64_MiB, 2_MiB};
};

TEST_F(SuballocatorTest, NothingFitsBeforePagesAreMapped) {
  EXPECT_FALSE(blocks_.Allocate(Bytes(1), Bytes(256), kExhaustive).has_value());
  const auto plan = blocks_.PlanGrowth(3_MiB, Bytes(256), kFewestNew);
  ASSERT_TRUE(plan.has_value());
  EXPECT_EQ(plan->unmapped, 4_MiB);
  EXPECT_EQ(plan->block.offset, Bytes());
}

TEST_F(SuballocatorTest, BlocksAreRoundedToGranulesAndDoNotOverlap) {
  MapPages(2_MiB);
  const Handle a = Must(Bytes(1));
  const Handle b = Must(Bytes(513));
  EXPECT_EQ(blocks_.range(a).bytes, Bytes(512));
  EXPECT_EQ(blocks_.range(b).bytes, Bytes(1024));
  EXPECT_GE(blocks_.range(b).offset, blocks_.range(a).end());
  EXPECT_EQ(blocks_.used(), Bytes(1536));
  EXPECT_EQ(blocks_.requested(), Bytes(514));
  EXPECT_EQ(blocks_.live_blocks(), 2u);
}

TEST_F(SuballocatorTest, FreeMergesBothNeighbours) {
  MapPages(2_MiB);
  const Handle a = Must(512_KiB);
  const Handle b = Must(512_KiB);
  const Handle c = Must(512_KiB);
  const Handle d = Must(512_KiB);
  EXPECT_EQ(blocks_.largest_free(), Bytes());
  blocks_.Free(a);
  blocks_.Free(c);
  EXPECT_EQ(blocks_.largest_free(), 512_KiB);
  blocks_.Free(b);
  EXPECT_EQ(blocks_.largest_free(), 1536_KiB);
  blocks_.Free(d);
  EXPECT_EQ(blocks_.largest_free(), 2_MiB);
}

TEST_F(SuballocatorTest, StaleHandlesAreNotLive) {
  MapPages(2_MiB);
  const Handle a = Must(4_KiB);
  EXPECT_TRUE(blocks_.IsLive(a));
  blocks_.Free(a);
  EXPECT_FALSE(blocks_.IsLive(a));
  const Handle b = Must(4_KiB);
  EXPECT_EQ(blocks_.range(b).offset, Bytes());
  EXPECT_FALSE(blocks_.IsLive(a)) << "the slot and the place are the same, the block is not";
  EXPECT_FALSE(blocks_.IsLive(0));
  EXPECT_FALSE(blocks_.IsLive(~Handle{0}));
}

TEST_F(SuballocatorTest, GrowthUsesTheFreeTail) {
  MapPages(4_MiB);
  Must(1_MiB);  // 3 MiB are free behind it
  const auto plan = blocks_.PlanGrowth(5_MiB, Bytes(256), kFewestNew);
  ASSERT_TRUE(plan.has_value());
  EXPECT_EQ(plan->unmapped, 2_MiB);
  const auto claim = blocks_.ClaimGrowth(5_MiB, Bytes(256), plan->unmapped);
  ASSERT_TRUE(claim.has_value());
  EXPECT_EQ(claim->map_offset, 4_MiB);
  EXPECT_EQ(claim->block.offset, 1_MiB);
  const Handle block = blocks_.Commit(*claim);
  EXPECT_EQ(blocks_.range(block).bytes, 5_MiB);
  EXPECT_EQ(blocks_.free(), Bytes());
}

TEST_F(SuballocatorTest, AbandonedClaimLeavesEverythingAsItWas) {
  MapPages(4_MiB);
  Must(1_MiB);
  const auto claim = blocks_.ClaimGrowth(5_MiB, Bytes(256), 2_MiB);
  ASSERT_TRUE(claim.has_value());
  EXPECT_EQ(blocks_.free(), Bytes());
  ASSERT_TRUE(blocks_.CheckInvariants().ok());
  blocks_.Abandon(*claim);
  EXPECT_EQ(blocks_.free(), 3_MiB);
  EXPECT_EQ(blocks_.largest_free(), 3_MiB);
  EXPECT_EQ(blocks_.PlanGrowth(5_MiB, Bytes(256), kFewestNew)->unmapped, 2_MiB);
}

TEST_F(SuballocatorTest, HoleBetweenFreeRangesNeedsOnlyItsOwnPages) {
  MapPages(6_MiB);
  const Handle front = Must(1_MiB);
  const Handle middle = Must(4_MiB);
  const Handle back = Must(1_MiB);
  ASSERT_EQ(blocks_.range(back).offset, 5_MiB);
  blocks_.Free(middle);
  const Handle hole = blocks_.Detach({2_MiB, 2_MiB});
  EXPECT_EQ(blocks_.free(), 2_MiB);
  blocks_.CommitUnmapped(hole);
  ASSERT_TRUE(blocks_.CheckInvariants().ok()) << blocks_.CheckInvariants();
  const auto plan = blocks_.PlanGrowth(4_MiB, Bytes(256), kFewestNew);
  ASSERT_TRUE(plan.has_value());
  EXPECT_EQ(plan->unmapped, 2_MiB);
  const auto claim = blocks_.ClaimGrowth(4_MiB, Bytes(256), 2_MiB);
  ASSERT_TRUE(claim.has_value());
  EXPECT_EQ(claim->block.offset, 1_MiB);
  blocks_.Free(blocks_.Commit(*claim));
  EXPECT_EQ(blocks_.largest_free(), 4_MiB);
  blocks_.Free(front);
}

TEST_F(SuballocatorTest, DetachedPagesCanStay) {
  MapPages(6_MiB);
  const Handle pages = blocks_.Detach({2_MiB, 2_MiB});
  EXPECT_EQ(blocks_.largest_free(), 2_MiB);
  blocks_.Reattach(pages);
  EXPECT_EQ(blocks_.largest_free(), 6_MiB);
}

TEST_F(SuballocatorTest, ExhaustiveSearchFindsTheTightFit) {
  MapPages(64_MiB);
  // Many ranges of one size class, of which only the one that was freed first, deep in the list, fits.
  std::vector<Handle> blocks;
  for (int i = 0; i < 16; ++i) {
    blocks.push_back(Must(i == 0 ? Bytes(64 * 512 + 512) : Bytes(64 * 512)));
    Must(Bytes(512));
  }
  Must(blocks_.largest_free());
  for (const Handle block : blocks) {
    blocks_.Free(block);
  }
  EXPECT_TRUE(blocks_.Allocate(Bytes(65 * 512), Bytes(256), kExhaustive).has_value());
}

TEST_F(SuballocatorTest, AlignmentsHoldForEverySize) {
  MapPages(32_MiB);
  for (std::uint64_t alignment = 256; alignment <= (2u << 20); alignment *= 2) {
    for (const std::uint64_t size : {1u, 511u, 512u, 513u, 4096u, 100'000u, 3'000'000u}) {
      const Handle pad = Must(Bytes(512));
      const auto block = blocks_.Allocate(Bytes(size), Bytes(alignment), kExhaustive);
      ASSERT_TRUE(block.has_value()) << size << " at " << alignment;
      EXPECT_EQ(blocks_.range(*block).offset.count() % alignment, 0u);
      blocks_.Free(*block);
      blocks_.Free(pad);
    }
  }
}

TEST_F(SuballocatorTest, NoPlaceForMoreThanTheRegion) {
  EXPECT_FALSE(blocks_.PlanGrowth(65_MiB, Bytes(256), kFewestNew).has_value());
  EXPECT_TRUE(blocks_.PlanGrowth(64_MiB, Bytes(256), kFewestNew).has_value());
}

// Random operations against an oracle of live ranges and mapped pages.
TEST(SuballocatorPropertyTest, RandomOperationsKeepTheInvariants) {
  const char* const given = std::getenv("LGPU_TEST_SEED");
  const unsigned seed = given != nullptr ? static_cast<unsigned>(std::atoi(given)) : std::random_device{}();
  std::printf("LGPU_TEST_SEED=%u\n", seed);
  SCOPED_TRACE(testing::Message() << "LGPU_TEST_SEED=" << seed);
  std::mt19937 random(seed);
  Suballocator blocks(256_MiB, 2_MiB);
  std::map<std::uint64_t, std::pair<std::uint64_t, Handle>> live;  // offset -> (size, handle)
  std::vector<bool> mapped(128);
  const auto add = [&](Handle handle) {
    const auto range = blocks.range(handle);
    const auto next = live.lower_bound(range.offset.count());
    ASSERT_TRUE(next == live.end() || next->first >= range.end().count());
    ASSERT_TRUE(next == live.begin() ||
                std::prev(next)->first + std::prev(next)->second.first <= range.offset.count());
    for (std::uint64_t p = range.offset.count() >> 21; p << 21 < range.end().count(); ++p) {
      ASSERT_TRUE(mapped[p]);
    }
    live[range.offset.count()] = {range.bytes.count(), handle};
  };
  for (int step = 0; step < 4000; ++step) {
    const std::uint64_t size = 1 + (random() % 3 == 0 ? random() % (8u << 20) : random() % 20000);
    const Bytes alignment(std::uint64_t{256} << (random() % 4 == 0 ? random() % 14 : 0));
    const unsigned kind = random() % 10;
    if (kind < 5) {
      auto handle = blocks.Allocate(Bytes(size), alignment, random() % 2 ? kQuick : kExhaustive);
      const auto plan = blocks.PlanGrowth(Bytes(size), alignment,
                                          random() % 2 ? kFewestNew : Suballocator::Prefer::kFewestWhole);
      if (!handle && plan) {
        const Bytes fresh = plan->unmapped + 2_MiB * (random() % 3);
        if (const auto claim = blocks.ClaimGrowth(Bytes(size), alignment, fresh)) {
          if (random() % 4 == 0) {
            ASSERT_TRUE(blocks.CheckInvariants().ok()) << blocks.CheckInvariants();
            blocks.Abandon(*claim);
          } else {
            for (std::uint64_t p = claim->map_offset / 2_MiB; p < (claim->map_offset + fresh) / 2_MiB; ++p) {
              ASSERT_FALSE(mapped[p]);
              mapped[p] = true;
            }
            handle = blocks.Commit(*claim);
          }
        }
      }
      if (handle) {
        EXPECT_EQ(blocks.range(*handle).offset.count() % alignment.count(), 0u);
        ASSERT_NO_FATAL_FAILURE(add(*handle));
      }
    } else if (kind < 9 && !live.empty()) {
      const auto victim = std::next(live.begin(), static_cast<std::ptrdiff_t>(random() % live.size()));
      blocks.Free(victim->second.second);
      live.erase(victim);
    } else if (const auto ranges = blocks.FreeRanges(4_MiB); !ranges.empty()) {
      const auto& range = ranges[random() % ranges.size()];
      const Bytes start = RoundUp(range.offset, 2_MiB);
      const Bytes pages = RoundDown(range.end() - start, 2_MiB);
      const Handle detached = blocks.Detach({start, pages});
      if (random() % 2 == 0) {
        blocks.Reattach(detached);
      } else {
        blocks.CommitUnmapped(detached);
        std::fill_n(mapped.begin() + static_cast<std::ptrdiff_t>(start / 2_MiB), pages / 2_MiB, false);
      }
    }
    ASSERT_TRUE(blocks.CheckInvariants().ok()) << blocks.CheckInvariants() << " at step " << step;
  }
  std::uint64_t used = 0;
  for (const auto& [offset, block] : live) {
    used += block.first;
  }
  EXPECT_EQ(blocks.used(), Bytes(used));
  for (const auto& [offset, block] : live) {
    blocks.Free(block.second);
  }
  EXPECT_EQ(blocks.used(), Bytes());
  EXPECT_TRUE(blocks.CheckInvariants().ok());
}

}  // namespace
}  // namespace lgpu
