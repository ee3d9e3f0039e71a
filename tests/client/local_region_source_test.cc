#include "client/session/local_region_source.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <atomic>
#include <chrono>
#include <deque>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "allocator/device/simulated/simulated_backend.h"
#include "lgpu/interrupt.h"
#include "lgpu/refusal.h"
#include "tests/contract/region_source_contract.h"
#include "tests/support/broker_testing.h"
#include "tests/support/failing_backend.h"

namespace lgpu {
namespace {

constexpr Bytes kCard = 64_MiB;

constexpr LeaseKey kLease{1};

/// One simulated card with a broker, and as many devices on it as a test makes.
class LocalWorld : public RegionSourceWorld {
 public:
  LocalWorld() : LocalWorld(MakeSimulatedBackend({.devices = {SimulatedDevice(0, kCard, "test")}})) {}
  explicit LocalWorld(std::unique_ptr<DeviceBackend> backend)
      : backend_(std::move(backend)), broker_(MakeBroker(*backend_)) {}
  LocalWorld(Bytes limit, bool preallocate) : LocalWorld() {
    device_ = *Add({.limit = limit, .preallocate = preallocate});
  }

  struct Wanted {
    Bytes limit;
    Bytes guarantee = {};
    bool preallocate = false;
  };
  absl::StatusOr<LogicalId> Add(const Wanted& wanted) {
    const std::string name = "/device:GPU:" + std::to_string(limits_.size());
    limits_.emplace_back(wanted.limit.count());
    return broker_->AddDevice({.card = broker_->Cards().front().id,
                               .limit = wanted.limit,
                               .guarantee = wanted.guarantee,
                               .preallocate = wanted.preallocate,
                               .lease = kLease,
                               .device_name = name});
  }
  // One for each device, in the order of Add.
  std::unique_ptr<RegionSource> Source(LogicalId device) {
    return *LocalRegionSource::Create(
        *broker_, *backend_, limits_.at(device.value - 1),
        {.device = device, .lease = kLease, .session = SessionId{device.value}});
  }
  std::unique_ptr<RegionSource> TakeSource() override { return Source(device_); }
  Bytes held() override { return held(device_); }
  Bytes held(LogicalId device) const { return broker_->Held(SessionId{device.value}); }
  Broker& broker() { return *broker_; }

