#include "daemon/http/metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <sstream>

namespace lgpu::daemon {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

v1::LeaseStats OneLease(const std::string& name, std::uint64_t limit, bool anonymous = false) {
  v1::LeaseStats lease;
  lease.set_name(name);
  lease.set_owner("user1");
  lease.set_anonymous(anonymous);
  v1::LogicalDeviceStats& device = *lease.add_devices();
  device.set_name("/job:localhost/replica:0/task:0/device:GPU:0");
  device.set_limit_bytes(limit);
  device.set_held_bytes(100);
  device.set_used_bytes(60);
  device.set_largest_free_block_bytes(30);
  v1::SessionStats& session = *lease.add_sessions();
  session.set_pid(4711);
  session.set_state(v1::SessionStats::STATE_LIVE);
  return lease;
}

v1::StatsSnapshot Snapshot() {
  v1::StatsSnapshot snapshot;
  v1::CardStats& card = *snapshot.add_cards();
  card.set_uuid("GPU-1");
  card.set_name("a \"card\"\n");
  card.set_served(true);
  card.set_total_bytes(1 << 30);
  return snapshot;
}

// Every sample line of a metric, by its name and labels.
std::set<std::string> Series(const std::string& text) {
  std::set<std::string> series;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with('#')) continue;
    EXPECT_TRUE(series.insert(line.substr(0, line.rfind(' '))).second) << "twice: " << line;
  }
  return series;
}

TEST(MetricsTest, ASeriesIsThereAsLongAsItsLease) {
  v1::StatsSnapshot snapshot = Snapshot();
  const std::set<std::string> before = Series(MetricsText(snapshot, {}));
  *snapshot.add_leases() = OneLease("train", 1 << 20);
  const std::string text = MetricsText(snapshot, {});
  EXPECT_THAT(text, ContainsRegex("lgpu_logical_device_memory_limit_bytes\\{gpu=\"0\",device=\"GPU:0\","
                                  "lease=\"train\",owner=\"u-[0-9a-f]{8}\"\\} 1048576\n"));
  EXPECT_THAT(text, HasSubstr("lgpu_logical_devices{gpu=\"0\",state=\"attached\"} 1\n"));
  snapshot.clear_leases();
  EXPECT_EQ(Series(MetricsText(snapshot, {})), before);
}

TEST(MetricsTest, NoPidAndNoUserIsInALabel) {
  v1::StatsSnapshot snapshot = Snapshot();
  *snapshot.add_leases() = OneLease("train", 1 << 20);
  const std::string text = MetricsText(snapshot, {});
  EXPECT_THAT(text, Not(HasSubstr("4711")));
  EXPECT_THAT(text, Not(HasSubstr("user1")));
}

TEST(MetricsTest, LeasesWithoutOwnNamesAreOneSeriesAndLeasesOfTwoUsersAreTwo) {
  v1::StatsSnapshot snapshot = Snapshot();
  *snapshot.add_leases() = OneLease("quiet-otter", 1000, true);
  *snapshot.add_leases() = OneLease("calm-heron", 24, true);
  *snapshot.add_leases() = OneLease("train", 5);
  *snapshot.add_leases() = OneLease("train", 6);
  snapshot.mutable_leases(3)->set_owner("user2");
  snapshot.mutable_leases(3)->set_owner_uid(2);
  const std::string text = MetricsText(snapshot, {});
  Series(text);  // none twice
  EXPECT_THAT(text, HasSubstr("limit_bytes{gpu=\"0\",device=\"GPU:0\",lease=\"anonymous\"} 1024\n"));
  EXPECT_THAT(text, ContainsRegex("lease=\"train\",owner=\"u-[0-9a-f]{8}\"\\} 5\n"));
  EXPECT_THAT(text, ContainsRegex("lease=\"train\",owner=\"u-[0-9a-f]{8}\"\\} 6\n"));
  EXPECT_EQ(text, MetricsText(snapshot, {})) << "the labels stay";
  MetricTotals names;
  names.names_owners = true;
  EXPECT_THAT(MetricsText(snapshot, names),
              AllOf(HasSubstr("lease=\"train\",owner=\"user1\"} 5\n"), HasSubstr("owner=\"user2\"} 6\n")));
  EXPECT_THAT(text, Not(HasSubstr("otter")));
}

