#include "tools/replay.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "bench/workloads/catalog.h"
#include "tests/support/child_program.h"

namespace lgpu {
namespace {

using ::testing::HasSubstr;

// 6 MiB, then 4 MiB, then the 6 go and 2 x 3 come: 10 MiB at most, and 10 are enough only for an
// allocator that puts a block of 3 MiB in place of the one of 6.
TraceReading HandMade() {
  auto reading = ParseTrace(
      "id,first,last,size\n"
      "a,0,2,6\n"
      "b,1,9,4\n"
      "c,2,9,3\n"
      "d,3,9,3\n",
      {.name = "hand.csv", .size_multiplier = 1 << 20});
  EXPECT_TRUE(reading.ok()) << reading.status();
  return *std::move(reading);
}

TEST(ReplayTest, ReportsTheNeedsOfAHandMadeTrace) {
  const TraceReading reading = HandMade();
  const auto report = Replay(reading.trace, {.limit = 10_MiB, .passes = 1, .find_smallest_limit = true});
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_EQ(report->trace.allocations, 4u);
  EXPECT_EQ(report->trace.peak_live, 10_MiB);
  EXPECT_EQ(report->trace.total, 16_MiB);
  EXPECT_EQ(report->limit, 10_MiB);
  EXPECT_TRUE(report->space.completed);
  EXPECT_EQ(report->space.refusals, 0u);
  EXPECT_EQ(report->space.peak_live, 10_MiB);
  EXPECT_EQ(report->space.peak_held, 10_MiB);
  EXPECT_EQ(report->space.operations.unmapped, 0u);
  EXPECT_EQ(report->smallest_limit, 10_MiB);
  ASSERT_TRUE(report->times.has_value());
  EXPECT_EQ(report->times->allocate.count, 4u);
  EXPECT_EQ(report->times->free.count, 4u);
  EXPECT_LE(report->times->allocate.p50, report->times->allocate.max);
}

TEST(ReplayTest, CountsRefusalsAndSaysWhy) {
  const TraceReading reading = HandMade();
  const auto on = Replay(reading.trace, {.limit = 8_MiB, .passes = 0});
  ASSERT_TRUE(on.ok()) << on.status();
  EXPECT_FALSE(on->space.completed);
  EXPECT_EQ(on->space.refusals, 1u) << "4 MiB beside 6";
  EXPECT_EQ(on->space.first_refusal, 1u);
  EXPECT_EQ(on->space.peak_live, 6_MiB);
  EXPECT_THAT(on->first_refusal, HasSubstr("limit"));
  EXPECT_FALSE(on->times.has_value());

  const auto stopped =
      Replay(reading.trace, {.limit = 4_MiB, .on_refusal = bench::OnRefusal::kStop, .passes = 1});
  EXPECT_EQ(stopped->space.refusals, 1u);
  EXPECT_EQ(stopped->space.first_refusal, 0u);
  EXPECT_EQ(stopped->times->free.count, 0u);
}

TEST(ReplayTest, SpareIsMeasuredFromThePeak) {
  const TraceReading reading = HandMade();
  EXPECT_EQ(Replay(reading.trace, {.spare = 0.2, .passes = 0})->limit, 12_MiB);
  EXPECT_EQ(Replay(reading.trace, {.spare = 0.0, .passes = 0})->limit, 10_MiB);
  EXPECT_EQ(Replay(reading.trace, {.passes = 0})->limit, 20_MiB);
}

TEST(ReplayTest, ModelsHoldTheirKnownAmounts) {
  const TraceReading reading = HandMade();
  const auto bound = Replay(reading.trace, {.allocator = "bound", .passes = 0, .find_smallest_limit = true});
  ASSERT_TRUE(bound.ok()) << bound.status();
  EXPECT_EQ(bound->smallest_limit, 10_MiB);
  EXPECT_FALSE(bound->source.has_value());
  // Each segment holds a block of its own; those of 3 and 4 MiB share segments of 20.
  const auto segments = Replay(reading.trace, {.allocator = "segments", .limit = 64_MiB, .passes = 0});
  EXPECT_EQ(segments->space.peak_held, 20_MiB);
}

TEST(ReplayTest, GrowthStepAndChunksReachThePool) {
  const TraceReading reading = HandMade();
  ReplayConfiguration configuration{.limit = 64_MiB, .passes = 0};
  const auto small = Replay(reading.trace, configuration);
  configuration.pool.pool.growth_step = 32_MiB;
  configuration.pool.chunk = 32_MiB;
  const auto large = Replay(reading.trace, configuration);
  EXPECT_EQ(small->source->grow_calls, 2u);
  EXPECT_EQ(large->source->grow_calls, 1u);
  EXPECT_EQ(large->space.peak_held, 32_MiB);
}

TEST(ReplayTest, ReadsATraceRecordedByAPool) {
  const testing::TempDir directory;
  const std::string path = directory.path() + "/trace.csv";
  const bench::Trace trace = *bench::MakeWorkload("S12", {.scale = bench::Scale::kSmall});
  bench::PoolContender contender({.limit = 1_GiB, .slots = trace.slots});
  ASSERT_TRUE(contender.pool().StartTrace(path).ok());
  ASSERT_TRUE(bench::ReplayForSpace(trace, contender, bench::OnRefusal::kStop).completed);
  ASSERT_TRUE(contender.pool().StopTrace().ok());
  const auto recorded = ReadTraceFile(path);
  ASSERT_TRUE(recorded.ok()) << recorded.status();
  const bench::TraceSummary written = bench::Summarize(trace);
  const bench::TraceSummary read = bench::Summarize(recorded->trace);
  EXPECT_EQ(read.allocations, written.allocations);
  EXPECT_EQ(read.peak_live, written.peak_live);
  EXPECT_EQ(read.total, written.total);
  EXPECT_EQ(recorded->never_freed, 0u);
}

TEST(ReplayTest, RefusesConfigurationsThatMakeNoSense) {
  const TraceReading reading = HandMade();
  EXPECT_EQ(Replay(reading.trace, {.allocator = "magic"}).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(Replay(reading.trace, {.limit = 8_TiB}).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Replay(reading.trace, {.limit = 8_MiB, .spare = 0.1}).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST(ReplayTest, ReportsSayTheSameInTextAndJson) {
  const TraceReading reading = HandMade();
  const ReplayConfiguration configuration{.limit = 8_MiB, .passes = 1, .find_smallest_limit = true};
  const auto report = Replay(reading.trace, configuration);
  const std::string text = ReportText(reading, configuration, *report);
  EXPECT_THAT(text, HasSubstr("hand.csv"));
  EXPECT_THAT(text, HasSubstr("1 refused, the first at event 1 (4.00MiB)"));
  EXPECT_THAT(text, HasSubstr("8.00MiB (0.8000 x peak)"));
  EXPECT_THAT(text, HasSubstr("limit that completes: 10.00MiB (1.0000 x peak)"));
  const nlohmann::json json = ReportJson(reading, configuration, *report);
  EXPECT_EQ(json["schema"], "lgpu.allocator_replay/v1");
  EXPECT_EQ(json["trace"]["peak_live_bytes"], (10_MiB).count());
  EXPECT_EQ(json["result"]["refusals"], 1);
  EXPECT_EQ(json["result"]["completed"], false);
  EXPECT_EQ(json["smallest_limit"]["bytes"], (10_MiB).count());
  EXPECT_EQ(json["time"]["allocate"]["count"], 4);
}

}  // namespace
}  // namespace lgpu
