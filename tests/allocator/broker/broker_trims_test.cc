// Memory that lies idle in one session is asked back for those who are short of it.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "allocator/broker/broker.h"
#include "allocator/broker/session_trims.h"
#include "allocator/device/simulated/simulated_backend.h"
#include "lgpu/refusal.h"
#include "tests/support/broker_testing.h"

namespace lgpu {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using Clock = std::chrono::steady_clock;
constexpr Bytes kMiB(std::uint64_t{1} << 20);

class BrokerTrimsTest : public ::testing::Test {
 protected:
  BrokerTrimsTest() {
    SimulatedBackendOptions simulated;
    simulated.devices = {SimulatedDevice(0, kMiB * 64, "broker_trims_test")};
    simulated.sparse = true;
    backend_ = MakeSimulatedBackend(std::move(simulated));
    Broker::Options options = AllCardsOf(*backend_);
    options.clock = [this] { return Now(); };
    broker_ = *Broker::Create(*backend_, log_, options);
  }
  Clock::time_point Now() const { return now_; }
  void PassUntil(Clock::time_point time) { now_ = std::max(now_, time); }

  SessionId Session(std::uint64_t id, LeaseKey lease, bool trims = true) {
    broker_->AddSession(SessionId{id}, {.pid = 1, .waker = nullptr, .trims = trims});
    broker_->AttachSession(SessionId{id}, lease);
    return SessionId{id};
  }
  LogicalId Device(LeaseKey lease, Bytes limit, Bytes guarantee = {}) {
    return *broker_->AddDevice(Spec(lease, limit, guarantee));
  }
  Broker::Answer Grow(SessionId session, LogicalId device, Bytes bytes, milliseconds timeout = seconds(60)) {
    const auto now = Now();
    Broker::Answer answer = broker_->Grow({.session = session,
                                           .device = device,
                                           .at_least = bytes,
                                           .wanted = bytes,
                                           .asked_at = now,
                                           .deadline = now + timeout});
    for (const Chunk& chunk : answer.chunks) held_[session].push_back(chunk.id);
    return answer;
  }
  Broker::Answer Continue(SessionId session, const Broker::Answer& before) {
    Broker::Answer answer = AskAgain(*broker_, *before.wait);
    for (const Chunk& chunk : answer.chunks) held_[session].push_back(chunk.id);
    return answer;
  }
  // The one order of a session; it gives back `bytes`, in chunks of 2 MiB, and answers.
  Bytes AnswerTrim(SessionId session, LogicalId device, Bytes bytes) {
    const std::vector<TrimOrder> orders = broker_->trims().TakeOrders(session);
    EXPECT_EQ(orders.size(), 1u);
    if (orders.size() != 1) return Bytes();
    EXPECT_EQ(orders[0].device, device);
    std::vector<ChunkId>& held = held_[session];
    const std::vector<ChunkId> back(held.end() - static_cast<std::ptrdiff_t>(bytes / (kMiB * 2)), held.end());
    held.resize(held.size() - back.size());
    if (!back.empty()) {
      EXPECT_TRUE(broker_->Return(session, device, back).ok());
    }
    EXPECT_TRUE(broker_->trims().Answer(session, orders[0].id, /*pending=*/false).ok());
    return orders[0].bytes;
  }
  static RefusalReason Reason(const absl::Status& status) {
    return GetRefusal(status).value_or(Refusal()).reason;
  }
  Broker::DeviceSpec Spec(LeaseKey lease, Bytes limit, Bytes guarantee = {}) const {
    return {.card = broker_->Cards().front().id,
            .limit = limit,
            .guarantee = guarantee,
            .preallocate = false,
            .lease = lease,
            .device_name = "/device:GPU:0",
            .lease_name = "lease",
            .owner = "kim"};
  }