TEST(MetricsTest, LabelsAreEscapedAndUnknownNumbersAreAbsent) {
  v1::StatsSnapshot snapshot = Snapshot();
  EXPECT_THAT(MetricsText(snapshot, {}), HasSubstr("name=\"a \\\"card\\\"\\n\""));
  EXPECT_THAT(MetricsText(snapshot, {}), Not(HasSubstr("memory_foreign_bytes{")));
  snapshot.mutable_cards(0)->set_foreign_bytes(7);
  EXPECT_THAT(MetricsText(snapshot, {}), HasSubstr("memory_foreign_bytes{gpu=\"0\",uuid=\"GPU-1\"} 7\n"));
}

TEST(MetricsTest, TotalsAndTheHistogram) {
  MetricTotals totals;
  totals.backend = "simulated";
  totals.events.refusals[RefusalReason::kCard] = 3;
  totals.ended = {.by_exit = 5, .by_request = 2};
  totals.ops[{"MatMul", true}] = {.executed = 9, .soft_placed = 1};
  totals.ops[{"MatMul", false}] = {.executed = 4, .soft_placed = 2};
  GrantTimes times;
  times.Observe(std::chrono::microseconds(7));
  times.Observe(std::chrono::microseconds(70));
  times.Observe(std::chrono::seconds(1000));
  totals.grants = times.Read();
  totals.giving_way = {
      .asks = 6, .gave = 3, .in_vain = 2, .bytes = Bytes(4096), .waited = std::chrono::milliseconds(1500)};
  const std::string text = MetricsText(Snapshot(), totals);
  for (const char* line :
       {"lgpu_give_way_asks_total 6\n", "lgpu_give_way_answers_total{result=\"memory\"} 3\n",
        "lgpu_give_way_answers_total{result=\"nothing\"} 2\n", "lgpu_give_way_given_bytes_total 4096\n",
        "lgpu_give_way_wait_seconds_total 1.5\n", "lgpu_refusals_total{reason=\"card\"} 3\n",
        "{reason=\"client_exit\"} 5\n", "{reason=\"admin\"} 2\n",
        "lgpu_ops_executed_total{op=\"MatMul\",device_type=\"GPU\"} 9\n",
        "lgpu_op_placement_fallbacks_total{op=\"MatMul\"} 3\n",
        "lgpu_allocation_duration_seconds_bucket{le=\"1e-05\"} 1\n",
        "lgpu_allocation_duration_seconds_bucket{le=\"0.0001\"} 2\n",
        "lgpu_allocation_duration_seconds_bucket{le=\"100\"} 2\n",
        "lgpu_allocation_duration_seconds_bucket{le=\"+Inf\"} 3\n",
        "lgpu_allocation_duration_seconds_count 3\n"}) {
    EXPECT_THAT(text, HasSubstr(line));
  }
}

TEST(MetricsTest, OpNamesOfClientsCannotMakeSeries) {
  PlacementLog log(4);
  std::vector<PlacementLog::Record> records;
  for (const char* op : {"MatMul", "Evil1", "Evil2"}) {
    PlacementLog::Record record;
    record.op = op;
    record.entry.device = 0;
    records.push_back(record);
  }
  log.Add(records, 0);
  OpCounts counts;
  log.AddTo(counts);
  log.AddTo(counts);
  EXPECT_EQ(counts.size(), 2u);
  EXPECT_EQ((counts[{"other", true}].executed), 4u);
}

}  // namespace
}  // namespace lgpu::daemon
