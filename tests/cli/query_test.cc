#include "cli/query.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace lgpu::cli {
namespace {

using ::testing::HasSubstr;

v1::StatsSnapshot QuerySnapshot() {
  v1::StatsSnapshot snapshot;
  snapshot.mutable_taken_at()->set_seconds(1000);
  v1::CardStats& card = *snapshot.add_cards();
  card.set_uuid("GPU-1");
  card.set_total_bytes(1 << 30);
  snapshot.add_cards()->set_index(1);
  for (const char* name : {"train", "sim"}) {
    v1::LeaseStats& lease = *snapshot.add_leases();
    lease.set_name(name);
    lease.set_id(std::string("l-") + name);
    lease.set_owner(std::string("user-") + name);
    lease.set_owner_uid(1000);
    lease.mutable_created_at()->set_seconds(990);
    v1::LogicalDeviceStats& device = *lease.add_devices();
    device.set_name("/job:localhost/replica:0/task:0/device:GPU:0");
    device.set_card_uuid("GPU-1");
    device.set_limit_bytes(256 << 20);
    v1::SessionStats& session = *lease.add_sessions();
    session.set_pid(name[0]);
    session.set_command("prog --names=a,b \"c\"");
    session.set_state(v1::SessionStats::STATE_LIVE);
  }
  return snapshot;
}

TEST(QueryTest, RowsOfLsAreLogicalDevicesWithTheirLeaseAndGpu) {
  EXPECT_EQ(*QueryDevices({.keys = "lease,limit,age,gpu.total"}, QuerySnapshot()),
            "lease,limit,age,gpu.total\n"
            "train,256.00MiB,10s,1.00GiB\n"
            "sim,256.00MiB,10s,1.00GiB\n");
  EXPECT_EQ(*QueryDevices({.keys = "lease,limit,age", .format = "csv,noheader,nounits"}, QuerySnapshot()),
            "train,268435456,10\nsim,268435456,10\n");
}

TEST(QueryTest, KeysOfGpusAloneGiveARowPerGpuAndUnknownValuesAreEmpty) {
  EXPECT_EQ(*QueryDevices({.keys = "gpu.index,gpu.foreign"}, QuerySnapshot()),
            "gpu.index,gpu.foreign\n0,\n1,\n");
}

TEST(QueryTest, RowsOfPsAreSessionsAndTextIsQuoted) {
  EXPECT_EQ(*QuerySessions({.keys = "lease,state,command", .format = "csv,noheader"}, QuerySnapshot()),
            "train,LIVE,\"prog --names=a,b \"\"c\"\"\"\nsim,LIVE,\"prog --names=a,b \"\"c\"\"\"\n");
}

TEST(QueryTest, EveryKeyThatIsListedCanBeAsked) {
  for (const std::string& key : DeviceKeys()) {
    EXPECT_TRUE(QueryDevices({.keys = key}, QuerySnapshot()).ok()) << key;
  }
  for (const std::string& key : SessionKeys()) {
    EXPECT_TRUE(QuerySessions({.keys = key}, QuerySnapshot()).ok()) << key;
  }
}

TEST(QueryTest, WrongKeysAndFormatsListTheValidOnes) {
  const absl::Status key = QueryDevices({.keys = "lease,color"}, QuerySnapshot()).status();
  EXPECT_EQ(key.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(key.message()),
              ::testing::AllOf(HasSubstr("\"color\""), HasSubstr("largest_free_block")));
  const absl::Status format = QuerySessions({.keys = "pid", .format = "xml"}, QuerySnapshot()).status();
  EXPECT_THAT(std::string(format.message()), HasSubstr("csv,noheader,nounits"));
}

TEST(FilterTest, KeepsTheGpusOfTheLeasesThatAreLeft) {
  v1::StatsSnapshot snapshot = QuerySnapshot();
  snapshot.mutable_cards(1)->set_uuid("GPU-2");
  snapshot.mutable_leases(1)->mutable_devices(0)->set_card_uuid("GPU-2");
  const FilterFlags filter{.lease = "sim"};
  EXPECT_EQ(*QueryDevices({.keys = "gpu.uuid", .format = "csv,noheader"},
                          WithoutOtherCards(filter.Apply(std::move(snapshot)))),
            "GPU-2\n");
}

TEST(FilterTest, KeepsTheLeasesThatMatchAll) {
  const auto names = [](const FilterFlags& filter) {
    std::string text;
    const v1::StatsSnapshot kept = filter.Apply(QuerySnapshot());
    for (const v1::LeaseStats& lease : kept.leases()) text += lease.name() + " ";
    return text;
  };
  EXPECT_EQ(names({}), "train sim ");
  EXPECT_EQ(names({.user = "user-sim"}), "sim ");
  EXPECT_EQ(names({.user = "1000"}), "train sim ");
  EXPECT_EQ(names({.pid = 't'}), "train ");
  EXPECT_EQ(names({.lease = "l-sim"}), "sim ");
  EXPECT_EQ(names({.user = "user-sim", .lease = "train"}), "");
}

}  // namespace
}  // namespace lgpu::cli
