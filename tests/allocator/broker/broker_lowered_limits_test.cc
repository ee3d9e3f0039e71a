// Preallocated devices whose limit was lowered or could not be raised, as small cases.
#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "allocator/broker/broker.h"
#include "tests/allocator/broker/broker_repairs.h"
#include "tests/support/broker_testing.h"
#include "tests/support/counting_backend.h"

namespace lgpu {
namespace {

using testing::CountingBackend;
using Clock = std::chrono::steady_clock;

// A preallocated device of 64 MiB in small chunks and one of 32 MiB, and sessions of its lease. Lower()
// leaves room for 10 MiB beside what the second session holds. A spare chunk of 32 MiB is freed then, and
// chunks of 10 MiB in all are made in its place.
class LoweredDevice {
 public:
  LoweredDevice() : broker(MakeBroker(backend)) {
    device = AddDevice(*broker, 1, 64_MiB, true);
    for (std::uint64_t i = 1; i <= 3; ++i) {
      broker->AddSession(SessionId{i}, {.pid = 1});
      broker->AttachSession(SessionId{i}, LeaseKey{1});
    }
    EXPECT_EQ(Grow(1, 32_MiB).chunks.size(), 1u);
    EXPECT_EQ(Grow(2, 32_MiB).chunks.size(), 16u);
  }
  void Lower() { EXPECT_TRUE(broker->ResizeDevice(device, 42_MiB, Bytes()).ok()); }

  Broker::Answer Grow(std::uint64_t session, Bytes bytes, std::chrono::milliseconds timeout = {}) {
    return GrowOf(*broker, session, device, bytes, timeout);
  }

