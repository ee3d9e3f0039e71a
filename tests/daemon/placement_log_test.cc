#include "daemon/sessions/placement_log.h"

#include <gtest/gtest.h>

#include <chrono>
#include <limits>
#include <memory>
#include <optional>
#include <random>

#include "tests/support/test_seed.h"

namespace lgpu::daemon {
namespace {

PlacementEntry MatMulOn(std::uint16_t device) {
  PlacementEntry entry;
  entry.op = 0;
  entry.dtype = 1;
  entry.device = device;
  entry.output_bytes = 16;
  entry.host_ns = 5;
  return entry;
}

TEST(PlacementLogTest, AddsUpByDeviceOpAndType) {
  const auto page = std::make_unique<ClientPage>();
  SetOpName(*page, 0, "MatMul");
  PlacementLog log(2);
  PlacementReader reader(page.get(), SessionId{3}, 42);
  for (const std::uint16_t device : {0, 0, 1}) page->ring.Push(MatMulOn(device));
  reader.Drain(log, 2);
  const v1::PlacementReport report = log.Report(0);
  ASSERT_EQ(report.totals_size(), 2);
  EXPECT_EQ(report.totals(0).device(), "/job:localhost/replica:0/task:0/device:GPU:0");
  EXPECT_EQ(report.totals(0).op(), "MatMul");
  EXPECT_EQ(report.totals(0).dtype(), "float");
  EXPECT_EQ(report.totals(0).count(), 2u);
  EXPECT_EQ(report.records_total(), 3u);
  ASSERT_EQ(report.records_size(), 2);
  EXPECT_EQ(report.records(1).sequence(), 3u);
  EXPECT_EQ(report.records(1).pid(), 42);
  EXPECT_FALSE(report.records(1).has_device_ns());
}

PlacementEntry CopyFrom(std::uint16_t source, std::uint16_t target) {
  PlacementEntry entry = MatMulOn(target);
  entry.flags = PlacementEntry::kCopy;
  entry.source = source;
  return entry;
}

TEST(PlacementLogTest, CopiesAreNoOpsAndAddUpBySourceAndTarget) {
  const auto page = std::make_unique<ClientPage>();
  SetOpName(*page, 0, "Copy");
  PlacementLog log(2);
  PlacementReader reader(page.get(), SessionId{3}, 42);
  constexpr std::uint16_t kHost = PlacementEntry::kHostDevice;
  page->ring.Push(MatMulOn(0));
  for (const auto& [source, target] : {std::pair<std::uint16_t, std::uint16_t>{kHost, 0}, {0, 1}, {0, 1}}) {
    page->ring.Push(CopyFrom(source, target));
  }
  // Impossible records: a device that the lease does not have, or a copy to the bytes' own device.
  page->ring.Push(CopyFrom(2, 0));
  page->ring.Push(CopyFrom(1, 1));
  page->ring.Push(CopyFrom(PlacementEntry::kNoDevice, 1));
  reader.Drain(log, 2);
  const v1::PlacementReport report = log.Report(0);
  EXPECT_EQ(report.records_total(), 1u);
  EXPECT_EQ(report.records_size(), 1);
  EXPECT_EQ(report.dropped_total(), 3u);
  EXPECT_EQ(report.copies_total(), 3u);
  ASSERT_EQ(report.copy_totals_size(), 2);
  EXPECT_EQ(report.copy_totals(0).source(), "/job:localhost/replica:0/task:0/device:GPU:0");
  EXPECT_EQ(report.copy_totals(0).target(), "/job:localhost/replica:0/task:0/device:GPU:1");
  EXPECT_EQ(report.copy_totals(0).count(), 2u);
  EXPECT_EQ(report.copy_totals(0).bytes(), 32u);
  EXPECT_EQ(report.copy_totals(0).host_ns(), 10u);
  EXPECT_EQ(report.copy_totals(1).source(), "/job:localhost/replica:0/task:0/device:CPU:0");
  ASSERT_EQ(report.copies_size(), 2);  // the first one is not kept any more
  EXPECT_EQ(report.copies(1).sequence(), 3u);
  EXPECT_EQ(report.copies(1).pid(), 42);
  EXPECT_EQ(report.copies(1).bytes(), 16u);
  EXPECT_EQ(log.Report(1).copies_size(), 1);
  OpCounts counts;
  log.AddTo(counts);
  ASSERT_EQ(counts.size(), 1u);
  EXPECT_EQ(counts.begin()->second.executed, 1u);
}

TEST(PlacementLogTest, TheLastOpIsNeverInTheFuture) {
  PlacementLog log(10);
  EXPECT_EQ(log.last_at(), std::nullopt);
  const auto add = [&](std::uint64_t submitted_unix_ns) {
    PlacementEntry entry = MatMulOn(0);
    entry.submitted_unix_ns = submitted_unix_ns;
    log.Add({{.session = SessionId{1}, .pid = 1, .op = "AddN", .entry = entry}}, 0);
  };
  using std::chrono::system_clock;
  add(2'000'000'000);
  EXPECT_EQ(log.last_at(), system_clock::time_point(std::chrono::seconds(2)));
  add(1'000'000'000);
  EXPECT_EQ(log.last_at(), system_clock::time_point(std::chrono::seconds(2)));
  const auto before = system_clock::now();
  add(std::numeric_limits<std::uint64_t>::max());
  EXPECT_GE(*log.last_at(), before);
  EXPECT_LE(*log.last_at(), system_clock::now());
}

TEST(PlacementLogTest, AStreamGetsNewRecordsAndEnds) {
  PlacementLog log(10);
  log.Add({{.session = SessionId{1}, .pid = 1, .op = "AddN", .entry = MatMulOn(0)}}, 0);
  EXPECT_EQ(log.Read({}, 10).records.size(), 1u);
  EXPECT_EQ(log.Before(0).op, 0u);
  log.Close();
  EXPECT_TRUE(log.Read({.op = 1}, 10).closed);
}

TEST(PlacementLogTest, AStreamHasOpsAndCopiesInTheirOrder) {
  PlacementLog log(3);
  const auto add = [&log](const PlacementEntry& entry) {
    log.Add({{.session = SessionId{1}, .pid = 7, .op = "AddN", .entry = entry}}, 0);
  };
  add(CopyFrom(0, 1));
  add(MatMulOn(0));
  add(CopyFrom(1, 0));
  add(MatMulOn(1));
  const auto told = [](const PlacementLog::Batch& batch) {
    std::string text;
    for (const v1::PlacementRecord& record : batch.records) {
      text += record.has_copy() ? "c" + std::to_string(record.copy().sequence())
                                : "o" + std::to_string(record.sequence());
    }
    return text;
  };
  PlacementLog::Batch batch = log.Read({}, 3);
  EXPECT_EQ(told(batch), "c1o1c2");
  EXPECT_EQ(batch.records[0].copy().source(), "/job:localhost/replica:0/task:0/device:GPU:0");
  EXPECT_EQ(batch.records[0].copy().pid(), 7);
  EXPECT_EQ(told(batch = log.Read(batch.last, 3)), "o2");
  // Of a reader that was away for long the oldest are lost.
  for (int i = 0; i < 5; ++i) add(CopyFrom(0, 1));
  add(MatMulOn(0));
  EXPECT_EQ(told(batch = log.Read(batch.last, 10)), "c5c6c7o3");
  EXPECT_EQ(told(log.Read(log.Before(1), 10)), "c7o3");
  log.Close();
  EXPECT_FALSE(log.Read({.op = 3, .copy = 6}, 0).closed);
  EXPECT_TRUE(log.Read(batch.last, 10).closed);
}

TEST(PlacementLogTest, GarbageIsCountedAndBounded) {
  const std::uint32_t seed = TestSeed();
  std::mt19937_64 random(seed);
  const auto page = std::make_unique<ClientPage>();
  auto* words = reinterpret_cast<std::atomic<std::uint64_t>*>(page.get());
  PlacementLog log(16);
  PlacementReader reader(page.get(), SessionId{1}, 1);
  for (int round = 0; round < 5; ++round) {
    for (std::size_t i = 0; i < sizeof(ClientPage) / 8; ++i) words[i].store(random());
    page->ring.head.store(random() % (round < 3 ? 100'000 : ~0ULL));
    reader.Drain(log, 2);
  }
  const v1::PlacementReport report = log.Report(0);
  EXPECT_LE(report.records_size(), 16);
  EXPECT_LE(report.totals_size(), static_cast<int>(PlacementLog::kMaxTotals));
}

TEST(PlacementLogTest, DevicesThatTheLeaseHasNotAreDropped) {
  const auto page = std::make_unique<ClientPage>();
  SetOpName(*page, 0, "MatMul");
  PlacementLog log(10);
  PlacementReader reader(page.get(), SessionId{1}, 1);
  page->ring.Push(MatMulOn(2));
  page->ring.Push(MatMulOn(PlacementEntry::kHostDevice));
  reader.Drain(log, 2);
  EXPECT_EQ(log.counts().records, 1u);
  EXPECT_EQ(log.counts().dropped, 1u);
}

}  // namespace
}  // namespace lgpu::daemon
