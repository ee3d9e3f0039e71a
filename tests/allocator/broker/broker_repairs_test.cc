// What random sequences and lgpu_chaos found once, as small cases.
#include "tests/allocator/broker/broker_repairs.h"

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "allocator/broker/broker.h"
#include "allocator/broker/session_restore.h"
#include "allocator/device/simulated/simulated_backend.h"
#include "lgpu/refusal.h"
#include "tests/support/broker_testing.h"
#include "tests/support/counting_backend.h"
#include "tests/support/failing_backend.h"

namespace lgpu {
namespace {

using testing::CountingBackend;
using Clock = std::chrono::steady_clock;

// A look for what an earlier daemon granted is one at every process of the machine.
TEST(BrokerRepairsTest, MemoryOfManyDeadSessionsIsLookedForOnce) {
  CountingBackend backend({64_MiB}, 2_MiB);
  const std::unique_ptr<Broker> broker = MakeBroker(backend);
  const LogicalId device{1};
  ASSERT_TRUE(broker->restore()
                  .AddDevice(device, {.card = broker->Cards().front().id,
                                      .limit = 64_MiB,
                                      .preallocate = false,
                                      .lease = LeaseKey{1},
                                      .lease_name = "lease",
                                      .owner = "owner"})
                  .ok());
  std::vector<SessionId> sessions;
  for (std::uint64_t i = 1; i <= 8; ++i) {
    sessions.push_back(SessionId{i});
    const SessionRestore::RestoredChunk chunk{
        .id = ChunkId{i}, .device = device, .bytes = 2_MiB, .identity = 1000 + i};
    ASSERT_TRUE(broker->restore().AddSession(sessions.back(), 1, nullptr, LeaseKey{1}, {&chunk, 1}).ok());
    broker->StartDraining(sessions.back());
  }
  EXPECT_EQ(broker->Cards().front().view.held, 16_MiB);
  EXPECT_EQ(broker->FinishDraining(sessions), sessions);
  EXPECT_EQ(backend.looks_for_lost(), 1);
  EXPECT_EQ(broker->Cards().front().view.held, Bytes());
  EXPECT_TRUE(broker->CheckInvariants().ok());
}

TEST(BrokerRepairsTest, AGrantThatWasNotFetchedYetHidesNoPinnedMemory) {
  CountingBackend backend({8_MiB}, 2_MiB);
  const std::unique_ptr<Broker> broker = MakeBroker(backend);
  std::vector<LogicalId> devices;
  for (std::uint64_t i = 1; i <= 2; ++i) {
    broker->AddSession(SessionId{i}, {.pid = 1});
    broker->AttachSession(SessionId{i}, LeaseKey{i});
    devices.push_back(AddDevice(*broker, i, 8_MiB, false));
  }
  const auto grow = [&](std::uint64_t session, Bytes bytes, Clock::time_point deadline) {
    return broker->Grow({.session = SessionId{session},
                         .device = devices[session - 1],
                         .at_least = bytes,
                         .wanted = bytes,
                         .asked_at = Clock::now(),
                         .deadline = deadline});
  };
  const Broker::Answer first = grow(1, 4_MiB, Clock::now());
  ASSERT_TRUE(first.status.ok() && grow(1, 4_MiB, Clock::now()).status.ok());
  ASSERT_TRUE(grow(2, 2_MiB, Clock::now() + std::chrono::hours(1)).wait.has_value());
  backend.SetReclaiming(0, CountingBackend::Reclaiming::kPinned);
  ASSERT_TRUE(broker->Return(SessionId{1}, devices[0], std::vector<ChunkId>{first.chunks[0].id}).ok());
  backend.SetReclaiming(0,
                        CountingBackend::Reclaiming::kAtOnce);  // the first is back, and given to the waiter
  backend.SetReclaiming(0, CountingBackend::Reclaiming::kPinned);
  ASSERT_TRUE(broker->Return(SessionId{1}, devices[0], std::vector<ChunkId>{first.chunks[1].id}).ok());
  EXPECT_FALSE(broker->RetryUnconfirmed());
  EXPECT_EQ(broker->Find(devices[0])->leaving, 2_MiB);
}

TEST(BrokerRepairsTest, ADeviceThatIsRemovedWhileItsChunksAreMadeAgainLeavesNothingBehind) {
  std::unique_ptr<Broker> broker;
  bool removed = false;
  const LogicalId device{7};
  SimulatedBackendOptions simulated;
  simulated.devices = {SimulatedDevice(0, 64_MiB, "broker_repairs_test")};
  FailingBackend backend(MakeSimulatedBackend(std::move(simulated)), {.before_create = [&] {
                           if (!std::exchange(removed, true)) broker->RemoveDevice(device);
                         }});
  broker = MakeBroker(backend);
  ASSERT_TRUE(RestorePreallocated(*broker, device, 8_MiB).ok());
  EXPECT_FALSE(broker->MakeMissing(device).ok());
  EXPECT_TRUE(removed);
  EXPECT_FALSE(broker->Find(device).has_value());
  EXPECT_EQ(broker->Cards().front().view.held, Bytes());
  EXPECT_EQ(broker->Cards().front().view.promised, Bytes());
  EXPECT_TRUE(broker->CheckInvariants().ok());
}

// As a daemon has it that was started again, with a session that came back and waits for nothing: it asks
// just when the chunks are being made that it was promised.
TEST(BrokerRepairsTest, ARequestWithTimeoutZeroGetsChunksThatAreBeingMade) {
  for (const bool can_be_made : {true, false}) {
    SCOPED_TRACE(can_be_made ? "it can be made" : "it cannot be made");
    const LogicalId device{7};
    std::optional<Broker::Answer> answer;
    std::function<void()> ask;
    SimulatedBackendOptions simulated;
    simulated.devices = {SimulatedDevice(0, 64_MiB, "broker_repairs_test")};
    FailingBackend backend(
        MakeSimulatedBackend(std::move(simulated)),
        {.code = absl::StatusCode::kResourceExhausted, .before_create = [&ask] { ask(); }});
    const std::unique_ptr<Broker> broker = MakeBroker(backend);
    ask = [&] {
      if (answer) return;
      EXPECT_EQ(broker->Find(device)->held, 64_MiB);
      EXPECT_EQ(broker->Find(device)->missing, 64_MiB);
      answer = broker->Grow({.session = SessionId{1},
                             .device = device,
                             .at_least = 48_MiB,
                             .wanted = 48_MiB,
                             .asked_at = Clock::now(),
                             .deadline = Clock::now()});
      if (!can_be_made) backend.faults().FailFrom(1);
    };
    ASSERT_TRUE(RestorePreallocated(*broker, device, 64_MiB).ok());
    broker->AddSession(SessionId{1}, {.pid = 1});
    broker->AttachSession(SessionId{1}, LeaseKey{1});
    EXPECT_EQ(broker->MakeMissing(device).ok(), can_be_made);
    ASSERT_TRUE(answer && answer->wait) << answer->status;
    const Broker::Answer then = AskAgain(*broker, *answer->wait);
    EXPECT_FALSE(then.wait);
    EXPECT_EQ(broker->Find(device)->missing, can_be_made ? Bytes() : 64_MiB);
    if (can_be_made) {
      EXPECT_TRUE(then.status.ok()) << then.status;
    } else {
      ASSERT_TRUE(GetRefusal(then.status));
      EXPECT_EQ(GetRefusal(then.status)->reason, RefusalReason::kBackend);
      EXPECT_EQ(GetRefusal(then.status)->asked, 48_MiB);
    }
    broker->ReturnAll(SessionId{1});
    EXPECT_TRUE(broker->CheckInvariants().ok());
  }
}

TEST(BrokerRepairsTest, AFailedResizeGoesBackToALimitOfNoWholeGranule) {
  CountingBackend backend({64_MiB}, 2_MiB);
  const std::unique_ptr<Broker> broker = MakeBroker(backend);
  const LogicalId device = AddDevice(*broker, 1, 5_MiB, true);
  backend.FailCreateAfter(0);
  EXPECT_FALSE(broker->ResizeDevice(device, 9_MiB, Bytes()).ok());
  EXPECT_EQ(broker->Find(device)->limit, 5_MiB);
  EXPECT_EQ(broker->Find(device)->guarantee, 6_MiB);
}

// A preallocated device of 64 MiB that lost small chunks of 20 MiB in all to a charge of the third session.
class ChargedDevice {
 public:
  ChargedDevice() : broker(MakeBroker(backend)) {
    device = AddDevice(*broker, 1, 64_MiB, true);
    for (std::uint64_t i = 1; i <= 3; ++i) {
      broker->AddSession(SessionId{i}, {.pid = 1});
      broker->AttachSession(SessionId{i}, LeaseKey{1});
    }
    const Broker::Answer charged = broker->ChargeCard({.session = SessionId{3},
                                                       .card_uuid = uuid,
                                                       .bytes = 20_MiB,
                                                       .what = "test",
                                                       .asked_at = Clock::now(),
                                                       .deadline = Clock::now()});
    EXPECT_TRUE(charged.status.ok()) << charged.status;
  }
  // From here on 44 MiB are spare, and chunks of 20 MiB are lacking.
  void Uncharge() { EXPECT_TRUE(broker->Uncharge(SessionId{3}, uuid, 20_MiB).ok()); }
  Broker::Answer Grow(std::uint64_t session, Bytes bytes, std::chrono::milliseconds timeout = {}) {
    return GrowOf(*broker, session, device, bytes, timeout);
  }

