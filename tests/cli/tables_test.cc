#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_split.h"
#include "cli/device_flags.h"
#include "cli/lease_names.h"
#include "cli/ls_tables.h"
#include "cli/placement_tables.h"
#include "proto/messages_json.h"

namespace lgpu::cli {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr std::uint64_t kMiB = 1 << 20;

v1::StatsSnapshot Snapshot() {
  v1::StatsSnapshot snapshot;
  snapshot.mutable_taken_at()->set_seconds(1000);
  v1::CardStats& card = *snapshot.add_cards();
  card.set_name("Simulated GPU");
  card.set_uuid("GPU-1");
  card.set_served(true);
  card.set_total_bytes(1024 * kMiB);
  card.set_held_bytes(96 * kMiB);
  card.set_promised_bytes(608 * kMiB);
  card.set_free_bytes(416 * kMiB);
  card.set_draining_bytes(2 * kMiB);
  v1::CardStats& other = *snapshot.add_cards();
  other.set_index(1);
  other.set_name("Simulated GPU");
  other.set_not_served_because("owned by another daemon");
  v1::LeaseStats& lease = *snapshot.add_leases();
  lease.set_name("train");
  lease.set_owner("user1");
  lease.set_owner_uid(1000);
  lease.mutable_created_at()->set_seconds(1000 - 720);
  lease.mutable_last_op_at()->set_seconds(1000 - 5);
  lease.mutable_idle_since()->set_seconds(1000 - 5);
  lease.set_degraded(true);
  v1::LogicalDeviceStats& device = *lease.add_devices();
  device.set_name("/job:localhost/replica:0/task:0/device:GPU:0");
  device.set_card_uuid("GPU-1");
  device.set_mode("growth");
  device.set_limit_bytes(256 * kMiB);
  device.set_held_bytes(96 * kMiB);
  device.set_used_bytes(90 * kMiB);
  device.set_peak_used_bytes(95 * kMiB);
  for (const int pid : {11, 12, 13, 14, 15}) {
    v1::SessionStats& session = *lease.add_sessions();
    session.set_pid(pid);
    session.set_state(pid < 15 ? v1::SessionStats::STATE_LIVE : v1::SessionStats::STATE_DRAINING);
  }
  return snapshot;
}

/// Names, sizes and numbers as wide as they come, but for names of leases, which `ls` shows by their ids
/// then.
v1::StatsSnapshot WideSnapshot() {
  v1::StatsSnapshot snapshot = Snapshot();
  v1::CardStats& card = *snapshot.mutable_cards(0);
  card.set_name("NVIDIA H100 80GB HBM3");
  card.set_total_bytes(81559 * kMiB + 12345);
  v1::ForeignProcess& foreign = *card.add_foreign_processes();
  foreign.set_pid(4194303);
  foreign.set_user("rosalind");
  foreign.set_command("python3 /home/rosalind/projects/train.py --config production.yaml --resume");
  foreign.set_used_bytes(71234 * kMiB + 4321);
  foreign.set_sm_percent(100);
  v1::LeaseStats& lease = *snapshot.mutable_leases(0);
  lease.set_name("experiment-17");
  lease.set_owner("rosalind");
  for (v1::SessionStats& session : *lease.mutable_sessions()) {
    session.set_pid(4194304 + session.pid());
    session.set_uid(1000);
    session.set_held_bytes(71234 * kMiB + 4321);
    session.set_charged_bytes(71234 * kMiB + 4321);
    session.set_overhead_bytes(1023 * kMiB + 4321);
    session.set_sm_percent(100);
    session.set_command("python3 /home/rosalind/projects/train.py --config production.yaml --resume");
  }
  return snapshot;
}

void ExpectLinesThatFit(const std::string& text) {
  for (const std::string& line : std::vector<std::string>(absl::StrSplit(text, '\n'))) {
    EXPECT_LE(TextWidth(line), 80u) << line;
  }
}

TEST(TablesTest, EveryTableFitsInto80Columns) {
  const Style style{.width = 80};
  ExpectLinesThatFit(FormatSnapshot(WideSnapshot(), style, {.uid = 1000}));
  ExpectLinesThatFit(FormatSessions(WideSnapshot(), style));
  const v1::StatsSnapshot wide = WideSnapshot();
  ExpectLinesThatFit(FormatLease(wide.leases(0), wide, style));
  EXPECT_THAT(FormatSessions(wide, {.width = 0}), HasSubstr("--config production.yaml --resume\n"));
  v1::PlacementReport report;
  v1::PlacementRecord& record = *report.add_records();
  record.set_pid(4194303);
  record.set_op("SparseSoftmaxCrossEntropyWithLogits");
  record.set_dtype("bfloat16");
  record.set_device("/job:localhost/replica:0/task:0/device:GPU:10");
  record.set_requested_device("/job:localhost/replica:0/task:0/device:GPU:11");
  record.set_soft_placed(true);
  record.set_output_bytes(1023 * kMiB + 4321);
  record.set_host_ns(123'456'789);
  v1::CopyRecord& copy = *report.add_copies();
  copy.set_pid(4194303);
  copy.set_source("/job:localhost/replica:0/task:0/device:GPU:10");
  copy.set_target("/job:localhost/replica:0/task:0/device:CPU:0");
  copy.set_dtype("bfloat16");
  copy.set_bytes(1023 * kMiB + 4321);
  copy.set_host_ns(123'456'789);
  ExpectLinesThatFit(FormatReport(report, style));
  EXPECT_THAT(FormatReport(report, {.width = 0}), HasSubstr("/job:localhost/replica:0/task:0/device:GPU:10"));
}

std::string Ls(const v1::StatsSnapshot& snapshot, std::size_t width = 80, Viewer viewer = {.uid = 1000}) {
  return FormatSnapshot(snapshot, {.width = width}, viewer);
}

TEST(LsTest, ShowsWaitingRequestsAndTheRunningTurn) {
  v1::StatsSnapshot snapshot = Snapshot();
  v1::QueuedRequest& first = *snapshot.mutable_cards(0)->add_queue();
  first.set_place(1);
  first.set_owner("user1");
  first.set_pid(11);
  first.set_lease_name("train");
  first.set_device("/device:GPU:0");
  first.set_asked_bytes(512 * kMiB);
  first.set_waited_ms(61'500);
  first.set_turns(2);
  first.set_turn_left_ms(1300);
  v1::QueuedRequest& second = *snapshot.mutable_cards(0)->add_queue();
  second.set_place(2);
  second.set_owner("user2");
  second.set_makes_lease(true);
  second.set_asked_bytes(64 * kMiB);
  second.set_turns(1);
  EXPECT_THAT(
      Ls(snapshot, 200),
      HasSubstr("\nWaiting for memory:\n"
                "GPU  PLACE  OWNER  PID  LEASE         DEVICE      ASKED  WAITED  TURN\n"
                "  0      1  user1   11  train         GPU:0   512.00MiB      1m  now, at most 1.3s more\n"
                "  0      2  user2    -  (being made)  -        64.00MiB      0s  had 1\n"));
}

TEST(LsTest, ShowsCardsThenLeasesThenMemoryThatCanBePromised) {
  EXPECT_EQ(
      Ls(Snapshot(), 0),
      "GPU  NAME               HELD   PROMISED    TOTAL       FREE  FOREIGN  STATE\n"
      "  0  Simulated GPU  96.00MiB  608.00MiB  1.00GiB  416.00MiB        -  ok, 2.00MiB draining\n"
      "  1  Simulated GPU        0B         0B       0B         0B        -  not served\n"
      "\n"
      "LEASE  DEVICE  GPU  MODE        USED      HELD      LIMIT      PEAK  OWNER  PID          AGE  IDLE  "
      "STATE\n"
      "train  GPU:0     0  growth  90.00MiB  96.00MiB  256.00MiB  95.00MiB  user1  11,12,13,+2  12m    5s  "
      "DEGRADED, 4 LIVE, DRAINING\n"
      "\n"
      "416.00MiB of GPU 0 can still be promised.\n"
      "GPU 1 is not served: owned by another daemon\n");
}

TEST(LsTest, StateNamesTheRequestThatALeaseGivesWayFor) {
  v1::StatsSnapshot snapshot = Snapshot();
  snapshot.mutable_leases(0)->clear_degraded();
  snapshot.mutable_leases(0)->set_gives_way_for("notebook");
  EXPECT_THAT(Ls(snapshot, 0), HasSubstr("  gives way for notebook, 4 LIVE, DRAINING\n"));
  EXPECT_THAT(FormatLease(snapshot.leases(0), snapshot, Style()), HasSubstr("gives way  for notebook\n"));
}

TEST(LsTest, ColumnsThatDoNotFitAreLeftOut) {
  EXPECT_THAT(Ls(Snapshot()), HasSubstr("LEASE  DEVICE  GPU      USED      HELD      LIMIT  IDLE  STATE\n"));
  EXPECT_THAT(Ls(Snapshot(), 40), HasSubstr("LEASE  DEVICE  GPU      USED      HELD      LIMIT  STATE\n"));
  v1::StatsSnapshot wide = Snapshot();
  wide.mutable_cards(0)->set_name("NVIDIA GeForce RTX 4090");
  wide.mutable_cards(0)->clear_draining_bytes();
  wide.mutable_leases(0)->set_name("a-name-of-twenty-eight-chars");
  wide.mutable_leases(0)->set_id("l-12345678");
  wide.mutable_leases(0)->set_degraded(false);
  wide.mutable_leases(0)->mutable_sessions()->DeleteSubrange(1, 4);
  const std::string text = Ls(wide);
  for (const std::string& line : std::vector<std::string>(absl::StrSplit(text, '\n'))) {
    EXPECT_LE(line.size(), 80u) << line;
  }
  EXPECT_THAT(text, HasSubstr("l-12345678  GPU:0")) << "what `lgpu rm` takes";
}

TEST(LsTest, ALeaseOfAnotherUserHasItsOwnersName) {
  EXPECT_THAT(Ls(Snapshot(), 80, {.uid = 1001, .filtered = false}), HasSubstr("user1/train"));
}

TEST(LsTest, LeasesHiddenFromTheViewerAreOneRow) {
  v1::StatsSnapshot snapshot = Snapshot();
  snapshot.mutable_cards(0)->set_held_bytes(160 * kMiB);
  EXPECT_THAT(Ls(snapshot), HasSubstr("(others)  -         0         -  64.00MiB"));
  EXPECT_THAT(Ls(snapshot, 80, {.uid = 1000, .filtered = true}), Not(HasSubstr("(others)")));
  snapshot.clear_leases();
  EXPECT_THAT(Ls(snapshot), AllOf(HasSubstr("No leases of yours.\n"), HasSubstr("160.00MiB")));
}

TEST(LeaseNamesTest, AnAmbiguousNameIsRefusedAndAnOwnersNameTellsApart) {
  v1::StatsSnapshot snapshot = Snapshot();
  snapshot.mutable_leases(0)->set_owner_uid(1);
  v1::LeaseStats& second = *snapshot.add_leases();
  second = snapshot.leases(0);
  second.set_owner("user2");
  second.set_owner_uid(2);
  const auto owner_of = [&](const std::string& text, std::uint32_t uid) {
    const absl::StatusOr<const v1::LeaseStats*> found = FindLease(snapshot, text, uid);
    return !found.ok()         ? std::string(found.status().message())
           : *found == nullptr ? "none"
                               : (*found)->owner();
  };
  EXPECT_THAT(owner_of("train", 0), HasSubstr("2 users have a lease named train\ntry: one of user1/train, "));
  EXPECT_EQ(owner_of("train", 2), "user2") << "one's own first";
  EXPECT_EQ(owner_of("user2/train", 0), "user2");
  EXPECT_EQ(owner_of("1/train", 0), "user1");
  EXPECT_EQ(owner_of("eval", 0), "none");
}

TEST(LsTest, AnEmptyDaemonSaysThatThereAreNoLeases) {
  v1::StatsSnapshot snapshot = Snapshot();
  snapshot.clear_leases();
  snapshot.mutable_cards(0)->clear_held_bytes();
  EXPECT_THAT(Ls(snapshot), HasSubstr("\nNo leases.\n"));
}

TEST(LsTest, JsonHasBytesAndLeavesOutUnknownValues) {
  const nlohmann::json json = ToJson(Snapshot());
  EXPECT_EQ(json["schema"], "lgpu.snapshot/v1");
  EXPECT_EQ(json["cards"][0]["held_bytes"], 96 * kMiB);
  EXPECT_FALSE(json["cards"][0].contains("foreign_bytes"));
  EXPECT_EQ(json["leases"][0]["schema"], "lgpu.lease/v1");
  EXPECT_EQ(json["leases"][0]["degraded"], true);
  EXPECT_EQ(json["leases"][0]["last_op_at"], "1970-01-01T00:16:35.000000Z");
  EXPECT_EQ(json["leases"][0]["devices"][0]["memory_limit_bytes"], 256 * kMiB);
  EXPECT_EQ(json["leases"][0]["sessions"][4]["state"], "draining");
}

TEST(LsTest, JsonSurvivesBytesThatAreNoText) {
  v1::StatsSnapshot snapshot = Snapshot();
  const std::string line = JsonLine({{"text", "a\xff"}});
  EXPECT_TRUE(nlohmann::json::accept(line)) << line;
}

TEST(PlacementsTest, TimesThatWereNotMeasuredAreDashes) {
  v1::PlacementReport report;
  report.set_lease_name("train");
  report.set_records_total(1);
  auto& total = *report.add_totals();
  total.set_device("/job:localhost/replica:0/task:0/device:GPU:0");
  total.set_op("MatMul");
  total.set_dtype("float");
  total.set_count(1);
  total.set_output_bytes(16);
  total.set_host_ns(1500);
  auto& record = *report.add_records();
  record.set_pid(7);
  record.set_op("MatMul");
  record.set_dtype("float");
  record.set_device(total.device());
  record.set_requested_device("/device:GPU:9");
  record.set_soft_placed(true);
  record.set_output_bytes(16);
  const std::string text = FormatReport(report, {});
  EXPECT_THAT(text, HasSubstr("Lease train: 1 op recorded, 0 dropped.\n"));
  EXPECT_THAT(text, HasSubstr("GPU:9 (soft)     16B          -            -\n"));
  EXPECT_THAT(FormatRecord(record), HasSubstr("MatMul float in device /job:localhost/replica:0/task:0/device:"
                                              "GPU:0  16B  host -  device -  asked for /device:GPU:9"));
  EXPECT_FALSE(ToJson(record).contains("device_seconds"));
}

TEST(PlacementTablesTest, ACopyThatIsFollowedIsALineWithItsDevices) {
  v1::PlacementRecord record;
  v1::CopyRecord& copy = *record.mutable_copy();
  copy.set_sequence(3);
  copy.set_pid(7);
  copy.set_source("/job:localhost/replica:0/task:0/device:CPU:0");
  copy.set_target("/job:localhost/replica:0/task:0/device:GPU:1");
  copy.set_dtype("float");
  copy.set_bytes(4096);
  copy.set_host_ns(1500);
  EXPECT_THAT(FormatRecord(record),
              HasSubstr("  7  copy float from /job:localhost/replica:0/task:0/device:CPU:0 to "
                        "/job:localhost/replica:0/task:0/device:GPU:1  4.0KiB  host 1.5us"));
  const nlohmann::json line = ToJson(record);
  EXPECT_EQ(line["schema"], "lgpu.copy/v1");
  EXPECT_EQ(line["bytes"], 4096);
  EXPECT_FALSE(line.contains("op"));
}

TEST(PlacementTablesTest, CopiesHaveTablesOfTheirOwn) {
  v1::PlacementReport report;
  report.set_lease_name("train");
  EXPECT_EQ(FormatReport(report, {}), "Lease train: 0 ops recorded, 0 dropped.\n");
  v1::PlacementReport::CopyTotal& total = *report.add_copy_totals();
  total.set_source("/device:CPU:0");
  total.set_target("/device:GPU:0");
  total.set_count(3);
  total.set_bytes(6 << 20);
  total.set_host_ns(1500);
  v1::CopyRecord& copy = *report.add_copies();
  copy.set_pid(42);
  copy.set_source("/device:GPU:0");
  copy.set_target("/device:GPU:1");
  copy.set_dtype("float");
  copy.set_bytes(2 << 20);
  const std::string text = FormatReport(report, {});
  EXPECT_THAT(text, HasSubstr("COPIED FROM  TO     COUNT    BYTES  HOST TIME\n"
                              "CPU:0        GPU:0      3  6.00MiB      1.5us\n"));
  EXPECT_THAT(text, HasSubstr("   42  GPU:0        GPU:1  float  2.00MiB          -\n"));
  const nlohmann::json json = ToJson(report);
  EXPECT_EQ(json["copy_totals"][0]["bytes"], 6 << 20);
  EXPECT_EQ(json["copies"][0]["target"], "/device:GPU:1");
  EXPECT_EQ(json["copies"][0]["pid"], 42);
}

v1::ListPhysicalDevicesResponse ThreeCards() {
  v1::ListPhysicalDevicesResponse cards;
  for (const char* uuid : {"GPU-aaaa", "GPU-aabb", "GPU-cccc"}) {
    v1::CardStats& card = *cards.add_devices();
    card.set_index(static_cast<std::uint32_t>(cards.devices_size() - 1));
    card.set_uuid(uuid);
    card.set_served(true);
  }
  return cards;
}

TEST(DeviceFlagsTest, GpusAreIndicesOrBeginningsOfUuids) {
  DeviceFlags flags;
  flags.gpus = "2,GPU-aaa,2";
  flags.devices = 2;
  flags.memory = "1.5GiB";
  const auto request = MakeCreateRequest(flags, ThreeCards(), std::nullopt);
  ASSERT_TRUE(request.ok()) << request.status();
  ASSERT_EQ(request->devices_size(), 2);
  EXPECT_THAT(request->devices(1).candidate_uuids(), ElementsAre("GPU-cccc", "GPU-aaaa"));
  EXPECT_EQ(request->devices(1).memory_limit_bytes(), 1536 * kMiB);
  EXPECT_EQ(request->devices(1).mode(), v1::LogicalDeviceSpec::MODE_UNSPECIFIED);
}

TEST(DeviceFlagsTest, GpusCanBeGivenAsDeviceFiles) {
  v1::ListPhysicalDevicesResponse cards = ThreeCards();
  cards.mutable_devices(0)->set_minor(7);
  cards.mutable_devices(1)->set_minor(0);
  DeviceFlags flags;
  flags.gpus = "/dev/nvidia7";
  const auto request = MakeCreateRequest(flags, cards, std::nullopt);
  ASSERT_TRUE(request.ok()) << request.status();
  EXPECT_THAT(request->devices(0).candidate_uuids(), ElementsAre("GPU-aaaa"));
  for (const char* const none : {"/dev/nvidia2", "/dev/nvidiactl", "/dev/nvidia"}) {
    flags.gpus = none;
    EXPECT_EQ(MakeCreateRequest(flags, cards, std::nullopt).status().code(), absl::StatusCode::kNotFound)
        << none;
  }
}

TEST(DeviceFlagsTest, VisibleDevicesNarrowTheChoice) {
  DeviceFlags flags;
  const auto request = MakeCreateRequest(flags, ThreeCards(), "2,0");
  ASSERT_TRUE(request.ok()) << request.status();
  EXPECT_THAT(request->devices(0).candidate_uuids(), ElementsAre("GPU-cccc", "GPU-aaaa"));
  flags.gpus = "0,1";
  const auto both = MakeCreateRequest(flags, ThreeCards(), "2,0");
  ASSERT_TRUE(both.ok()) << both.status();
  EXPECT_THAT(both->devices(0).candidate_uuids(), ElementsAre("GPU-aaaa"));
}

TEST(DeviceFlagsTest, NothingVisibleIsAnErrorThatShowsBothLists) {
  DeviceFlags flags;
  flags.gpus = "1";
  for (const char* visible : {"2,0", "", "-1"}) {
    const auto request = MakeCreateRequest(flags, ThreeCards(), visible);
    ASSERT_EQ(request.status().code(), absl::StatusCode::kNotFound) << visible;
    EXPECT_THAT(std::string(request.status().message()), HasSubstr("GPU-aabb"));
    EXPECT_THAT(std::string(request.status().message()),
                HasSubstr("CUDA_VISIBLE_DEVICES=" + std::string(visible)));
  }
}

TEST(DeviceFlagsTest, WrongFlagsNameThemselves) {
  const auto message = [](const DeviceFlags& flags) {
    const auto request = MakeCreateRequest(flags, ThreeCards(), std::nullopt);
    return request.ok() ? std::string("ok") : std::string(request.status().message());
  };
  DeviceFlags flags;
  flags.gpus = "GPU-aa";
  EXPECT_THAT(message(flags), HasSubstr("2 UUIDs"));
  flags.gpus = "7";
  EXPECT_THAT(message(flags), HasSubstr("no GPU 7"));
  flags.gpus = "0,,1";
  EXPECT_THAT(message(flags), HasSubstr("empty entry"));
  flags = {};
  flags.memory = "1GB";
  EXPECT_THAT(message(flags), HasSubstr("--memory"));
  flags.memory = "0";
  EXPECT_THAT(message(flags), HasSubstr("--memory must be above 0"));
  flags = {};
  flags.devices = 65;
  EXPECT_THAT(message(flags), HasSubstr("--devices 65"));
  flags = {};
  flags.preallocate = true;
  flags.guarantee = "1MiB";
  EXPECT_THAT(message(flags), HasSubstr("--guarantee"));
}

TEST(DeviceFlagsTest, DescribesEveryLogicalDevice) {
  v1::Lease lease;
  lease.set_name("sim");
  for (int i = 0; i < 2; ++i) {
    v1::LogicalDevice& device = *lease.add_devices();
    device.set_index(static_cast<std::uint32_t>(i));
    device.set_memory_limit_bytes(256 * kMiB);
    device.set_mode(i == 0 ? v1::LogicalDeviceSpec::MODE_UNSPECIFIED
                           : v1::LogicalDeviceSpec::MODE_PREALLOCATE);
    device.set_card_name("Simulated GPU");
  }
  EXPECT_THAT(DescribeLease(lease),
              ElementsAre("lease sim: GPU:0 = 256.00MiB (growth) on GPU 0 Simulated GPU",
                          "lease sim: GPU:1 = 256.00MiB (preallocate) on GPU 0 Simulated GPU"));
}

TEST(LsTest, ProcessesOutsideLgpuStandBelow) {
  v1::StatsSnapshot snapshot = Snapshot();
  v1::ForeignProcess& process = *snapshot.mutable_cards(0)->add_foreign_processes();
  process.set_pid(4711);
  process.set_user("ann");
  process.set_command("python3");
  process.set_used_bytes(std::uint64_t{3} << 30);
  constexpr char kLines[] =
      "\nOutside lgpu:\n"
      "GPU   PID  USER     USED  SM  COMMAND\n"
      "  0  4711  ann   3.00GiB   -  python3\n";
  EXPECT_THAT(Ls(snapshot), HasSubstr(kLines));
  EXPECT_THAT(FormatSessions(snapshot, {}), HasSubstr(kLines));
  process.clear_user();
  process.clear_command();  // it went meanwhile
  EXPECT_THAT(FormatSessions(snapshot, {}), HasSubstr("  0  4711  ?     3.00GiB   -  ?\n"));
}

}  // namespace
}  // namespace lgpu::cli