  // The broker's time, which stands still: how long a test takes from one step to the next decides nothing.
  Clock::time_point now_ = Clock::now();
  NoGrantLog log_;
  std::unique_ptr<DeviceBackend> backend_;
  std::unique_ptr<Broker> broker_;
  std::map<SessionId, std::vector<ChunkId>> held_;
};

TEST_F(BrokerTrimsTest, AnotherSessionOfTheLeaseIsAskedBeforeTheLimitRefuses) {
  const LogicalId device = Device(LeaseKey{1}, kMiB * 16);
  const SessionId one = Session(1, LeaseKey{1});
  const SessionId two = Session(2, LeaseKey{1});
  ASSERT_EQ(Grow(one, device, kMiB * 16).chunks.size(), 8u);
  Broker::Answer waits = Grow(two, device, kMiB * 6);
  ASSERT_TRUE(waits.status.ok());
  ASSERT_TRUE(waits.wait.has_value());
  EXPECT_EQ(AnswerTrim(one, device, kMiB * 6), kMiB * 6);
  EXPECT_EQ(Continue(two, waits).chunks.size(), 3u);

  // Nothing is idle any more: refused at the answer, long before the deadline.
  waits = Grow(two, device, kMiB * 4);
  ASSERT_TRUE(waits.wait.has_value());
  EXPECT_EQ(AnswerTrim(one, device, Bytes()), kMiB * 4);
  EXPECT_EQ(Reason(Continue(two, waits).status), RefusalReason::kLimit);
  EXPECT_TRUE(broker_->CheckInvariants().ok());
}

TEST_F(BrokerTrimsTest, OthersOfTheCardAreAskedLargestFirstAndOnlyBeyondTheirGuarantees) {
  const LogicalId small = Device(LeaseKey{1}, kMiB * 64);
  const LogicalId large = Device(LeaseKey{2}, kMiB * 64);
  const LogicalId safe = Device(LeaseKey{3}, kMiB * 16, kMiB * 16);
  const LogicalId asking = Device(LeaseKey{4}, kMiB * 64);
  const SessionId one = Session(1, LeaseKey{1});
  const SessionId two = Session(2, LeaseKey{2});
  const SessionId three = Session(3, LeaseKey{3});
  const SessionId four = Session(4, LeaseKey{4});
  ASSERT_TRUE(Grow(one, small, kMiB * 16).status.ok());
  ASSERT_TRUE(Grow(two, large, kMiB * 32).status.ok());
  ASSERT_TRUE(Grow(three, safe, kMiB * 16).status.ok());
  const Broker::Answer waits = Grow(four, asking, kMiB * 8);
  ASSERT_TRUE(waits.wait.has_value());
  EXPECT_TRUE(broker_->trims().TakeOrders(one).empty());
  EXPECT_EQ(AnswerTrim(two, large, kMiB * 2), kMiB * 8);
  EXPECT_EQ(AnswerTrim(one, small, kMiB * 6), kMiB * 6);
  EXPECT_TRUE(broker_->trims().TakeOrders(three).empty()) << "its guarantee stays its own";
  EXPECT_EQ(Continue(four, waits).chunks.size(), 4u);
}

TEST_F(BrokerTrimsTest, TwoThatWaitForEachOtherAreNoDeadlockWhileOneMayHaveIdleMemory) {
  const LogicalId first = Device(LeaseKey{1}, kMiB * 64);
  const LogicalId second = Device(LeaseKey{2}, kMiB * 64);
  const SessionId one = Session(1, LeaseKey{1});
  const SessionId two = Session(2, LeaseKey{2});
  ASSERT_TRUE(Grow(one, first, kMiB * 32).status.ok());
  ASSERT_TRUE(Grow(two, second, kMiB * 32).status.ok());
  const Broker::Answer one_waits = Grow(one, first, kMiB * 8);
  const Broker::Answer two_waits = Grow(two, second, kMiB * 8);
  ASSERT_TRUE(one_waits.wait.has_value());
  ASSERT_TRUE(two_waits.wait.has_value());
  // Two, which waits itself, has something idle; so the first is served, and then one is asked for two.
  EXPECT_EQ(AnswerTrim(two, second, kMiB * 8), kMiB * 8);
  EXPECT_EQ(Continue(one, one_waits).chunks.size(), 4u);
  // The second turn starts when the first one and its rest are over.
  Broker::Answer rests = Continue(two, two_waits);
  ASSERT_TRUE(rests.wait.has_value());
  PassUntil(*broker_->Tick());
  EXPECT_TRUE(Continue(two, rests).wait.has_value());
  EXPECT_EQ(AnswerTrim(one, first, Bytes()), kMiB * 8);
  EXPECT_TRUE(Continue(two, two_waits).wait.has_value()) << "one does not wait, and may free some";
  // The new request may ask too, once.
  Broker::Answer again = Grow(one, first, kMiB * 8);
  ASSERT_TRUE(again.wait.has_value());
  PassUntil(*broker_->Tick());
  ASSERT_TRUE(Continue(one, again).wait.has_value());
  EXPECT_EQ(AnswerTrim(two, second, Bytes()), kMiB * 8);
  EXPECT_EQ(Reason(Continue(one, again).status), RefusalReason::kDeadlock);
}

TEST_F(BrokerTrimsTest, WhoDoesNotWantToWaitGetsWhatLiesIdleAllTheSame) {
  const LogicalId first = Device(LeaseKey{1}, kMiB * 64);
  const LogicalId second = Device(LeaseKey{2}, kMiB * 64);
  const SessionId one = Session(1, LeaseKey{1});
  const SessionId two = Session(2, LeaseKey{2});
  ASSERT_TRUE(Grow(one, first, kMiB * 64).status.ok());
  Broker::Answer waits = Grow(two, second, kMiB * 2, milliseconds(0));
  ASSERT_TRUE(waits.wait.has_value()) << waits.status;
  held_[one].clear();  // it was granted large chunks
  const std::vector<TrimOrder> orders = broker_->trims().TakeOrders(one);
  ASSERT_EQ(orders.size(), 1u);
  EXPECT_TRUE(broker_->trims().Answer(one, orders[0].id, false).ok());
  EXPECT_EQ(Reason(Continue(two, waits).status), RefusalReason::kCard) << "at the answer";
  // One that never answers is waited for only a moment.
  waits = Grow(two, second, kMiB * 2, milliseconds(0));
  ASSERT_TRUE(waits.wait.has_value());
  while (waits.wait) {
    PassUntil(*broker_->Tick());
    waits = Continue(two, waits);
  }
  EXPECT_EQ(Reason(waits.status), RefusalReason::kCard);
}

TEST_F(BrokerTrimsTest, NobodyIsAskedAheadOfNeedAndTheRefusalCountsForNothing) {
  const LogicalId first = Device(LeaseKey{1}, kMiB * 64);
  const LogicalId second = Device(LeaseKey{2}, kMiB * 64);
  const SessionId one = Session(1, LeaseKey{1});
  const SessionId two = Session(2, LeaseKey{2});
  ASSERT_TRUE(Grow(one, first, kMiB * 64).status.ok());
  const Broker::Answer answer = broker_->Grow({.session = two,
                                               .device = second,
                                               .at_least = kMiB * 2,
                                               .wanted = kMiB * 2,
                                               .asked_at = Now(),
                                               .deadline = Now(),
                                               .ahead = true});
  EXPECT_TRUE(absl::IsResourceExhausted(answer.status));
  EXPECT_TRUE(answer.ahead);
  EXPECT_FALSE(GetRefusal(answer.status).has_value());
  EXPECT_TRUE(broker_->trims().TakeOrders(one).empty());
  EXPECT_EQ(broker_->counters().refusals, 0u);
}

TEST_F(BrokerTrimsTest, GrowingAheadTakesNothingThatAnotherSessionWaitsFor) {
  const LogicalId device = Device(LeaseKey{1}, kMiB * 24);
  const SessionId one = Session(1, LeaseKey{1});
  const SessionId two = Session(2, LeaseKey{1});
  ASSERT_TRUE(Grow(two, device, kMiB * 24).status.ok());
  const Broker::Answer waits = Grow(one, device, kMiB * 24);
  ASSERT_TRUE(waits.wait.has_value());
  // Half of it came back, and the answer is still to come.
  const std::vector<ChunkId> back(held_[two].begin(), held_[two].begin() + 6);
  ASSERT_TRUE(broker_->Return(two, device, back).ok());
  const Broker::Answer ahead = broker_->Grow({.session = two,
                                              .device = device,
                                              .at_least = kMiB * 2,
                                              .wanted = kMiB * 2,
                                              .asked_at = Now(),
                                              .deadline = Now(),
                                              .ahead = true});
  EXPECT_TRUE(absl::IsResourceExhausted(ahead.status));
}

TEST_F(BrokerTrimsTest, WhoWaitsForWhatIsOnItsWayDoesNotLookAgainAtOnce) {
  const LogicalId device = Device(LeaseKey{1}, kMiB * 16);
  const SessionId one = Session(1, LeaseKey{1});
  const SessionId two = Session(2, LeaseKey{1});
  ASSERT_TRUE(Grow(one, device, kMiB * 16).status.ok());
  Broker::Answer waits = Grow(two, device, kMiB * 6);
  ASSERT_TRUE(waits.wait.has_value());
  broker_->StartDraining(one);
  PassUntil(*broker_->Tick());
  waits = Continue(two, waits);
  ASSERT_TRUE(waits.wait.has_value());
  EXPECT_GT(*broker_->Tick(), Now());
  EXPECT_EQ(broker_->FinishDraining({one}).size(), 1u);
  broker_->RemoveSession(one);
}

TEST_F(BrokerTrimsTest, SessionsThatDoNotSpeakOfTrimsAreNotAsked) {
  const LogicalId first = Device(LeaseKey{1}, kMiB * 16);
  const SessionId old = Session(1, LeaseKey{1}, /*trims=*/false);
  const SessionId two = Session(2, LeaseKey{1});
  ASSERT_TRUE(Grow(old, first, kMiB * 16).status.ok());
  EXPECT_EQ(Reason(Grow(two, first, kMiB * 2).status), RefusalReason::kLimit);
  EXPECT_TRUE(broker_->trims().TakeOrders(old).empty());
}

TEST_F(BrokerTrimsTest, TheDeathOfWhoWasAskedIsAnAnswer) {
  const LogicalId device = Device(LeaseKey{1}, kMiB * 16);
  const SessionId one = Session(1, LeaseKey{1});
  const SessionId two = Session(2, LeaseKey{1});
  ASSERT_TRUE(Grow(one, device, kMiB * 16).status.ok());
  const Broker::Answer waits = Grow(two, device, kMiB * 6);
  ASSERT_TRUE(waits.wait.has_value());
  broker_->StartDraining(one);
  EXPECT_TRUE(Continue(two, waits).wait.has_value()) << "its memory is on its way";
  ASSERT_EQ(broker_->FinishDraining({one}).size(), 1u);
  broker_->RemoveSession(one);
  EXPECT_EQ(Continue(two, waits).chunks.size(), 3u);
  EXPECT_TRUE(broker_->CheckInvariants().ok());
}

TEST_F(BrokerTrimsTest, ALoweredLimitAsksForWhatIsOverIt) {
  const LogicalId device = Device(LeaseKey{1}, kMiB * 32);
  const SessionId one = Session(1, LeaseKey{1});
  ASSERT_TRUE(Grow(one, device, kMiB * 16).status.ok());
  ASSERT_TRUE(broker_->ResizeDevice(device, kMiB * 10, Bytes()).ok());
  EXPECT_EQ(AnswerTrim(one, device, kMiB * 6), kMiB * 6);
  EXPECT_EQ(broker_->Find(device)->held, kMiB * 10);
}

TEST_F(BrokerTrimsTest, AGuaranteeIsSetAsideFromWhatLiesIdle) {
  const LogicalId device = Device(LeaseKey{1}, kMiB * 64);
  const SessionId one = Session(1, LeaseKey{1});
  ASSERT_TRUE(Grow(one, device, kMiB * 48).status.ok());
  const auto waker = std::make_shared<FlagWaker>();
  const Broker::Answer waits = broker_->AddDevice(Spec(LeaseKey{2}, kMiB * 32, kMiB * 32),
                                                  {.deadline = Now() + seconds(60), .waker = waker});
  ASSERT_TRUE(waits.wait.has_value()) << waits.status;
  EXPECT_FALSE(waker->woken());
  EXPECT_EQ(AnswerTrim(one, device, kMiB * 16), kMiB * 16);
  EXPECT_TRUE(waker->woken());
  const std::optional<Broker::Answer> added = broker_->TakeAnswer(*waits.wait);
  ASSERT_TRUE(added.has_value());
  EXPECT_TRUE(added->status.ok()) << added->status;
  EXPECT_EQ(broker_->Find(added->device)->guarantee, kMiB * 32);
}

TEST_F(BrokerTrimsTest, AGuaranteeThatIdleMemoryMakesNoRoomForIsRefusedAtTheAnswer) {
  const LogicalId device = Device(LeaseKey{1}, kMiB * 64);
  const SessionId one = Session(1, LeaseKey{1});
  ASSERT_TRUE(Grow(one, device, kMiB * 48).status.ok());
  const Broker::Answer waits =
      broker_->AddDevice(Spec(LeaseKey{2}, kMiB * 32, kMiB * 32), {.deadline = Now() + seconds(3600)});
  ASSERT_TRUE(waits.wait.has_value()) << waits.status;
  AnswerTrim(one, device, Bytes());
  const std::optional<Broker::Answer> refused = broker_->TakeAnswer(*waits.wait);
  ASSERT_TRUE(refused.has_value());
  EXPECT_EQ(Reason(refused->status), RefusalReason::kCard);
}

TEST_F(BrokerTrimsTest, APersonAsksAllSessionsOfALeaseAndIsToldWhatEachGaveBack) {
  const LogicalId device = Device(LeaseKey{1}, kMiB * 32);
  const LogicalId other = Device(LeaseKey{2}, kMiB * 32);
  const SessionId one = Session(1, LeaseKey{1});
  const SessionId two = Session(2, LeaseKey{1});
  const SessionId old = Session(3, LeaseKey{1}, /*trims=*/false);
  const SessionId stranger = Session(4, LeaseKey{2});
  ASSERT_TRUE(Grow(one, device, kMiB * 8).status.ok());
  ASSERT_TRUE(Grow(two, device, kMiB * 16).status.ok());
  ASSERT_TRUE(Grow(old, device, kMiB * 2).status.ok());
  ASSERT_TRUE(Grow(stranger, other, kMiB * 8).status.ok());

  SessionTrims::Request request = broker_->trims().Start(std::vector{device});
  ASSERT_EQ(request.sessions.size(), 2u);
  EXPECT_EQ(request.unasked, std::vector{old});
  EXPECT_TRUE(broker_->trims().TakeOrders(stranger).empty());
  broker_->trims().Continue(request);
  EXPECT_FALSE(request.is_done);
  EXPECT_EQ(AnswerTrim(two, device, kMiB * 12), kMiB * 16) << "it is asked for all that it holds";
  broker_->trims().Continue(request);
  EXPECT_FALSE(request.is_done);
  EXPECT_FALSE(request.sessions[0].parts[0].answered);
  EXPECT_TRUE(request.sessions[1].parts[0].done);
  EXPECT_EQ(request.sessions[1].returned, kMiB * 12);

  // More becomes idle: the session is asked again.
  std::vector<TrimOrder> orders = broker_->trims().TakeOrders(one);
  ASSERT_EQ(orders.size(), 1u);
  EXPECT_TRUE(broker_->trims().Answer(one, orders[0].id, /*pending=*/true).ok());
  broker_->trims().Continue(request);
  EXPECT_TRUE(request.sessions[0].parts[0].answered);
  EXPECT_FALSE(request.is_done);
  EXPECT_EQ(AnswerTrim(one, device, kMiB * 6), kMiB * 8);
  broker_->trims().Continue(request);
  EXPECT_TRUE(request.is_done);
  EXPECT_EQ(request.sessions[0].returned, kMiB * 6);
  EXPECT_EQ(broker_->Find(device)->held, kMiB * (8 + 16 + 2 - 12 - 6));
  EXPECT_EQ(broker_->counters().trims, 3u);
  EXPECT_TRUE(broker_->CheckInvariants().ok());
}

TEST_F(BrokerTrimsTest, ASessionThatEndsHasAnsweredAndAPreallocatedDeviceIsLeftOut) {
  const LogicalId device = Device(LeaseKey{1}, kMiB * 16);
  Broker::DeviceSpec spec = Spec(LeaseKey{1}, kMiB * 8);
  spec.preallocate = true;
  const LogicalId fixed = *broker_->AddDevice(spec);
  const SessionId one = Session(1, LeaseKey{1});
  ASSERT_TRUE(Grow(one, device, kMiB * 8).status.ok());
  ASSERT_TRUE(Grow(one, fixed, kMiB * 8).status.ok());
  SessionTrims::Request request = broker_->trims().Start(std::vector{device, fixed});
  ASSERT_EQ(request.sessions.size(), 1u);
  EXPECT_EQ(request.sessions[0].parts.size(), 1u);
  broker_->ReturnAll(one);
  broker_->RemoveSession(one);
  broker_->trims().Continue(request);
  EXPECT_TRUE(request.is_done);
}

}  // namespace
}  // namespace lgpu