 private:
  const std::unique_ptr<DeviceBackend> backend_;
  const std::unique_ptr<Broker> broker_;
  std::deque<std::atomic<std::uint64_t>> limits_;
  LogicalId device_;
};

RegionSourceFactory Factory(const char* name, bool preallocate) {
  return {name, [preallocate](Bytes limit) { return std::make_unique<LocalWorld>(limit, preallocate); }};
}
INSTANTIATE_TEST_SUITE_P(Local, RegionSourceContract,
                         ::testing::Values(Factory("Growth", false), Factory("Preallocate", true)),
                         RegionSourceName);

GrowRequest Ask(Bytes bytes, std::chrono::nanoseconds timeout = {}) {
  return {.at_least = bytes, .wanted = bytes, .timeout = timeout};
}

std::vector<ChunkId> Ids(const std::vector<Chunk>& chunks) {
  std::vector<ChunkId> ids;
  for (const Chunk& chunk : chunks) ids.push_back(chunk.id);
  return ids;
}

TEST(LocalRegionSourceTest, ShortOfTheCardNamesTheHolders) {
  LocalWorld world;
  const LogicalId first = *world.Add({.limit = kCard});
  const LogicalId second = *world.Add({.limit = kCard});
  auto one = world.Source(first);
  auto two = world.Source(second);
  ASSERT_TRUE(one->Grow(Ask(48_MiB)).ok());
  const absl::Status status = two->Grow(Ask(32_MiB)).status();
  ASSERT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  const std::optional<Refusal> refusal = GetRefusal(status);
  ASSERT_TRUE(refusal.has_value());
  EXPECT_EQ(refusal->reason, RefusalReason::kCard);
  EXPECT_EQ(refusal->card_free, 16_MiB);
  ASSERT_EQ(refusal->holders.size(), 1u);
  EXPECT_EQ(refusal->holders[0].device, "/device:GPU:0");
  EXPECT_EQ(refusal->holders[0].held, 48_MiB);
}

TEST(LocalRegionSourceTest, ALimitMayBeRaisedWithoutRunningOutOfAddresses) {
  LocalWorld world;
  EXPECT_GE(world.Source(*world.Add({.limit = 2_MiB}))->reserved(), kCard * 4);
  EXPECT_GE(world.Source(*world.Add({.limit = kCard}))->reserved(), kCard * 8);
}

TEST(LocalRegionSourceTest, WaitsForMemoryThatAnotherDeviceReturns) {
  LocalWorld world;
  auto one = world.Source(*world.Add({.limit = kCard}));
  auto two = world.Source(*world.Add({.limit = kCard}));
  const std::vector<Chunk> held = *one->Grow(Ask(kCard));
  std::thread waiter([&] {
    absl::StatusOr<std::vector<Chunk>> chunks = two->Grow(Ask(4_MiB, std::chrono::seconds(20)));
    EXPECT_TRUE(chunks.ok()) << chunks.status();
  });
  EXPECT_TRUE(one->Return(Ids(held)).ok());
  waiter.join();
}

TEST(LocalRegionSourceTest, AnInterruptedRequestLeavesTheQueue) {
  LocalWorld world;
  auto one = world.Source(*world.Add({.limit = kCard}));
  auto two = world.Source(*world.Add({.limit = kCard}));
  const std::vector<Chunk> held = *one->Grow(Ask(60_MiB));
  {
    const InterruptScope scope([] { return true; });
    const absl::Status status = two->Grow(Ask(32_MiB, std::chrono::hours(1))).status();
    EXPECT_TRUE(absl::IsCancelled(status)) << status;
  }
  EXPECT_TRUE(world.broker().Cards().front().queue.empty());
  EXPECT_TRUE(two->Grow(Ask(4_MiB)).ok());
}

TEST(LocalRegionSourceTest, TheOnlyHolderThatWaitsForItselfIsRefusedAtOnce) {
  LocalWorld world;
  auto one = world.Source(*world.Add({.limit = kCard}));
  auto two = world.Source(*world.Add({.limit = kCard}));
  ASSERT_TRUE(one->Grow(Ask(32_MiB)).ok());
  ASSERT_TRUE(two->Grow(Ask(30_MiB)).ok());
  std::thread other([&] { (void)two->Grow(Ask(8_MiB, std::chrono::seconds(20))); });
  // Both wait for each other now, or one finds the other waiting: the younger is refused without a wait.
  const absl::Status status = one->Grow(Ask(8_MiB, std::chrono::seconds(1))).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  one.reset();
  other.join();
}

TEST(LocalRegionSourceTest, GuaranteesAreSetAsideForTheirDevice) {
  LocalWorld world;
  const LogicalId safe = *world.Add({.limit = 32_MiB, .guarantee = 32_MiB});
  auto greedy = world.Source(*world.Add({.limit = kCard}));
  auto guaranteed = world.Source(safe);
  ASSERT_TRUE(greedy->Grow(Ask(32_MiB)).ok());
  EXPECT_FALSE(greedy->Grow(Ask(2_MiB)).ok());
  EXPECT_TRUE(guaranteed->Grow(Ask(32_MiB)).ok());
}

TEST(LocalRegionSourceTest, PreallocationThatDoesNotFitIsRefusedWithItsNumbers) {
  LocalWorld world;
  ASSERT_TRUE(world.Add({.limit = 48_MiB, .preallocate = true}).ok());
  const absl::Status status = world.Add({.limit = 32_MiB, .preallocate = true}).status();
  ASSERT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(GetRefusal(status)->card_free, 16_MiB);
}

TEST(LocalRegionSourceTest, ADeviceThatCanNeverBeIsInvalid) {
  LocalWorld world;
  EXPECT_EQ(world.Add({.limit = kCard + 2_MiB}).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(world.Add({.limit = 2_MiB, .guarantee = 4_MiB}).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST(LocalRegionSourceTest, WrongSizesAreInvalid) {
  LocalWorld world(16_MiB, false);
  auto source = world.TakeSource();
  for (const Bytes wrong : {Bytes(), Bytes(1), 2_MiB + 1_B, Bytes(~std::uint64_t{0})}) {
    EXPECT_EQ(source->Grow(Ask(wrong)).status().code(), absl::StatusCode::kInvalidArgument) << wrong;
  }
  EXPECT_EQ(source->Grow(Ask(Bytes(std::uint64_t{1} << 62))).status().code(),
            absl::StatusCode::kResourceExhausted);
}

TEST(LocalRegionSourceTest, AForkedChildCannotUseIt) {
  LocalWorld world(16_MiB, false);
  auto source = world.TakeSource();
  const std::vector<Chunk> chunks = *source->Grow(Ask(2_MiB));
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    const ChunkPlacement place{chunks[0].id, Bytes()};
    const bool dead = absl::IsFailedPrecondition(source->Grow(Ask(2_MiB)).status()) &&
                      absl::IsFailedPrecondition(source->Map({&place, 1}));
    source.reset();
    ::_exit(dead ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_TRUE(source->Grow(Ask(2_MiB)).ok());
}

TEST(LocalRegionSourceTest, MemoryThatTheBackendDidNotFreeStaysChargedUntilItDoes) {
  auto owned =
      std::make_unique<FailingBackend>(MakeSimulatedBackend({.devices = {SimulatedDevice(0, kCard, "test")}}),
                                       FailingBackend::Options{.cleanup_fails = true});
  FaultPlan& faults = owned->faults();
  LocalWorld world(std::move(owned));
  const LogicalId device = *world.Add({.limit = kCard});
  auto source = world.Source(device);
  const std::vector<Chunk> chunks = *source->Grow(Ask(kCard));
  faults.FailFrom(1);
  EXPECT_TRUE(source->Return(Ids(chunks)).ok());
  EXPECT_EQ(world.held(device), kCard);
  EXPECT_FALSE(source->Grow(Ask(kCard)).ok());
  EXPECT_FALSE(world.broker().RetryUnconfirmed());
  faults.Heal();
  EXPECT_TRUE(world.broker().RetryUnconfirmed());
  const absl::StatusOr<std::vector<Chunk>> again = source->Grow(Ask(kCard));
  ASSERT_TRUE(again.ok()) << again.status();
  source.reset();
  EXPECT_TRUE(world.held(device).is_zero());
}

}  // namespace
}  // namespace lgpu
