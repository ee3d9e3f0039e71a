// The parts of the page, without HTTP: history, memory map, viewers, live streams.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

#include <atomic>
#include <string>
#include <thread>

#include "daemon/http/history.h"
#include "daemon/http/live_streams.h"
#include "daemon/http/memory_map.h"
#include "daemon/http/viewer.h"
#include "daemon/http/web_files.h"
#include "daemon/leases/users.h"

namespace lgpu::daemon {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

constexpr std::uint64_t kMiB = 1 << 20;
const Viewer kRoot = ViewerOf(0, false);

v1::StatsSnapshot At(std::int64_t seconds, std::uint64_t used, std::uint64_t refusals = 0) {
  v1::StatsSnapshot snapshot;
  snapshot.mutable_taken_at()->set_seconds(seconds);
  v1::CardStats& card = *snapshot.add_cards();
  card.set_served(true);
  card.set_total_bytes(1024);
  card.set_held_bytes(used);
  v1::LeaseStats& lease = *snapshot.add_leases();
  lease.set_id("l-1");
  lease.set_name("train");
  lease.set_owner_uid(1000);
  v1::LogicalDeviceStats& device = *lease.add_devices();
  device.set_id(7);
  device.set_name("/device:GPU:0");
  device.set_used_bytes(used);
  device.set_limit_bytes(512);
  device.set_refusals_total(refusals);
  return snapshot;
}

TEST(SeriesTest, StaysWithinItsMemoryAndKeepsPeaks) {
  Series series;
  for (std::int64_t i = 0; i < 100'000; ++i) {
    series.Add(i * 1000, {i == 777 ? 99u : 1u, 0, 0, 0}, i % 100 == 0);
  }
  EXPECT_LE(series.points().size(), Series::kMostPoints);
  std::uint64_t most = 0, refusals = 0;
  std::int64_t before = -1;
  for (const Series::Point& point : series.points()) {
    most = std::max(most, point.most[0]);
    refusals += point.refusals;
    EXPECT_GT(point.from_ms, before);
    before = point.from_ms;
  }
  EXPECT_EQ(most, 99u);
  EXPECT_EQ(refusals, 1000u);
}

TEST(SeriesTest, AClockThatGoesBackwardsAddsToTheLastPoint) {
  Series series;
  series.Add(10'000, {1, 0, 0, 0}, 0);
  series.Add(3'000, {5, 0, 0, 0}, 1);
  ASSERT_EQ(series.points().size(), 1u);
  EXPECT_EQ(series.points()[0].most[0], 5u);
}

TEST(HistoryTest, ALeaseHasItsCourseItsLimitAndItsRefusals) {
  History history;
  for (int i = 0; i < 60; ++i) history.Add(At(5000 + i, static_cast<std::uint64_t>(i), i < 30 ? 2 : 5));
  const json timeline = history.OfLease(kRoot, "l-1", {.seconds = 60, .width = 60});
  EXPECT_EQ(timeline["columns"], 60);
  const json& device = timeline["devices"][0];
  EXPECT_EQ(device["used_bytes"].back(), 59);
  EXPECT_EQ(device["memory_limit_bytes"].back(), 512);
  std::uint64_t refusals = 0;
  for (const json& count : device["refusals"]) refusals += count.is_null() ? 0 : count.get<std::uint64_t>();
  EXPECT_EQ(refusals, 3u);  // those before the first look are not of this time
}

TEST(HistoryTest, ASuspensionIsPartOfTheCourse) {
  History history;
  for (int i = 0; i < 60; ++i) {
    v1::StatsSnapshot snapshot = At(5000 + i, 10);
    if (i >= 20 && i < 40) {
      v1::LeaseSuspension& suspension = *snapshot.mutable_leases(0)->mutable_suspension();
      suspension.set_in_host_memory(i >= 25);  // before it is on the way
      suspension.set_bytes(10);
    }
    history.Add(snapshot);
  }
  const json suspended = history.OfLease(kRoot, "l-1", {.seconds = 60, .width = 60})["suspended_bytes"];
  ASSERT_EQ(suspended.size(), 60u);
  EXPECT_EQ(std::count(suspended.begin(), suspended.end(), json(10)), 15);
  EXPECT_EQ(suspended.back(), 0);
}

TEST(HistoryTest, ThinsToTheWidthWithTheLargestValueOfEachColumn) {
  History history;
  for (int i = 0; i < 300; ++i) history.Add(At(9000 + i, i == 150 ? 400 : 10));
  const json timeline = history.OfLease(kRoot, "l-1", {.seconds = 300, .width = 10});
  const json& used = timeline["devices"][0]["used_bytes"];
  ASSERT_EQ(used.size(), 10u);
  EXPECT_EQ(std::count(used.begin(), used.end(), json(400)), 1);
}

TEST(HistoryTest, UsersSeeTheirOwnLeasesAlone) {
  History history;
  history.Add(At(100, 10));
  EXPECT_EQ(history.OfLease(ViewerOf(1000, false), "l-1", {})["devices"].size(), 1u);
  EXPECT_EQ(history.OfLease(ViewerOf(1001, false), "l-1", {})["devices"].size(), 0u);
  EXPECT_EQ(history.OfLease(ViewerOf(1001, true), "l-1", {})["devices"].size(), 1u);
  EXPECT_EQ(history.OfCard(ViewerOf(1001, false), 0, {})["leases"].size(), 0u);
  EXPECT_EQ(history.OfCard(kRoot, 0, {})["leases"].size(), 1u);
}

TEST(HistoryTest, AnEndedLeaseIsRememberedForAWhileAndOneUserHasAShareOfTheRoom) {
  History history;
  history.Add(At(100, 10));
  v1::StatsSnapshot later = At(200, 10);
  later.clear_leases();
  history.Add(later);
  EXPECT_EQ(history.OfLease(kRoot, "l-1", {})["ended"], true);
  later.mutable_taken_at()->set_seconds(100 + 601);
  history.Add(later);
  EXPECT_EQ(history.OfLease(kRoot, "l-1", {})["devices"].size(), 0u);

  v1::StatsSnapshot many = At(1000, 1);
  for (std::uint64_t i = 0; i < 2 * History::kMostDevices; ++i) {
    v1::LogicalDeviceStats& device = *many.mutable_leases(0)->add_devices();
    device.set_id(100 + i);
    device.set_name("/device:GPU:9");
  }
  history.Add(many);
  EXPECT_LE(history.OfLease(kRoot, "l-1", {})["devices"].size(), History::kMostDevices / 2);
}

TEST(HistoryTest, ManyLeasesAreStackedAsAFewAndARest) {
  History history;
  v1::StatsSnapshot snapshot = At(100, 1);
  for (std::uint64_t i = 0; i < 200; ++i) {
    v1::LeaseStats lease = snapshot.leases(0);
    lease.set_id("l-x" + std::to_string(i));
    lease.mutable_devices(0)->set_used_bytes(10 + i);
    *snapshot.add_leases() = lease;
  }
  history.Add(snapshot);
  const json leases = history.OfCard(kRoot, 0, {})["leases"];
  ASSERT_EQ(leases.size(), History::kMostStacked + 1);
  EXPECT_EQ(leases[0]["used_bytes"].back(), 209);
  EXPECT_EQ(leases.back()["name"], "189 more");
}

DeviceBlocks TwoOps() {
  DeviceBlocks device;
  device.ops = {"", "MatMul", "AddN"};
  device.region.held_bytes = 8 * kMiB;  // 2 MiB of it are not mapped
  device.region.used_bytes = 4 * kMiB;
  device.region.largest_free_block_bytes = kMiB;
  device.map = {.held_bytes = 6 * kMiB, .cell_bytes = 2 * kMiB, .op_bytes = {0, kMiB, 3 * kMiB}};
  device.map.cells = {{.used = 2 * kMiB, .op = 1, .blocks = 2},
                      {.used = 0, .op = 0},
                      {.used = 2 * kMiB, .op = 2, .blocks = 1, .gaps = 1}};
  return device;
}

TEST(MemoryMapTest, OpsAreSortedByBytesAndCellsNameTheirPlaces) {
  const json map = MapOf(TwoOps());
  EXPECT_EQ(map["ops"],
            json::parse(R"([{"name": "AddN", "bytes": 3145728}, {"name": "MatMul", "bytes": 1048576}])"));
  EXPECT_EQ(map["cells"], json::parse("[[1, 1.0, 2, 0], [-1, 0.0, 0, 0], [0, 1.0, 1, 1]]"));
  EXPECT_EQ(map["cell_bytes"], 2 * kMiB);
}

TEST(MemoryMapTest, NumbersAreThoseOfTheProgramAlsoWhereChunksAreNotMapped) {
  const json map = MapOf(TwoOps());
  EXPECT_EQ(map["granted_bytes"], 8 * kMiB);
  EXPECT_EQ(map["used_bytes"], 4 * kMiB);
  EXPECT_EQ(map["live_blocks"], 3);
  EXPECT_DOUBLE_EQ(map["fragmentation"], 0.75);
}

TEST(MemoryMapTest, ADeviceWithoutMemoryHasNoCells) {
  DeviceBlocks device;
  device.ops = {""};
  const json map = MapOf(device);
  EXPECT_EQ(map["cells"], json::array());
  EXPECT_EQ(map["fragmentation"], 0.0);
}

TEST(MemoryMapTest, ANumberThatAProgramInventedIsNoPlaceOutsideTheOps) {
  DeviceBlocks device = TwoOps();
  device.map.op_bytes[1] = 0;  // and cell 0 is said to be its
  EXPECT_EQ(MapOf(device)["cells"][0][0], -1);
}

TEST(ViewerTest, OtherUsersNamesAreRemovedAndAmountsStay) {
  v1::StatsSnapshot snapshot = At(1, 1);
  v1::QueuedRequest& request = *snapshot.mutable_cards(0)->add_queue();
  request.set_owner("somebody");
  request.set_pid(4711);
  request.set_asked_bytes(5);
  v1::QueuedRequest& own = *snapshot.mutable_cards(0)->add_queue();
  own.set_owner(UserName(1000));
  own.set_pid(4712);
  v1::ForeignProcess& process = *snapshot.mutable_cards(0)->add_foreign_processes();
  process.set_uid(1001);
  process.set_user("somebody");
  process.set_pid(4713);
  process.set_used_bytes(6);
  v1::StatsSnapshot all = snapshot;
  const UserNames names;
  HideOthers(ViewerOf(1000, false), names, snapshot);
  EXPECT_EQ(snapshot.cards(0).queue(0).owner(), "");
  EXPECT_EQ(snapshot.cards(0).queue(0).pid(), 0);
  EXPECT_EQ(snapshot.cards(0).queue(0).asked_bytes(), 5u);
  EXPECT_EQ(snapshot.cards(0).queue(1).pid(), 4712);
  EXPECT_EQ(snapshot.cards(0).foreign_processes(0).user(), "");
  EXPECT_EQ(snapshot.cards(0).foreign_processes(0).pid(), 0);
  EXPECT_EQ(snapshot.cards(0).foreign_processes(0).used_bytes(), 6u);
  HideOthers(kRoot, names, all);
  EXPECT_EQ(all.cards(0).queue(0).owner(), "somebody");
}

TEST(ViewerTest, AConnectionWithoutAUserSeesNoLease) {
  const Viewer nobody = ViewerOf(std::uint64_t{1} << 32, false);
  EXPECT_FALSE(nobody.is_known);
  EXPECT_FALSE(nobody.caller.may_see(LeaseKey{1}, 0));
  EXPECT_FALSE(nobody.caller.is_root());
  EXPECT_TRUE(ViewerOf(std::uint64_t{1} << 32, true).caller.is_root());
}

TEST(WebFilesTest, ThePageHasAllThatItNamesAndNothingOfOtherPlaces) {
  std::string page;
  for (const WebFile& file : WebFiles()) {
    EXPECT_FALSE(file.body.empty()) << file.path;
    if (std::string_view(file.path) == "/") page = file.body;
    // The library's own banner names its project.
    if (std::string_view(file.path).find("dygraph") != std::string_view::npos) continue;
    for (const char* const elsewhere : {"https://", "src=\"//"}) {
      EXPECT_EQ(file.body.find(elsewhere), std::string_view::npos) << file.path;
    }
  }
  for (const WebFile& file : WebFiles()) {
    const std::string_view path = file.path;
    const bool is_first = path == "/page.js" || path == "/page.css" || path.starts_with("/dygraph");
    if (!is_first) continue;
    EXPECT_THAT(page, HasSubstr(file.path));
  }
}

struct Pair {
  UniqueFd server, client;
  Pair() {
    int fds[2] = {};
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
    server.Reset(fds[0]);
    client.Reset(fds[1]);
  }
  /// The bytes up to `text`; all bytes, where the other end closes first.
  std::string ReadUntil(const std::string& text) const {
    std::string all;
    char buffer[65536];
    pollfd polled{client.get(), POLLIN, 0};
    while (all.find(text) == std::string::npos && ::poll(&polled, 1, 20'000) > 0) {
      const ssize_t count = ::read(client.get(), buffer, sizeof buffer);
      if (count <= 0) break;
      all.append(buffer, static_cast<std::size_t>(count));
    }
    return all;
  }
};

TEST(LiveStreamsTest, EveryPageGetsTheHeaderAndAMessagePerPeriod) {
  std::atomic<int> ticks = 0;
  const auto streams = LiveStreams::Start(
      {.tick = [&] { ++ticks; },
       .figures = [](const Viewer& viewer) { return "data: " + std::to_string(viewer.caller.uid) + "\n\n"; },
       .events =
           [](const Viewer& viewer, LiveStreams::Position& position) {
             return "data: " + std::to_string(viewer.caller.uid) + "/" +
                    std::to_string(++position.last_event) + "\n\n";
           }},
      {.period = std::chrono::milliseconds(20)});
  ASSERT_TRUE(streams.ok());
  Pair one, two;
  ASSERT_TRUE((*streams)->TakePlace(1));
  ASSERT_TRUE((*streams)->TakePlace(2));
  (*streams)->Serve(std::move(one.server), 1, ViewerOf(1, false), {});
  (*streams)->Serve(std::move(two.server), 2, ViewerOf(2, false), {.last_event = 40});
  EXPECT_THAT(one.ReadUntil("data: 1/3\n"), HasSubstr("HTTP/1.1 200 OK\r\n"));
  EXPECT_THAT(two.ReadUntil("data: 2/43\n"), HasSubstr("data: 2\n\ndata: 2/41\n\ndata: 2\n\ndata: 2/42\n\n"));
  EXPECT_GE(ticks, 2);
}

TEST(LiveStreamsTest, FiguresAreMadeOncePerViewerAndPeriodHoweverManyPagesCome) {
  std::atomic<int> made = 0;
  const auto streams =
      LiveStreams::Start({.tick = [] {},
                          .figures =
                              [&made](const Viewer&) {
                                ++made;
                                return std::string("data: figures\n\n");
                              },
                          .events =
                              [](const Viewer&, LiveStreams::Position& position) {
                                return "data: " + std::to_string(position.last_event) + "\n\n";
                              }},
                         {.period = std::chrono::hours(1)});
  ASSERT_TRUE(streams.ok());
  for (std::uint64_t i = 0; i < 20; ++i) {
    Pair page;
    ASSERT_TRUE((*streams)->TakePlace(1));
    (*streams)->Serve(std::move(page.server), 1, ViewerOf(1, false), {.last_event = i});
    EXPECT_THAT(page.ReadUntil("data: " + std::to_string(i) + "\n"), HasSubstr("data: figures\n\n"));
  }
  EXPECT_EQ(made, 1);
}

TEST(LiveStreamsTest, APageThatReadsNothingIsClosedAndDelaysNoOtherPage) {
  const std::string large(4 << 20, 'x');
  const auto streams = LiveStreams::Start(
      {.tick = [] {},
       .figures = [&large](const Viewer& viewer) { return viewer.caller.uid == 1 ? large : std::string(); },
       .events =
           [](const Viewer&, LiveStreams::Position& position) {
             return "data: " + std::to_string(++position.last_event) + "\n\n";
           }},
      {.period = std::chrono::milliseconds(20), .patience = std::chrono::milliseconds(200)});
  ASSERT_TRUE(streams.ok());
  Pair slow, fast;
  ASSERT_TRUE((*streams)->TakePlace(1));
  ASSERT_TRUE((*streams)->TakePlace(2));
  (*streams)->Serve(std::move(slow.server), 1, ViewerOf(1, false), {});
  (*streams)->Serve(std::move(fast.server), 2, ViewerOf(2, false), {});
  fast.ReadUntil("data: 30\n");
  // Its place is free again: the user can have all of their share.
  int places = 0;
  for (int i = 0; i < 1000 && !(*streams)->TakePlace(1); ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  while ((*streams)->TakePlace(1)) ++places;
  EXPECT_GE(places, 62);
  EXPECT_LT(slow.ReadUntil("never").size(), large.size());
}

TEST(LiveStreamsTest, AUserHasAShareOfThePlacesAndStopClosesAll) {
  const auto streams =
      LiveStreams::Start({.tick = [] {},
                          .figures = [](const Viewer&) { return std::string("data: 1\n\n"); },
                          .events = [](const Viewer&, LiveStreams::Position&) { return std::string(); }},
                         {.period = std::chrono::hours(1)});  // no further message
  ASSERT_TRUE(streams.ok());
  int taken = 0;
  while (taken < 1000 && (*streams)->TakePlace(1)) ++taken;
  EXPECT_EQ(taken, 64);
  EXPECT_TRUE((*streams)->TakePlace(2));
  Pair page;
  (*streams)->Serve(std::move(page.server), 1, kRoot, {});
  page.ReadUntil("data: 1\n");
  (*streams)->Stop();
  char byte = 0;
  EXPECT_EQ(::read(page.client.get(), &byte, 1), 0);
}

}  // namespace
}  // namespace lgpu::daemon
