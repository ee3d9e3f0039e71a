#include <gtest/gtest.h>

#include <iterator>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "bench/peers/contenders.h"
#include "bench/peers/pool_contender.h"
#include "bench/peers/space.h"
#include "bench/workloads/catalog.h"
#include "bench/workloads/random.h"

namespace lgpu::bench {
namespace {

std::vector<std::string_view> PlacingKinds() {
  std::vector<std::string_view> names;
  for (const ContenderKind& kind : ContenderKinds()) {
    if (kind.name != "bound") names.push_back(kind.name);
  }
  return names;
}

// Every live byte belongs to one block.
class Shadow {
 public:
  bool Add(Bytes offset, Bytes bytes) {
    const auto next = live_.upper_bound(offset);
    if (next != live_.end() && next->first < offset + bytes) return false;
    if (next != live_.begin() && std::prev(next)->second > offset) return false;
    live_.emplace(offset, offset + bytes);
    return true;
  }
  void Remove(Bytes offset) { live_.erase(offset); }

 private:
  std::map<Bytes, Bytes> live_;  // offset to end
};

class ContenderTest : public ::testing::TestWithParam<std::string_view> {
 protected:
  static const ContenderKind& Kind() { return **FindContenderKind(GetParam()); }
};

// Grows and shrinks in turns, at a limit that refuses some.
void Storm(const ContenderKind& kind, Bytes limit, Bytes largest, int turns, std::uint64_t seed) {
  SCOPED_TRACE("seed " + std::to_string(seed));
  constexpr Slot kSlots = 40000;
  const std::unique_ptr<Contender> contender = kind.make({.limit = limit, .slots = kSlots});
  Random random(seed);
  Shadow shadow;
  std::vector<Slot> live;
  std::vector<Slot> vacant;
  for (Slot slot = 0; slot < kSlots; ++slot) vacant.push_back(slot);
  for (int i = 0; i < turns; ++i) {
    const bool growing = i / (turns / 8) % 2 == 0;
    if (live.empty() || random.Below(100) < (growing ? 65u : 35u)) {
      const Bytes bytes = random.LogUniform(256_B, largest);
      if (contender->Allocate(vacant.back(), bytes)) {
        ASSERT_TRUE(shadow.Add(contender->OffsetOf(vacant.back()), bytes)) << "overlap in turn " << i;
        ASSERT_LE(contender->held(), limit) << "turn " << i;
        live.push_back(vacant.back());
        vacant.pop_back();
      }
    } else {
      std::swap(live[random.Below(live.size())], live.back());
      shadow.Remove(contender->OffsetOf(live.back()));
      contender->Free(live.back());
      vacant.push_back(live.back());
      live.pop_back();
    }
  }
  for (const Slot slot : live) contender->Free(slot);
}

TEST_P(ContenderTest, NeverHandsOutAByteTwice) {
  Storm(Kind(), 1_GiB, 64_MiB, 8000, 11);
  Storm(Kind(), 256_MiB, 1_MiB, 8000, 12);
}

TEST_P(ContenderTest, ReplaysEveryKindOfWorkload) {
  for (const std::string_view name : {"A", "F", "S6", "S11"}) {
    const Trace trace = *MakeWorkload(name, {.scale = Scale::kSmall});
    const std::unique_ptr<Contender> contender = Kind().make({.limit = 64_GiB, .slots = trace.slots});
    EXPECT_EQ(Kind().replay(*contender, trace.events), trace.events.size()) << name;
  }
}

INSTANTIATE_TEST_SUITE_P(All, ContenderTest, ::testing::ValuesIn(PlacingKinds()), [](const auto& kind) {
  std::string name(kind.param);
  std::erase(name, '-');
  return name;
});

TEST(PoolContenderTest, LeavesNothingBehind) {
  for (const std::string_view name : {"S3", "S9", "S10", "S12"}) {
    const Trace trace = *MakeWorkload(name, {.scale = Scale::kSmall});
    PoolContender contender({.limit = RoundUp(Summarize(trace).peak_live * 2, kPage), .slots = trace.slots});
    const SpaceResult result = ReplayForSpace(trace, contender, OnRefusal::kStop);
    EXPECT_TRUE(result.completed) << name << ": " << contender.first_refusal();
    EXPECT_EQ(contender.pool().stats().live_blocks, 0u) << name;
    EXPECT_TRUE(contender.pool().CheckInvariants().ok()) << contender.pool().CheckInvariants();
  }
}

TEST(SpaceTest, BoundCompletesAtItsPages) {
  const Trace trace = *MakeWorkload("S3", {.scale = Scale::kSmall});
  const Bytes peak = Summarize(trace).peak_live;
  EXPECT_EQ(SmallestLimit(trace, (*FindContenderKind("bound"))->make), RoundUp(peak, kPage));
}

TEST(SpaceTest, CombNeedsHalfAsMuchAgainWithoutMovingPages) {
  const Trace trace = *MakeWorkload("S10");
  const Bytes peak = Summarize(trace).peak_live;
  for (const std::string_view name : {"flat", "segments", "bfc", "list"}) {
    const auto limit = SmallestLimit(trace, (*FindContenderKind(name))->make);
    ASSERT_TRUE(limit.has_value()) << name;
    EXPECT_NEAR(static_cast<double>(limit->count()) / static_cast<double>(peak.count()), 1.5, 0.01) << name;
  }
}

TEST(SpaceTest, RefusedBlocksAreLeftOut) {
  TraceBuilder builder("t", "");
  const Slot large = builder.Allocate(8_MiB);
  const Slot small = builder.Allocate(1_MiB);
  builder.Free(large);
  builder.Free(small);
  const Trace trace = std::move(builder).Finish();
  const ContenderKind& flat = **FindContenderKind("flat");
  const auto contender = flat.make({.limit = 4_MiB, .slots = trace.slots});
  const SpaceResult on = ReplayForSpace(trace, *contender, OnRefusal::kGoOn);
  EXPECT_FALSE(on.completed);
  EXPECT_EQ(on.refusals, 1u);
  EXPECT_EQ(on.peak_live, 1_MiB);
  const SpaceResult stopped = ReplayForSpace(trace, *contender, OnRefusal::kStop);
  EXPECT_EQ(stopped.first_refusal, 0u);
  EXPECT_EQ(stopped.peak_live, 0_B);
}

TEST(SpaceTest, UseAtFirstRefusalOfTheBoundIsNearlyAll) {
  const RisingChurnShape shape = {
      .limit = 64_MiB, .smallest = 256_B, .largest = 256_KiB, .replaced_per_addition = 2};
  const double bound = UseAtFirstRefusal(shape, (*FindContenderKind("bound"))->make, 1);
  const double flat = UseAtFirstRefusal(shape, (*FindContenderKind("flat"))->make, 1);
  EXPECT_GT(bound, 0.99);
  EXPECT_LT(flat, bound);
}

}  // namespace
}  // namespace lgpu::bench
