#include "client/session/local_lease.h"

#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "allocator/device/simulated/simulated_backend.h"
#include "lgpu/refusal.h"
#include "tests/support/failing_backend.h"

namespace lgpu {
namespace {

constexpr std::chrono::seconds kLong{20};

std::unique_ptr<DeviceBackend> Cards(const std::vector<Bytes>& totals) {
  SimulatedBackendOptions options{.devices = {}, .sparse = true};
  for (const Bytes total : totals) {
    options.devices.push_back(SimulatedDevice(static_cast<int>(options.devices.size()), total, "local"));
  }
  return MakeSimulatedBackend(std::move(options));
}

std::vector<std::string> Uuids(const DeviceBackend& backend) {
  std::vector<std::string> uuids;
  for (const PhysicalDevice& device : backend.devices()) uuids.push_back(device.uuid);
  return uuids;
}

// A lease of devices that may be on any card.
std::unique_ptr<Lease> Open(std::unique_ptr<DeviceBackend> backend, std::vector<LogicalDeviceSpec> specs) {
  for (LogicalDeviceSpec& spec : specs) spec.cards = Uuids(*backend);
  absl::StatusOr<std::unique_ptr<Lease>> lease = LocalLease::Open(std::move(backend), "", specs);
  EXPECT_TRUE(lease.ok()) << lease.status();
  return lease.ok() ? *std::move(lease) : nullptr;
}

std::vector<int> CardsOf(const Lease& lease) {
  std::vector<int> cards;
  for (const LeasedDevice& device : lease.devices()) cards.push_back(device.backend_device);
  return cards;
}

GrowRequest AskFor(Bytes bytes, std::chrono::nanoseconds timeout = {}) {
  return {.at_least = bytes, .wanted = bytes, .timeout = timeout};
}

std::vector<ChunkId> Ids(const std::vector<Chunk>& chunks) {
  std::vector<ChunkId> ids;
  for (const Chunk& chunk : chunks) ids.push_back(chunk.id);
  return ids;
}

TEST(LocalLeaseTest, DevicesAreSpreadOverTheCards) {
  const LogicalDeviceSpec whole{.cards = {}, .limit = 64_MiB};
  const auto lease = Open(Cards({64_MiB, 64_MiB, 64_MiB, 64_MiB}), {whole, whole, whole, whole});
  EXPECT_EQ(CardsOf(*lease), (std::vector<int>{0, 1, 2, 3}));
  EXPECT_TRUE(lease->Close().ok());
}

TEST(LocalLeaseTest, EachDeviceGoesToTheCardWithTheMostRoomLeft) {
  const auto lease = Open(Cards({64_MiB, 32_MiB}), {{.cards = {}, .limit = 16_MiB, .preallocate = true},
                                                    {.cards = {}, .limit = 24_MiB},
                                                    {.cards = {}, .limit = 16_MiB}});
  EXPECT_EQ(CardsOf(*lease), (std::vector<int>{0, 0, 1}));
}

TEST(LocalLeaseTest, ADeviceThatTheRoomiestCardCannotHoldGoesToAnother) {
  const auto lease =
      Open(Cards({64_MiB, 32_MiB}), {{.cards = {}, .limit = 48_MiB}, {.cards = {}, .limit = 40_MiB}});
  EXPECT_EQ(CardsOf(*lease), (std::vector<int>{0, 0}));
}

TEST(LocalLeaseTest, APreallocatedDeviceIsResized) {
  const auto lease = Open(Cards({64_MiB}), {{.cards = {}, .limit = 16_MiB, .preallocate = true}});
  const auto source = lease->TakeSource(0);
  const std::vector<Chunk> all = *source->Grow(AskFor(16_MiB));
  ASSERT_TRUE(lease->Resize(0, 32_MiB, std::nullopt).ok());
  EXPECT_EQ(source->limit(), 32_MiB);
  const std::vector<Chunk> more = *source->Grow(AskFor(16_MiB));
  EXPECT_EQ(GetRefusal(source->Grow(AskFor(2_MiB)).status())->reason, RefusalReason::kLimit);
  ASSERT_TRUE(lease->Resize(0, 8_MiB, std::nullopt).ok());
  EXPECT_EQ(source->limit(), 8_MiB);
  ASSERT_TRUE(source->Return(Ids(all)).ok());
  ASSERT_TRUE(source->Return(Ids(more)).ok());
  EXPECT_FALSE(source->Grow(AskFor(10_MiB)).ok());
  EXPECT_TRUE(source->Grow(AskFor(8_MiB)).ok());
  ASSERT_TRUE(lease->Resize(0, Lease::kWholeCard, std::nullopt).ok());
  EXPECT_EQ(source->limit(), 64_MiB);
}

TEST(LocalLeaseTest, AResizeThatTheCardHasNoRoomForIsRefusedAndChangesNothing) {
  const auto lease = Open(Cards({64_MiB}), {{.cards = {}, .limit = 16_MiB, .preallocate = true},
                                            {.cards = {}, .limit = 40_MiB, .guarantee = 40_MiB}});
  const auto source = lease->TakeSource(0);
  const absl::Status status = lease->Resize(0, 32_MiB, std::nullopt);
  ASSERT_TRUE(GetRefusal(status).has_value()) << status;
  EXPECT_EQ(GetRefusal(status)->card_free, 8_MiB);
  EXPECT_EQ(source->limit(), 16_MiB);
  EXPECT_EQ(lease->Resize(0, 128_MiB, std::nullopt).code(), absl::StatusCode::kInvalidArgument);
  ASSERT_TRUE(lease->Resize(0, Lease::kWholeCard, std::nullopt).ok());
  EXPECT_EQ(source->limit(), 24_MiB);  // the guarantee of the other one stays its own
}

TEST(LocalLeaseTest, IdleMemoryOfOneDeviceIsTrimmedForAnother) {
  const auto lease = Open(Cards({64_MiB}), {{.cards = {}, .limit = 64_MiB}, {.cards = {}, .limit = 64_MiB}});
  const auto idle = lease->TakeSource(0);
  const auto needy = lease->TakeSource(1);
  const std::vector<Chunk> chunks = *idle->Grow(AskFor(64_MiB));
  lease->StartMaintenance([&](Maintenance::TimePoint) -> std::optional<Maintenance::TimePoint> {
    for (const TrimOrder& order : lease->TakeTrims()) {
      EXPECT_EQ(order.device, lease->devices()[0].id);
      EXPECT_EQ(order.bytes, 8_MiB);
      EXPECT_TRUE(idle->Return(Ids(chunks)).ok());
      lease->AnswerTrim(order, /*pending=*/false);
    }
    return std::nullopt;
  });
  const auto grown = needy->Grow(AskFor(8_MiB, kLong));
  EXPECT_TRUE(grown.ok()) << grown.status();
  lease->StopMaintenance();
}

TEST(LocalLeaseTest, MaintenanceFreesMemoryThatTheBackendDidNotFreeAtOnce) {
  auto owned =
      std::make_unique<FailingBackend>(Cards({64_MiB}), FailingBackend::Options{.cleanup_fails = true});
  FaultPlan& faults = owned->faults();
  const auto lease = Open(std::move(owned), {{.cards = {}, .limit = 64_MiB}});
  const auto source = lease->TakeSource(0);
  lease->StartMaintenance([](Maintenance::TimePoint) { return std::nullopt; });
  const std::vector<Chunk> chunks = *source->Grow(AskFor(64_MiB));
  faults.FailFrom(1);
  ASSERT_TRUE(source->Return(Ids(chunks)).ok());
  EXPECT_FALSE(source->Grow(AskFor(64_MiB)).ok());
  faults.Heal();
  const auto grown = source->Grow(AskFor(64_MiB, kLong));
  EXPECT_TRUE(grown.ok()) << grown.status();
  lease->StopMaintenance();
}

TEST(LocalLeaseTest, CloseSaysHowMuchTheBackendDidNotFree) {
  auto owned =
      std::make_unique<FailingBackend>(Cards({64_MiB}), FailingBackend::Options{.cleanup_fails = true});
  FaultPlan& faults = owned->faults();
  const auto lease = Open(std::move(owned), {{.cards = {}, .limit = 64_MiB}});
  auto source = lease->TakeSource(0);
  ASSERT_TRUE(source->Grow(AskFor(2_MiB)).ok());
  faults.FailFrom(1);
  source.reset();
  const absl::Status status = lease->Close();
  EXPECT_EQ(status, absl::InternalError("2.00MiB are still held"));
  EXPECT_TRUE(absl::IsFailedPrecondition(lease->Resize(0, 2_MiB, std::nullopt)));
  faults.Heal();
}

}  // namespace
}  // namespace lgpu
