// What random sequences and lgpu_chaos found once, as small cases.
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
#include "tests/support/broker_testing.h"
#include "tests/support/counting_backend.h"
#include "tests/support/failing_backend.h"

namespace lgpu {
namespace {

using testing::CountingBackend;
using Clock = std::chrono::steady_clock;

LogicalId AddDevice(Broker& broker, std::uint64_t lease, Bytes limit, bool preallocate) {
  return *broker.AddDevice({.card = broker.Cards().front().id,
                            .limit = limit,
                            .preallocate = preallocate,
                            .lease = LeaseKey{lease},
                            .lease_name = "lease",
                            .owner = "owner"},
                           Clock::now());
}

// As a daemon has it that was started again: its limit is guaranteed, and no chunk is there yet.
absl::Status RestorePreallocated(Broker& broker, LogicalId device, Bytes limit) {
  return broker.restore().AddDevice(device, {.card = broker.Cards().front().id,
                                             .limit = limit,
                                             .preallocate = true,
                                             .lease = LeaseKey{1},
                                             .lease_name = "lease",
                                             .owner = "owner"});
}

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
    const Broker::RestoredChunk chunk{
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
  const Broker::GrowAnswer first = grow(1, 4_MiB, Clock::now());
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
    std::optional<Broker::GrowAnswer> answer;
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
    const Broker::GrowAnswer then = broker->Continue(*answer->wait);
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
  EXPECT_FALSE(broker->ResizeDevice(device, 9_MiB, Bytes(), Clock::now()).ok());
  EXPECT_EQ(broker->Find(device)->limit, 5_MiB);
  EXPECT_EQ(broker->Find(device)->guarantee, 6_MiB);
}

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
  void Lower() { EXPECT_TRUE(broker->ResizeDevice(device, 42_MiB, Bytes(), Clock::now()).ok()); }