  CountingBackend backend{{256_MiB}, 2_MiB};
  const std::string uuid = backend.devices().front().uuid;
  std::unique_ptr<Broker> broker;
  LogicalId device;
};

TEST(BrokerRepairsTest, ALimitIsLoweredWhileAChargeOfTheDeviceIsLeaving) {
  ChargedDevice charged;
  charged.broker->StartDraining(SessionId{3});
  EXPECT_TRUE(charged.broker->ResizeDevice(charged.device, 60_MiB, Bytes()).ok());
  EXPECT_EQ(charged.broker->Find(charged.device)->limit, 60_MiB);
  charged.broker->LowerCharges(SessionId{3}, {});
  EXPECT_EQ(charged.Grow(1, 60_MiB).status, absl::OkStatus()) << "what it lacks is made for a request";
  EXPECT_TRUE(charged.broker->CheckInvariants().ok()) << charged.broker->CheckInvariants();
}

// A hostile client guesses the ids.
TEST(BrokerRepairsTest, ASessionCannotReturnChunksThatItsWaitingRequestWasGiven) {
  for (const Bytes asked : {44_MiB, 60_MiB}) {
    SCOPED_TRACE(asked.count());
    ChargedDevice charged;
    const Broker::Answer other = charged.Grow(2, 2_MiB);
    ASSERT_TRUE(other.status.ok()) << other.status;
    charged.broker->StartDraining(SessionId{3});
    const Broker::Answer waiting = charged.Grow(1, asked, std::chrono::hours(1));
    ASSERT_TRUE(waiting.wait.has_value()) << waiting.status;
    ASSERT_TRUE(
        charged.broker->Return(SessionId{2}, charged.device, std::vector{other.chunks.front().id}).ok());
    charged.broker->LowerCharges(SessionId{3}, {});
    for (std::uint64_t id = 1; id <= 100; ++id) {
      EXPECT_FALSE(charged.broker->Return(SessionId{1}, charged.device, std::vector{ChunkId{id}}).ok()) << id;
    }
    charged.backend.FailCreateAfter(0);
    const Broker::Answer answer = AskAgain(*charged.broker, *waiting.wait);
    EXPECT_EQ(answer.status.ok(), asked == 44_MiB) << answer.status;
    EXPECT_TRUE(charged.broker->CheckInvariants().ok()) << charged.broker->CheckInvariants();
    for (const Chunk& chunk : answer.chunks) {
      EXPECT_TRUE(charged.broker->Return(SessionId{1}, charged.device, std::vector{chunk.id}).ok());
    }
  }
}

TEST(BrokerRepairsTest, SpareChunksServeSmallRequestsWhileChunksAreMadeForALargeOne) {
  for (const bool can_be_made : {true, false}) {
    SCOPED_TRACE(can_be_made);
    ChargedDevice charged;
    charged.Uncharge();
    Broker::Answer small;
    charged.backend.BeforeNextCreate([&] {
      if (!can_be_made) charged.backend.FailCreateAfter(0);
      small = charged.Grow(2, 2_MiB);
    });
    const Broker::Answer large = charged.Grow(1, 60_MiB);
    EXPECT_TRUE(small.status.ok()) << small.status;
    EXPECT_EQ(small.chunks.size(), 1u);
    EXPECT_EQ(large.status.ok(), can_be_made) << large.status;
    EXPECT_EQ(charged.broker->Held(SessionId{1}), can_be_made ? 60_MiB : Bytes());
    EXPECT_EQ(charged.broker->Find(charged.device)->held, can_be_made ? 62_MiB : 44_MiB);
    EXPECT_TRUE(charged.broker->CheckInvariants().ok()) << charged.broker->CheckInvariants();
  }
}

TEST(BrokerRepairsTest, ARequestWhoseChunksCannotBeMadeIsServedFromThoseThatCameBack) {
  ChargedDevice charged;
  const Broker::Answer other = charged.Grow(2, 32_MiB);
  ASSERT_EQ(other.chunks.size(), 1u);
  charged.Uncharge();
  charged.backend.BeforeNextCreate([&] {
    EXPECT_TRUE(
        charged.broker->Return(SessionId{2}, charged.device, std::vector{other.chunks.front().id}).ok());
    charged.backend.FailCreateAfter(0);
  });
  const Broker::Answer mine = charged.Grow(1, 32_MiB);
  EXPECT_TRUE(mine.status.ok()) << mine.status;
  EXPECT_EQ(charged.broker->Held(SessionId{1}), 32_MiB);
  EXPECT_TRUE(charged.broker->CheckInvariants().ok()) << charged.broker->CheckInvariants();
}

TEST(BrokerRepairsTest, ChunksMadeForARequestOfAPreallocatedDeviceAreSmallEnoughForBallast) {
  CountingBackend backend({4_GiB}, 2_MiB);
  backend.BecomeReal();
  const std::unique_ptr<Broker> broker = MakeBroker(backend);
  const LogicalId device{7};
  ASSERT_TRUE(RestorePreallocated(*broker, device, 2_GiB).ok());
  broker->AddSession(SessionId{1}, {.pid = 1});
  broker->AttachSession(SessionId{1}, LeaseKey{1});
  const Broker::Answer mine = broker->Grow({.session = SessionId{1},
                                            .device = device,
                                            .at_least = 1_GiB,
                                            .wanted = 1_GiB,
                                            .asked_at = Clock::now(),
                                            .deadline = Clock::now()});
  ASSERT_TRUE(mine.status.ok()) << mine.status;
  EXPECT_EQ(broker->Held(SessionId{1}), 1_GiB);
  for (const Chunk& chunk : mine.chunks) EXPECT_LE(chunk.bytes, 32_MiB);
}

TEST(BrokerRepairsTest, DescriptorsRunOutOnlyWhereTheBackendSaysSo) {
  CountingBackend backend({64_MiB}, 2_MiB);
  const std::unique_ptr<Broker> broker = MakeBroker(backend);
  const LogicalId device = AddDevice(*broker, 1, 64_MiB, false);
  const auto reason_of = [&](const absl::Status& status) {
    return GetRefusal(broker->ExplainExport(device, 2_MiB, status))->reason;
  };
  EXPECT_EQ(reason_of(RefusalStatus({.reason = RefusalReason::kDescriptors})), RefusalReason::kDescriptors);
  EXPECT_EQ(reason_of(RefusalStatus({.reason = RefusalReason::kMapCount})), RefusalReason::kBackend);
  EXPECT_EQ(reason_of(absl::ResourceExhaustedError("a descriptor of device memory, open files")),
            RefusalReason::kBackend);
  const absl::Status other = absl::InternalError("no descriptor");
  EXPECT_EQ(broker->ExplainExport(device, 2_MiB, other), other);
}

}  // namespace
}  // namespace lgpu
