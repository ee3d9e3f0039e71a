// Random operations on a Suballocator, and pairs of runs that have to agree.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <random>
#include <vector>

#include "allocator/suballocator.h"
#include "tests/support/suballocator_driver.h"
#include "tests/support/test_seed.h"

namespace lgpu {
namespace {

using Handle = Suballocator::Handle;
using Range = Suballocator::Range;

TEST(SuballocatorPropertyTest, RandomOperationsAgreeWithAnAccount) {
  const unsigned seed = TestSeed();
  std::mt19937 random(seed);
  for (int round = 0; round < 20; ++round) {
    std::vector<std::uint8_t> input(400 * SuballocatorDriver::kStepBytes);
    std::generate(input.begin(), input.end(), [&] { return static_cast<std::uint8_t>(random()); });
    SuballocatorDriver driver;
    driver.Run(input.data(), input.size());
  }
}

// A Suballocator with a number of pages that it may map; idle ones are moved when there are no more.
class Arena {
 public:
  struct Options {
    Bytes page = 2_MiB;
    std::uint64_t pages;
    bool moves = true;
  };
  explicit Arena(const Options& options)
      : options_(options), core_(options.page * options.pages * 8, options.page) {}

  std::optional<Handle> Allocate(Bytes bytes) {
    const Suballocator::Request request{.bytes = bytes};
    if (const auto block = core_.Allocate(request, Suballocator::Effort::kQuick)) return block;
    const Suballocator::GrowthOptions all{.prefer = Suballocator::Prefer::kFewestWhole,
                                          .search = Suballocator::Search::kExhaustive};
    auto plan = core_.PlanGrowth(request, {});
    if (plan && Fits(*plan)) return Map(request, *plan);
    short_ = true;
    if (!options_.moves) return std::nullopt;
    if (const auto block = core_.Allocate(request, Suballocator::Effort::kAnywhere)) return block;
    plan = core_.PlanGrowth(request, all);
    while (plan && !Fits(*plan) && MoveOne(plan->block)) plan = core_.PlanGrowth(request, all);
    return plan && Fits(*plan) ? std::optional(Map(request, *plan)) : std::nullopt;
  }
  void Free(Handle block) { core_.Free(block, ++stamp_); }
  Suballocator& core() { return core_; }
  bool was_short() const { return short_; }

 private:
  bool Fits(const Suballocator::Placement& plan) const {
    return core_.mapped() + plan.fresh <= options_.page * options_.pages;
  }
  Handle Map(const Suballocator::Request& request, const Suballocator::Placement& plan) {
    std::vector<Range> chunks;
    for (const Suballocator::Run& run : core_.UnmappedRuns(plan)) {
      for (Bytes at = run.pages.offset; at < run.pages.end(); at += options_.page) {
        chunks.push_back({at, options_.page});
      }
    }
    const Range pages =
        chunks.empty() ? Range{} : Range{chunks.front().offset, chunks.back().end() - chunks.front().offset};
    return core_.Commit(core_.ClaimGrowth(request, plan, pages), chunks);
  }
  bool MoveOne(Range block) {
    for (const Suballocator::IdleRun& run : core_.IdleRuns(Suballocator::kYoungest)) {
      for (Bytes at = run.range.end() - options_.page;; at -= options_.page) {
        if (at >= block.end() || at + options_.page <= block.offset) {
          core_.CommitUnmapped(core_.Detach(run, {at, options_.page}));
          return true;
        }
        if (at == run.range.offset) break;
      }
    }
    return false;
  }