  Broker::GrowAnswer Grow(std::uint64_t session, Bytes bytes, std::chrono::milliseconds timeout = {}) {
    return broker->Grow({.session = SessionId{session},
                         .device = device,
                         .at_least = bytes,
                         .wanted = bytes,
                         .asked_at = Clock::now(),
                         .deadline = Clock::now() + timeout});
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
  const Broker::GrowAnswer granted = lowered.Grow(3, 10_MiB);
  EXPECT_TRUE(granted.status.ok()) << granted.status;
  EXPECT_EQ(granted.chunks.size(), 5u);
  EXPECT_EQ(lowered.broker->Cards().front().view.held, 42_MiB);
}

TEST(BrokerRepairsTest, ARequestThatWaitsForAChunkThatIsBeingCutIsServed) {
  for (const bool while_freed : {true, false}) {
    SCOPED_TRACE(while_freed);
    LoweredDevice lowered;
    lowered.broker->ReturnAll(SessionId{1});
    Broker::GrowAnswer other;
    const auto ask = [&] { other = lowered.Grow(3, 4_MiB, std::chrono::hours(1)); };
    while_freed ? lowered.backend.BeforeNextReclaim(ask) : lowered.backend.BeforeNextCreate(ask);
    lowered.Lower();
    ASSERT_TRUE(other.wait.has_value()) << other.status;
    const Broker::GrowAnswer granted = lowered.broker->Continue(*other.wait);
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
    Broker::GrowAnswer other;
    lowered.backend.BeforeNextCreate([&] { other = lowered.Grow(3, 4_MiB, patience); });
    const Broker::GrowAnswer mine = lowered.Grow(1, 8_MiB);
    EXPECT_TRUE(mine.status.ok()) << mine.status;
    // The chunks are made for the other request: a timeout of 0 does not wait for them.
    EXPECT_EQ(other.wait.has_value(), patience.count() > 0) << other.status;
    if (other.wait) other = lowered.broker->Continue(*other.wait);
    EXPECT_TRUE(absl::IsResourceExhausted(other.status)) << other.status;
    EXPECT_TRUE(lowered.broker->CheckInvariants().ok()) << lowered.broker->CheckInvariants();
  }
}

TEST(BrokerRepairsTest, AFailedResizeLeavesNothingBeyondTheLimit) {
  for (const auto patience : {std::chrono::milliseconds(0), std::chrono::milliseconds(3'600'000)}) {
    SCOPED_TRACE(patience.count());
    LoweredDevice raised;
    Broker::GrowAnswer other;
    raised.backend.BeforeNextCreate([&] { other = raised.Grow(3, 60_MiB, patience); });
    raised.backend.FailCreateAfter(0);
    EXPECT_FALSE(raised.broker->ResizeDevice(raised.device, 128_MiB, Bytes(), Clock::now()).ok());
    ASSERT_TRUE(other.wait.has_value()) << other.status;
    other = raised.broker->Continue(*other.wait);
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
    backend.BeforeNextCreate(
        [&] { EXPECT_TRUE(broker->ResizeDevice(device, 32_MiB, Bytes(), Clock::now()).ok()); });
    if (!can_be_made) backend.FailCreateAfter(0);
    EXPECT_EQ(broker->ResizeDevice(device, 42_MiB, Bytes(), Clock::now()).ok(), can_be_made);
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
  const Broker::GrowAnswer waiting = lowered.Grow(3, 2_MiB, std::chrono::hours(1));
  ASSERT_TRUE(waiting.wait.has_value()) << waiting.status;
  ASSERT_EQ(lowered.broker->FinishDraining({SessionId{1}}).size(), 1u);
  lowered.broker->ReturnAll(SessionId{3});
  EXPECT_TRUE(lowered.broker->RetryUnconfirmed());
  const Broker::GrowAnswer granted = lowered.Grow(2, 10_MiB);
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
  const Broker::GrowAnswer waiting = lowered.Grow(3, 2_MiB, std::chrono::hours(1));
  ASSERT_TRUE(waiting.wait.has_value()) << waiting.status;
  lowered.backend.SetReclaiming(0, CountingBackend::Reclaiming::kAtOnce);
  EXPECT_TRUE(lowered.broker->RetryUnconfirmed());
  const Broker::GrowAnswer granted = lowered.broker->Continue(*waiting.wait);
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
  Broker::GrowAnswer answer = lowered.Grow(3, 2_MiB, std::chrono::hours(1));
  EXPECT_TRUE(answer.wait.has_value()) << answer.status;
  while (answer.wait) answer = lowered.broker->Continue(*answer.wait);
  EXPECT_TRUE(answer.status.ok()) << answer.status;
  EXPECT_TRUE(lowered.broker->CheckInvariants().ok()) << lowered.broker->CheckInvariants();
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
    const Broker::GrowAnswer charged = broker->ChargeCard({.session = SessionId{3},
                                                           .card_uuid = uuid,
                                                           .bytes = 20_MiB,
                                                           .what = "test",
                                                           .asked_at = Clock::now(),
                                                           .deadline = Clock::now()});
    EXPECT_TRUE(charged.status.ok()) << charged.status;
  }
  // From here on 44 MiB are spare, and chunks of 20 MiB are lacking.
  void Uncharge() { EXPECT_TRUE(broker->Uncharge(SessionId{3}, uuid, 20_MiB).ok()); }
  Broker::GrowAnswer Grow(std::uint64_t session, Bytes bytes, std::chrono::milliseconds timeout = {}) {
    return broker->Grow({.session = SessionId{session},
                         .device = device,
                         .at_least = bytes,
                         .wanted = bytes,
                         .asked_at = Clock::now(),
                         .deadline = Clock::now() + timeout});
  }

  CountingBackend backend{{256_MiB}, 2_MiB};
  const std::string uuid = backend.devices().front().uuid;
  std::unique_ptr<Broker> broker;
  LogicalId device;
};

// A hostile client guesses the ids.
TEST(BrokerRepairsTest, ASessionCannotReturnChunksThatItsWaitingRequestWasGiven) {
  for (const Bytes asked : {44_MiB, 60_MiB}) {
    SCOPED_TRACE(asked.count());
    ChargedDevice charged;
    const Broker::GrowAnswer other = charged.Grow(2, 2_MiB);
    ASSERT_TRUE(other.status.ok()) << other.status;
    charged.broker->StartDraining(SessionId{3});
    const Broker::GrowAnswer waiting = charged.Grow(1, asked, std::chrono::hours(1));
    ASSERT_TRUE(waiting.wait.has_value()) << waiting.status;
    ASSERT_TRUE(
        charged.broker->Return(SessionId{2}, charged.device, std::vector{other.chunks.front().id}).ok());
    charged.broker->LowerCharges(SessionId{3}, {});
    for (std::uint64_t id = 1; id <= 100; ++id) {
      EXPECT_FALSE(charged.broker->Return(SessionId{1}, charged.device, std::vector{ChunkId{id}}).ok()) << id;
    }
    charged.backend.FailCreateAfter(0);
    const Broker::GrowAnswer answer = charged.broker->Continue(*waiting.wait);
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
    Broker::GrowAnswer small;
    charged.backend.BeforeNextCreate([&] {
      if (!can_be_made) charged.backend.FailCreateAfter(0);
      small = charged.Grow(2, 2_MiB);
    });
    const Broker::GrowAnswer large = charged.Grow(1, 60_MiB);
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
  const Broker::GrowAnswer other = charged.Grow(2, 32_MiB);
  ASSERT_EQ(other.chunks.size(), 1u);
  charged.Uncharge();
  charged.backend.BeforeNextCreate([&] {
    EXPECT_TRUE(
        charged.broker->Return(SessionId{2}, charged.device, std::vector{other.chunks.front().id}).ok());
    charged.backend.FailCreateAfter(0);
  });
  const Broker::GrowAnswer mine = charged.Grow(1, 32_MiB);
  EXPECT_TRUE(mine.status.ok()) << mine.status;
  EXPECT_EQ(charged.broker->Held(SessionId{1}), 32_MiB);
  EXPECT_TRUE(charged.broker->CheckInvariants().ok()) << charged.broker->CheckInvariants();
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
  const Broker::GrowAnswer other = grow(1);
  ASSERT_TRUE(other.status.ok()) << other.status;
  ASSERT_EQ(other.chunks.front().bytes, 32_MiB);
  backend.BeforeNextCreate([&] {
    EXPECT_TRUE(broker->Return(SessionId{1}, device, std::vector{other.chunks.front().id}).ok());
    EXPECT_TRUE(broker->ResizeDevice(device, 96_MiB, Bytes(), Clock::now()).ok());
  });
  const Broker::GrowAnswer mine = grow(2);
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
  ASSERT_TRUE(broker->ResizeDevice(device, 208_MiB, Bytes(), Clock::now()).ok());
  const Broker::GrowAnswer mine = grow(3, 2_MiB);
  EXPECT_TRUE(mine.status.ok()) << mine.status;
  EXPECT_EQ(broker->Held(SessionId{3}), 2_MiB);
  EXPECT_TRUE(grow(3, 14_MiB).status.ok());
  EXPECT_EQ(broker->Find(device)->held, 208_MiB);
  EXPECT_TRUE(absl::IsResourceExhausted(grow(3, 2_MiB).status));
  EXPECT_EQ(broker->FinishDraining({SessionId{1}}).size(), 1u);
  EXPECT_EQ(broker->Find(device)->held, 208_MiB);
  EXPECT_TRUE(broker->CheckInvariants().ok()) << broker->CheckInvariants();
}

TEST(BrokerRepairsTest, ChunksMadeForARequestOfAPreallocatedDeviceAreSmallEnoughForBallast) {
  CountingBackend backend({4_GiB}, 2_MiB);
  backend.BecomeReal();
  const std::unique_ptr<Broker> broker = MakeBroker(backend);
  const LogicalId device{7};
  ASSERT_TRUE(RestorePreallocated(*broker, device, 2_GiB).ok());
  broker->AddSession(SessionId{1}, {.pid = 1});
  broker->AttachSession(SessionId{1}, LeaseKey{1});
  const Broker::GrowAnswer mine = broker->Grow({.session = SessionId{1},
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
