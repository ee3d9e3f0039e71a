#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <vector>

#include "bench/workloads/catalog.h"
#include "bench/workloads/churn.h"
#include "bench/workloads/random.h"
#include "bench/workloads/trace.h"

namespace lgpu::bench {
namespace {

std::vector<std::string_view> AllNames() {
  std::vector<std::string_view> names = SpaceWorkloads();
  for (const TimeWorkload& workload : TimeWorkloads()) names.push_back(workload.name);
  return names;
}

class WorkloadTest : public ::testing::TestWithParam<std::string_view> {
 protected:
  static Trace Make(std::uint64_t seed = 0) {
    absl::StatusOr<Trace> trace = MakeWorkload(GetParam(), {.scale = Scale::kSmall, .seed = seed});
    EXPECT_TRUE(trace.ok()) << trace.status();
    return *std::move(trace);
  }
};

TEST_P(WorkloadTest, FreesAllItsAllocations) {
  const Trace trace = Make();
  EXPECT_TRUE(Validate(trace).ok()) << Validate(trace);
  const TraceSummary summary = Summarize(trace);
  EXPECT_GT(summary.allocations, 0u);
  EXPECT_EQ(summary.allocations, summary.frees);
  EXPECT_LE(trace.fill_end, trace.drain_begin);
  EXPECT_LE(trace.drain_begin, trace.events.size());
}

TEST_P(WorkloadTest, DependsOnItsSeedAlone) {
  EXPECT_EQ(Summarize(Make()).hash, Summarize(Make()).hash);
  EXPECT_EQ(Summarize(Make(77)).hash, Summarize(Make(77)).hash);
}

TEST_P(WorkloadTest, CountsItsSteps) {
  const Trace trace = Make();
  std::uint32_t steps = 0;
  for (const Event& event : trace.events) {
    if (event.kind == Event::Kind::kStep) {
      EXPECT_EQ(event.slot, steps);
      ++steps;
    }
  }
  EXPECT_EQ(steps, trace.steps);
}

INSTANTIATE_TEST_SUITE_P(All, WorkloadTest, ::testing::ValuesIn(AllNames()),
                         [](const auto& kind) { return std::string(kind.param); });

TEST(WorkloadCatalogTest, RandomWorkloadsFollowTheirSeed) {
  for (const std::string_view name : {"A", "E", "F", "S3", "S6", "S7", "S12"}) {
    const auto one = MakeWorkload(name, {.scale = Scale::kSmall, .seed = 1});
    const auto other = MakeWorkload(name, {.scale = Scale::kSmall, .seed = 2});
    EXPECT_NE(Summarize(*one).hash, Summarize(*other).hash) << name;
  }
}

TEST(WorkloadCatalogTest, UnknownNameListsTheKnownOnes) {
  const absl::Status status = MakeWorkload("S99").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr("S99"));
  EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr("S11"));
}

// The shapes that published figures refer to; a change here makes them incomparable.
TEST(WorkloadCatalogTest, FullSizesAreThePublishedOnes) {
  struct Expected {
    std::string_view name;
    std::uint64_t allocations;
    double peak_gib;
  };
  for (const Expected& expected :
       {Expected{"S1", 6043, 33.638}, Expected{"S3", 47309, 26.762}, Expected{"S4", 53073, 17.391},
        Expected{"S5", 3145, 10.842}, Expected{"S7", 58194, 24.4}, Expected{"S10", 4104, 8}}) {
    const auto trace = MakeWorkload(expected.name);
    ASSERT_TRUE(trace.ok()) << trace.status();
    const TraceSummary summary = Summarize(*trace);
    EXPECT_EQ(summary.allocations, expected.allocations) << expected.name;
    EXPECT_NEAR(static_cast<double>(summary.peak_live.count()) / static_cast<double>((1_GiB).count()),
                expected.peak_gib, 0.02 * expected.peak_gib)
        << expected.name;
  }
}

TEST(TraceTest, ValidateFindsImpossibleEvents) {
  const auto with = [](std::vector<Event> events) {
    Trace trace;
    trace.name = "bad";
    trace.slots = 2;
    trace.events = std::move(events);
    return Validate(trace);
  };
  constexpr auto kAllocate = Event::Kind::kAllocate;
  constexpr auto kFree = Event::Kind::kFree;
  EXPECT_TRUE(with({{kAllocate, 0, 1_B}, {kFree, 0, 0_B}}).ok());
  EXPECT_FALSE(with({{kAllocate, 0, 1_B}}).ok());
  EXPECT_FALSE(with({{kAllocate, 0, 1_B}, {kAllocate, 0, 1_B}}).ok());
  EXPECT_FALSE(with({{kFree, 0, 0_B}}).ok());
  EXPECT_FALSE(with({{kAllocate, 2, 1_B}}).ok());
  EXPECT_FALSE(with({{kAllocate, 1, 0_B}, {kFree, 1, 0_B}}).ok());
}

TEST(TraceBuilderTest, FinishFreesInTheOrderOfAllocation) {
  TraceBuilder builder("t", "");
  const Slot first = builder.Allocate(1_KiB);
  const Slot second = builder.Allocate(2_KiB);
  builder.Free(first);
  const Slot third = builder.Allocate(3_KiB);
  EXPECT_EQ(third, first) << "a slot is used again";
  const Trace trace = std::move(builder).Finish();
  ASSERT_EQ(trace.events.size(), 6u);
  EXPECT_EQ(trace.drain_begin, 4u);
  EXPECT_EQ(trace.events[4].slot, second);
  EXPECT_EQ(trace.events[5].slot, third);
  const TraceSummary summary = Summarize(trace);
  EXPECT_EQ(summary.peak_live, 5_KiB);
  EXPECT_EQ(summary.total, 6_KiB);
}

TEST(RisingChurnTest, ReplacesBetweenAdditions) {
  RisingChurn churn({.limit = 1_GiB, .smallest = 1_KiB, .largest = 1_MiB, .replaced_per_addition = 2}, 9);
  std::vector<bool> live;
  for (int addition = 0; addition < 50; ++addition) {
    const Event added = churn.Next();
    ASSERT_EQ(added.kind, Event::Kind::kAllocate);
    ASSERT_EQ(added.slot, live.size());
    live.push_back(true);
    for (int i = 0; i < 2; ++i) {
      const Event freed = churn.Next();
      const Event again = churn.Next();
      ASSERT_EQ(freed.kind, Event::Kind::kFree);
      ASSERT_EQ(again.kind, Event::Kind::kAllocate);
      ASSERT_EQ(freed.slot, again.slot);
      ASSERT_LT(freed.slot, live.size());
      ASSERT_GE(again.bytes, 1_KiB);
      ASSERT_LE(again.bytes, 1_MiB);
    }
  }
}

TEST(RandomTest, LogUniformGivesEveryDoublingItsShare) {
  Random random(5);
  int small = 0;
  for (int i = 0; i < 10000; ++i) {
    const Bytes drawn = random.LogUniform(1_KiB, 1_MiB);
    ASSERT_GE(drawn, 1_KiB);
    ASSERT_LE(drawn, 1_MiB);
    small += drawn < 32_KiB ? 1 : 0;
  }
  EXPECT_NEAR(small, 5000, 300);
}

}  // namespace
}  // namespace lgpu::bench