  const Options options_;
  Suballocator core_;
  Suballocator::Stamp stamp_ = 0;
  bool short_ = false;
};

// Calls allocate(bytes) and free(index) as a random program would; the same calls for the same seed.
template <typename Allocate, typename Free>
void RandomProgram(unsigned seed, int steps, Bytes smallest, Bytes largest, Allocate allocate, Free free) {
  std::mt19937 random(seed);
  std::size_t live = 0;
  const double ratio = static_cast<double>(largest.count()) / static_cast<double>(smallest.count());
  for (int step = 0; step < steps; ++step) {
    if (live == 0 || random() % 100 < 55) {
      const double scale = std::uniform_real_distribution<>(0, 1)(random);
      const auto bytes =
          static_cast<std::uint64_t>(static_cast<double>(smallest.count()) * std::pow(ratio, scale));
      live += allocate(RoundUp(Bytes(bytes), Bytes(512))) ? 1 : 0;
    } else {
      free(random() % live);
      --live;
    }
  }
}

TEST(SuballocatorMetamorphicTest, TwiceTheSizesAndPagesAreTheSameDecisions) {
  const unsigned seed = TestSeed();
  Arena one({.page = 2_MiB, .pages = 100});
  Arena two({.page = 4_MiB, .pages = 100});
  std::vector<std::pair<Handle, Handle>> live;
  int refused = 0;
  RandomProgram(
      seed, 3000, 3_MiB, 40_MiB,
      [&](Bytes bytes) {
        const auto a = one.Allocate(bytes);
        const auto b = two.Allocate(bytes * 2);
        EXPECT_EQ(a.has_value(), b.has_value());
        refused += a ? 0 : 1;
        if (!a || !b) return false;
        EXPECT_EQ(one.core().range(*a).offset * 2, two.core().range(*b).offset);
        live.emplace_back(*a, *b);
        return true;
      },
      [&](std::size_t i) {
        one.Free(live[i].first);
        two.Free(live[i].second);
        live.erase(live.begin() + static_cast<std::ptrdiff_t>(i));
      });
  EXPECT_GT(refused, 0);
}

TEST(SuballocatorMetamorphicTest, MovesChangeNothingBeforeTheFirstShortage) {
  const unsigned seed = TestSeed();
  Arena moves({.pages = 200});
  Arena stays({.pages = 200, .moves = false});
  std::vector<std::pair<Handle, Handle>> live;
  int compared = 0;
  RandomProgram(
      seed, 3000, 1_KiB, 30_MiB,
      [&](Bytes bytes) {
        if (stays.was_short()) return false;
        const auto a = moves.Allocate(bytes);
        const auto b = stays.Allocate(bytes);
        if (stays.was_short() || !a || !b) return false;
        EXPECT_EQ(moves.core().range(*a), stays.core().range(*b));
        ++compared;
        live.emplace_back(*a, *b);
        return true;
      },
      [&](std::size_t i) {
        if (!stays.was_short()) {
          moves.Free(live[i].first);
          stays.Free(live[i].second);
          live.erase(live.begin() + static_cast<std::ptrdiff_t>(i));
        }
      });
  EXPECT_GT(compared, 20);
}

TEST(SuballocatorMetamorphicTest, MorePagesRefuseNothingThatFewerGave) {
  const unsigned seed = TestSeed();
  Arena few({.pages = 60});
  Arena many({.pages = 75});
  std::vector<std::pair<Handle, Handle>> live;
  bool over = false;
  RandomProgram(
      seed, 2000, 1_KiB, 20_MiB,
      [&](Bytes bytes) {
        const auto a = few.Allocate(bytes);
        over = over || !a;
        if (over) return false;
        const auto b = many.Allocate(bytes);
        EXPECT_TRUE(b.has_value()) << bytes;
        live.emplace_back(*a, b.value_or(0));
        return true;
      },
      [&](std::size_t i) {
        if (!over) {
          few.Free(live[i].first);
          many.Free(live[i].second);
          live.erase(live.begin() + static_cast<std::ptrdiff_t>(i));
        }
      });
}

// One block, replaced by its halves again and again, and back.
TEST(SuballocatorRefillTest, EveryLevelFillsTheSamePages) {
  Arena arena({.pages = 32});
  Suballocator& core = arena.core();
  std::vector<Handle> blocks = {*arena.Allocate(64_MiB)};
  for (Bytes bytes = 32_MiB; bytes >= 2_MiB; bytes = bytes / 2) {
    std::vector<Handle> halves;
    for (const Handle block : blocks) {
      arena.Free(block);
      for (int i = 0; i < 2; ++i) {
        const auto half = arena.Allocate(bytes);
        ASSERT_TRUE(half.has_value()) << bytes;
        halves.push_back(*half);
      }
      ASSERT_TRUE(core.CheckInvariants().ok()) << core.CheckInvariants();
      ASSERT_EQ(core.used(), 64_MiB);
      ASSERT_EQ(core.free(), Bytes());
    }
    blocks = std::move(halves);
    EXPECT_EQ(core.live_blocks(), blocks.size());
  }
  EXPECT_FALSE(arena.Allocate(Bytes(1)).has_value());
  // Every other one away, the same refill, then all of it.
  for (std::size_t i = 0; i < blocks.size(); i += 2) arena.Free(blocks[i]);
  for (std::size_t i = 0; i < blocks.size(); i += 2) {
    const auto block = arena.Allocate(2_MiB);
    ASSERT_TRUE(block.has_value());
    blocks[i] = *block;
  }
  for (const Handle block : blocks) arena.Free(block);
  EXPECT_EQ(core.largest_free(), 64_MiB);
  EXPECT_EQ(core.mapped(), 64_MiB);
}

TEST(SuballocatorRefillTest, MetadataStaysSmall) {
  Arena arena({.pages = 4000});
  std::vector<Handle> live;
  std::mt19937 random(1);
  for (int i = 0; i < 20000; ++i) live.push_back(*arena.Allocate(Bytes(1 + random() % 100'000)));
  for (int i = 0; i < 100000; ++i) {
    Handle& block = live[random() % live.size()];
    arena.Free(block);
    block = *arena.Allocate(Bytes(1 + random() % 100'000));
  }
  EXPECT_LE(arena.core().footprint(), 64 * live.size() + 4000 * 8 / 8 + 64);
}

}  // namespace
}  // namespace lgpu