  CountingBackend backend{{256_MiB}, 2_MiB};
  std::unique_ptr<Broker> broker;
  LogicalId device;
};

TEST(BrokerRepairsTest, ChunksThatCouldNotBeMadeAgainAreMadeForTheNextRequest) {
  LoweredDevice lowered;
  lowered.broker->ReturnAll(SessionId{1});
  lowered.backend.FailCreateAfter(0);
  lowered.Lower();
  EXPECT_EQ(lowered.broker->Find(lowered.device)->missing, 10_MiB);
  lowered.backend.FailCreateAfter(0);
  EXPECT_TRUE(absl::IsResourceExhausted(lowered.Grow(3, 2_MiB).status));
  EXPECT_TRUE(lowered.broker->CheckInvariants().ok()) << lowered.broker->CheckInvariants();
  const Broker::Answer granted = lowered.Grow(3, 10_MiB);
  EXPECT_TRUE(granted.status.ok()) << granted.status;
  EXPECT_EQ(granted.chunks.size(), 5u);
  EXPECT_EQ(lowered.broker->Cards().front().view.held, 42_MiB);
}

TEST(BrokerRepairsTest, ARequestThatWaitsForAChunkThatIsBeingCutIsServed) {
  for (const bool while_freed : {true, false}) {
    SCOPED_TRACE(while_freed);
    LoweredDevice lowered;
    lowered.broker->ReturnAll(SessionId{1});
    Broker::Answer other;
    const auto ask = [&] { other = lowered.Grow(3, 4_MiB, std::chrono::hours(1)); };
    while_freed ? lowered.backend.BeforeNextReclaim(ask) : lowered.backend.BeforeNextCreate(ask);
    lowered.Lower();
    ASSERT_TRUE(other.wait.has_value()) << other.status;
    const Broker::Answer granted = AskAgain(*lowered.broker, *other.wait);
    EXPECT_TRUE(granted.status.ok()) << granted.status;
    EXPECT_EQ(granted.chunks.size(), 2u);
    EXPECT_TRUE(lowered.broker->CheckInvariants().ok()) << lowered.broker->CheckInvariants();
  }
}

TEST(BrokerRepairsTest, ARequestHasTheChunksThatAreMadeForItBeforeLaterRequests) {
  for (const auto patience : {std::chrono::milliseconds(0), std::chrono::milliseconds(3'600'000)}) {
    SCOPED_TRACE(patience.count());
    LoweredDevice lowered;
    lowered.broker->ReturnAll(SessionId{1});
    lowered.backend.FailCreateAfter(0);
    lowered.Lower();
    Broker::Answer other;
    lowered.backend.BeforeNextCreate([&] { other = lowered.Grow(3, 4_MiB, patience); });
    const Broker::Answer mine = lowered.Grow(1, 8_MiB);
    EXPECT_TRUE(mine.status.ok()) << mine.status;
    // The chunks are made for the other request: a timeout of 0 does not wait for them.
    EXPECT_EQ(other.wait.has_value(), patience.count() > 0) << other.status;
    if (other.wait) other = AskAgain(*lowered.broker, *other.wait);
    EXPECT_TRUE(absl::IsResourceExhausted(other.status)) << other.status;
    EXPECT_TRUE(lowered.broker->CheckInvariants().ok()) << lowered.broker->CheckInvariants();
  }
}

// The chunks that it lacks went as ballast, and other devices have that memory by now.
TEST(BrokerRepairsTest, ALimitIsLoweredThoughTheDeviceLacksChunks) {
  CountingBackend backend({64_MiB}, 2_MiB);
  const std::unique_ptr<Broker> broker = MakeBroker(backend);
  const LogicalId device{7};
  ASSERT_TRUE(RestorePreallocated(*broker, device, 64_MiB).ok());
  const CardId card = broker->Cards().front().id;
  backend.BeforeNextCreate([&] {
    const Broker::DeviceSpec other{.card = card, .limit = 4_MiB, .guarantee = 4_MiB, .lease = LeaseKey{2}};
    EXPECT_TRUE(broker->AddDevice(other).ok());
  });
  backend.FailCreateAfter(0);
  EXPECT_TRUE(broker->ResizeDevice(device, 60_MiB, Bytes()).ok());
  EXPECT_EQ(broker->Find(device)->limit, 60_MiB);
  EXPECT_EQ(broker->Find(device)->guarantee, 60_MiB);
  EXPECT_TRUE(broker->CheckInvariants().ok()) << broker->CheckInvariants();
}

TEST(BrokerRepairsTest, AFailedResizeLeavesNothingBeyondTheLimit) {
  for (const auto patience : {std::chrono::milliseconds(0), std::chrono::milliseconds(3'600'000)}) {
    SCOPED_TRACE(patience.count());
    LoweredDevice raised;
    Broker::Answer other;
    raised.backend.BeforeNextCreate([&] { other = raised.Grow(3, 60_MiB, patience); });
    raised.backend.FailCreateAfter(0);
    EXPECT_FALSE(raised.broker->ResizeDevice(raised.device, 128_MiB, Bytes()).ok());
    ASSERT_TRUE(other.wait.has_value()) << other.status;
    other = AskAgain(*raised.broker, *other.wait);
    EXPECT_TRUE(other.wait.has_value() || absl::IsResourceExhausted(other.status)) << other.status;
    EXPECT_EQ(raised.broker->Find(raised.device)->held, 64_MiB);
    EXPECT_EQ(raised.broker->Cards().front().view.held, 64_MiB);
    EXPECT_TRUE(raised.broker->CheckInvariants().ok()) << raised.broker->CheckInvariants();
  }
}

// What is still being made for a limit that is lowered meanwhile costs none of the chunks that are there.
TEST(BrokerRepairsTest, ALoweredLimitKeepsTheChunksThatAreThere) {
  for (const bool can_be_made : {true, false}) {
    SCOPED_TRACE(can_be_made);
    CountingBackend backend({256_MiB}, 2_MiB);
    const std::unique_ptr<Broker> broker = MakeBroker(backend);
    const LogicalId device = AddDevice(*broker, 1, 32_MiB, true);
    backend.BeforeNextCreate([&] { EXPECT_TRUE(broker->ResizeDevice(device, 32_MiB, Bytes()).ok()); });
    if (!can_be_made) backend.FailCreateAfter(0);
    EXPECT_EQ(broker->ResizeDevice(device, 42_MiB, Bytes()).ok(), can_be_made);
    EXPECT_EQ(broker->Find(device)->limit, 32_MiB);
    EXPECT_EQ(broker->Find(device)->held, 32_MiB);
    EXPECT_EQ(broker->Find(device)->missing, Bytes());
    EXPECT_TRUE(broker->CheckInvariants().ok()) << broker->CheckInvariants();
  }
}

TEST(BrokerRepairsTest, ASessionThatEndsBeforeItsChunkIsCutCostsTheDeviceNothing) {
  LoweredDevice lowered;
  lowered.broker->StartDraining(SessionId{1});
  lowered.Lower();
  const Broker::Answer waiting = lowered.Grow(3, 2_MiB, std::chrono::hours(1));
  ASSERT_TRUE(waiting.wait.has_value()) << waiting.status;
  ASSERT_EQ(lowered.broker->FinishDraining({SessionId{1}}).size(), 1u);
  lowered.broker->ReturnAll(SessionId{3});
  EXPECT_TRUE(lowered.broker->RetryUnconfirmed());
  const Broker::Answer granted = lowered.Grow(2, 10_MiB);
  EXPECT_TRUE(granted.status.ok()) << granted.status;
  EXPECT_EQ(lowered.broker->Cards().front().view.held, 42_MiB);
  EXPECT_TRUE(lowered.broker->CheckInvariants().ok()) << lowered.broker->CheckInvariants();
}

// The chunk is not confirmed free at first: what it was to become comes later.
TEST(BrokerRepairsTest, AChunkThatIsFreedLateIsCutLate) {
  LoweredDevice lowered;
  lowered.broker->ReturnAll(SessionId{1});
  lowered.backend.SetReclaiming(0, CountingBackend::Reclaiming::kFails);
  lowered.Lower();
  const Broker::Answer waiting = lowered.Grow(3, 2_MiB, std::chrono::hours(1));
  ASSERT_TRUE(waiting.wait.has_value()) << waiting.status;
  lowered.backend.SetReclaiming(0, CountingBackend::Reclaiming::kAtOnce);
  EXPECT_TRUE(lowered.broker->RetryUnconfirmed());
  const Broker::Answer granted = AskAgain(*lowered.broker, *waiting.wait);
  EXPECT_TRUE(granted.status.ok()) << granted.status;
  EXPECT_EQ(granted.chunks.size(), 1u);
  EXPECT_EQ(lowered.broker->Cards().front().view.held, 42_MiB);
}

// The thread that serves a session must not wait in the broker, where it hears nothing of its client.
TEST(BrokerRepairsTest, ARequestThatHasToWaitForItsChunksLeavesItsThreadFree) {
  LoweredDevice lowered;
  lowered.broker->ReturnAll(SessionId{1});
  lowered.backend.FailCreateAfter(0);
  lowered.Lower();
  const LogicalId growing = AddDevice(*lowered.broker, 2, 64_MiB, false);
  lowered.broker->AddSession(SessionId{4}, {.pid = 1});
  lowered.broker->AttachSession(SessionId{4}, LeaseKey{2});
  ASSERT_TRUE(lowered.broker
                  ->Grow({.session = SessionId{4},
                          .device = growing,
                          .at_least = 2_MiB,
                          .wanted = 2_MiB,
                          .asked_at = Clock::now(),
                          .deadline = Clock::now()})
                  .status.ok());
  lowered.broker->StartDraining(SessionId{4});  // memory that is on its way back somewhere
  lowered.backend.FailCreateAfter(0);
  Broker::Answer answer = lowered.Grow(3, 2_MiB, std::chrono::hours(1));
  EXPECT_TRUE(answer.wait.has_value()) << answer.status;
  while (answer.wait) answer = AskAgain(*lowered.broker, *answer.wait);
  EXPECT_TRUE(answer.status.ok()) << answer.status;
  EXPECT_TRUE(lowered.broker->CheckInvariants().ok()) << lowered.broker->CheckInvariants();
}

TEST(BrokerRepairsTest, SpareChunksBeyondALimitThatWasLoweredWhileOthersWereMadeAreFreed) {
  CountingBackend backend({256_MiB}, 2_MiB);
  const std::unique_ptr<Broker> broker = MakeBroker(backend);
  const LogicalId device{7};
  ASSERT_TRUE(RestorePreallocated(*broker, device, 128_MiB).ok());
  const auto grow = [&](std::uint64_t session) {
    broker->AddSession(SessionId{session}, {.pid = 1});
    broker->AttachSession(SessionId{session}, LeaseKey{1});
    return broker->Grow({.session = SessionId{session},
                         .device = device,
                         .at_least = 64_MiB,
                         .wanted = 64_MiB,
                         .asked_at = Clock::now(),
                         .deadline = Clock::now()});
  };
  const Broker::Answer other = grow(1);
  ASSERT_TRUE(other.status.ok()) << other.status;
  ASSERT_EQ(other.chunks.front().bytes, 32_MiB);
  backend.BeforeNextCreate([&] {
    EXPECT_TRUE(broker->Return(SessionId{1}, device, std::vector{other.chunks.front().id}).ok());
    EXPECT_TRUE(broker->ResizeDevice(device, 96_MiB, Bytes()).ok());
  });
  const Broker::Answer mine = grow(2);
  EXPECT_TRUE(mine.status.ok()) << mine.status;
  EXPECT_EQ(broker->Held(SessionId{2}), 64_MiB);
  EXPECT_EQ(broker->Find(device)->held, 96_MiB);
  EXPECT_EQ(backend.InUse(0), 96_MiB);
  EXPECT_TRUE(broker->CheckInvariants().ok()) << broker->CheckInvariants();
}

// 256 MiB in chunks of 32 MiB and 16 small ones. 96 MiB drain, 96 MiB with all small chunks are held, and two
// large chunks are spare: a limit of 208 MiB leaves room for 16 MiB.
TEST(BrokerRepairsTest, SpareChunksThatAreTooLargeForALoweredLimitAreMadeAnewInSmallOnes) {
  CountingBackend backend({256_MiB}, 2_MiB);
  const std::unique_ptr<Broker> broker = MakeBroker(backend);
  const LogicalId device = AddDevice(*broker, 1, 256_MiB, true);
  const auto grow = [&](std::uint64_t session, Bytes bytes, std::chrono::milliseconds timeout = {}) {
    return broker->Grow({.session = SessionId{session},
                         .device = device,
                         .at_least = bytes,
                         .wanted = bytes,
                         .asked_at = Clock::now(),
                         .deadline = Clock::now() + timeout});
  };
  for (std::uint64_t i = 1; i <= 3; ++i) {
    broker->AddSession(SessionId{i}, {.pid = 1});
    broker->AttachSession(SessionId{i}, LeaseKey{1});
  }
  ASSERT_EQ(grow(1, 96_MiB).chunks.size(), 3u);
  ASSERT_EQ(grow(2, 64_MiB).chunks.size(), 2u);
  for (int i = 0; i < 16; ++i) ASSERT_EQ(grow(2, 2_MiB).chunks.front().bytes, 2_MiB);
  broker->StartDraining(SessionId{1});
  ASSERT_TRUE(broker->ResizeDevice(device, 208_MiB, Bytes()).ok());
  const Broker::Answer mine = grow(3, 2_MiB);
  EXPECT_TRUE(mine.status.ok()) << mine.status;
  EXPECT_EQ(broker->Held(SessionId{3}), 2_MiB);
  EXPECT_TRUE(grow(3, 14_MiB).status.ok());
  EXPECT_EQ(broker->Find(device)->held, 208_MiB);
  EXPECT_TRUE(absl::IsResourceExhausted(grow(3, 2_MiB).status));
  EXPECT_EQ(broker->FinishDraining({SessionId{1}}).size(), 1u);
  EXPECT_EQ(broker->Find(device)->held, 208_MiB);
  EXPECT_TRUE(broker->CheckInvariants().ok()) << broker->CheckInvariants();
}

}  // namespace
}  // namespace lgpu
