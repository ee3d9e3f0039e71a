// What the Broker promises, case by case, over one rig; hence past the usual length.

#include "allocator/broker/broker.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <cstdio>
#include <map>
#include <memory>
#include <vector>

#include "allocator/broker/card_observer.h"
#include "allocator/device/simulated/simulated_backend.h"
#include "lgpu/refusal.h"
#include "tests/allocator/broker/recording_log.h"
#include "tests/support/broker_testing.h"
#include "tests/support/counting_backend.h"
#include "tests/support/failing_backend.h"
#include "tests/support/unwrapped.h"

namespace lgpu {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Clock = std::chrono::steady_clock;
constexpr Bytes kMiB(std::uint64_t{1} << 20);
constexpr LeaseKey kLease{1};

// A broker over one simulated card, and clients that are only numbers.
class Rig {
 public:
  explicit Rig(Bytes card, FailingBackend::Options options = {}) {
    SimulatedBackendOptions simulated;
    simulated.devices = {SimulatedDevice(0, card, "broker_test")};
    simulated.sparse = true;
    backend_ = std::make_unique<FailingBackend>(MakeSimulatedBackend(std::move(simulated)), options);
    broker_ = MakeBroker(*backend_);
    card_ = broker_->Cards().front().id;
  }

  Broker& broker() { return *broker_; }
  FaultPlan& faults() { return backend_->faults(); }

  SessionId Session(std::uint64_t id, LeaseKey lease = kLease) {
    const SessionId session{id};
    broker_->AddSession(session, {.pid = static_cast<std::int64_t>(1000 + id)});
    broker_->AttachSession(session, lease);
    return session;
  }
  absl::StatusOr<LogicalId> Device(Bytes limit, LeaseKey lease = kLease, bool preallocate = false) {
    return broker_->AddDevice({.card = card_,
                               .limit = limit,
                               .guarantee = Bytes(),
                               .preallocate = preallocate,
                               .lease = lease,
                               .device_name = "/device:GPU:0",
                               .lease_name = "lease-" + std::to_string(lease.value),
                               .owner = "kim"},
                              Clock::now());
  }
  Broker::GrowAnswer Grow(SessionId session, LogicalId device, Bytes bytes,
                          std::chrono::milliseconds timeout = {}) {
    return broker_->Grow({.session = session,
                          .device = device,
                          .at_least = bytes,
                          .wanted = bytes,
                          .asked_at = Clock::now(),
                          .deadline = Clock::now() + timeout});
  }
  // Waits, as a session's thread does, until the request has its answer.
  Broker::GrowAnswer Finish(Broker::GrowAnswer answer) {
    while (answer.wait) answer = broker_->Continue(*answer.wait);
    return answer;
  }
  Broker::CardInfo Card() const { return broker_->Cards().front(); }

 private:
  std::unique_ptr<FailingBackend> backend_;
  std::unique_ptr<Broker> broker_;
  CardId card_;
};

std::vector<ChunkId> Ids(const std::vector<Chunk>& chunks) {
  std::vector<ChunkId> ids;
  for (const Chunk& chunk : chunks) ids.push_back(chunk.id);
  return ids;
}

TEST(BrokerTest, GrowsToTheLimitAndNoFurther) {
  Rig rig(kMiB * 64);
  const SessionId session = rig.Session(1);
  const LogicalId device = *rig.Device(kMiB * 5);
  const Broker::GrowAnswer granted = rig.Grow(session, device, kMiB * 6);
  ASSERT_TRUE(granted.status.ok()) << granted.status;
  EXPECT_EQ(granted.chunks.size(), 3u);
  const Broker::GrowAnswer refused = rig.Grow(session, device, kMiB * 2, std::chrono::seconds(60));
  const std::optional<Refusal> refusal = GetRefusal(refused.status);
  ASSERT_TRUE(refusal.has_value());
  EXPECT_EQ(refusal->reason, RefusalReason::kLimit);
  EXPECT_EQ(refusal->limit, kMiB * 5);
  EXPECT_EQ(refusal->held, kMiB * 6);
  EXPECT_TRUE(rig.broker().CheckInvariants().ok());
}

TEST(BrokerTest, AShortCardNamesItsHolders) {
  Rig rig(kMiB * 64);
  const SessionId first = rig.Session(1);
  const SessionId second = rig.Session(2, LeaseKey{2});
  const LogicalId a = *rig.Device(kMiB * 64);
  const LogicalId b = *rig.Device(kMiB * 64, LeaseKey{2});
  ASSERT_TRUE(rig.Grow(first, a, kMiB * 60).status.ok());
  const Broker::GrowAnswer refused = rig.Grow(second, b, kMiB * 8);
  const std::optional<Refusal> refusal = GetRefusal(refused.status);
  ASSERT_TRUE(refusal.has_value()) << refused.status;
  EXPECT_EQ(refusal->reason, RefusalReason::kCard);
  ASSERT_EQ(refusal->holders.size(), 1u);
  EXPECT_EQ(refusal->holders[0].lease, "lease-1");
  EXPECT_EQ(refusal->holders[0].pid, 1001);
  EXPECT_EQ(refusal->holders[0].held, kMiB * 60);
}

TEST(BrokerTest, AWaiterIsServedWhenAnotherOneReturns) {
  Rig rig(kMiB * 64);
  const SessionId first = rig.Session(1);
  const SessionId second = rig.Session(2, LeaseKey{2});
  const LogicalId a = *rig.Device(kMiB * 64);
  const LogicalId b = *rig.Device(kMiB * 64, LeaseKey{2});
  const Broker::GrowAnswer held = rig.Grow(first, a, kMiB * 60);
  const Broker::GrowAnswer waiting = rig.Grow(second, b, kMiB * 8, std::chrono::hours(1));
  ASSERT_TRUE(waiting.wait.has_value()) << waiting.status;
  EXPECT_TRUE(rig.broker().Continue(*waiting.wait).wait.has_value());
  ASSERT_TRUE(rig.broker().Return(first, a, Ids(held.chunks)).ok());
  const Broker::GrowAnswer granted = rig.broker().Continue(*waiting.wait);
  EXPECT_TRUE(granted.status.ok()) << granted.status;
  EXPECT_EQ(granted.chunks.size(), 4u);
}

TEST(BrokerTest, HoldersThatWaitForEachOtherAreNotLeftWaiting) {
  Rig rig(kMiB * 64);
  const SessionId first = rig.Session(1);
  const SessionId second = rig.Session(2, LeaseKey{2});
  const LogicalId a = *rig.Device(kMiB * 64);
  const LogicalId b = *rig.Device(kMiB * 64, LeaseKey{2});
  ASSERT_TRUE(rig.Grow(first, a, kMiB * 32).status.ok());
  ASSERT_TRUE(rig.Grow(second, b, kMiB * 32).status.ok());
  ASSERT_TRUE(rig.Grow(first, a, kMiB * 8, std::chrono::hours(1)).wait.has_value());
  const Broker::GrowAnswer victim = rig.Grow(second, b, kMiB * 8, std::chrono::hours(1));
  const std::optional<Refusal> refusal = GetRefusal(victim.status);
  ASSERT_TRUE(refusal.has_value()) << victim.status;
  EXPECT_EQ(refusal->reason, RefusalReason::kDeadlock);
}

// The rest of the card is used outside lgpu, and may stay so for ever.
TEST(BrokerTest, TheOnlyHolderOfACardIsRefusedAtOnceAndToldSo) {
  Rig rig(kMiB * 64);
  const SessionId session = rig.Session(1);
  const LogicalId device = *rig.Device(kMiB * 64);
  ASSERT_TRUE(rig.Grow(session, device, kMiB * 32).status.ok());
  rig.broker().observer().SetForeign(rig.Card().id, kMiB * 16);
  const Broker::GrowAnswer refused = rig.Grow(session, device, kMiB * 24, std::chrono::hours(1));
  EXPECT_EQ(GetRefusal(refused.status).value_or(Refusal()).reason, RefusalReason::kDeadlock);
  const std::string text(refused.status.message());
  EXPECT_THAT(text, HasSubstr("no other program holds memory of GPU 0 (simulated) for /device:GPU:0"));
  EXPECT_THAT(text, HasSubstr("ask for at most 16.00MiB"));
}

TEST(BrokerTest, ASessionThatDoesNotWaitMayStillReturn) {
  Rig rig(kMiB * 64);
  const SessionId first = rig.Session(1);
  const SessionId idle = rig.Session(2);  // of the same lease
  const SessionId second = rig.Session(3, LeaseKey{2});
  const LogicalId a = *rig.Device(kMiB * 64);
  const LogicalId b = *rig.Device(kMiB * 64, LeaseKey{2});
  ASSERT_TRUE(rig.Grow(first, a, kMiB * 16).status.ok());
  const Broker::GrowAnswer idle_has = rig.Grow(idle, a, kMiB * 16);
  ASSERT_TRUE(rig.Grow(second, b, kMiB * 32).status.ok());
  const Broker::GrowAnswer one = rig.Grow(first, a, kMiB * 8, std::chrono::hours(1));
  const Broker::GrowAnswer two = rig.Grow(second, b, kMiB * 8, std::chrono::hours(1));
  ASSERT_TRUE(one.wait && two.wait) << one.status << two.status;
  ASSERT_TRUE(rig.broker().Return(idle, a, Ids(idle_has.chunks)).ok());
  EXPECT_TRUE(rig.broker().Continue(*one.wait).status.ok());
  EXPECT_TRUE(rig.broker().Continue(*two.wait).status.ok());
}

// Another thread of the program may free the first device's memory, as in a `local` context, which has a
// session for each device.
TEST(BrokerTest, AProgramMayWaitWithOneDeviceForMemoryThatItsOtherDeviceHolds) {
  Rig rig(kMiB * 64);
  const SessionId session = rig.Session(1);
  const LogicalId a = *rig.Device(kMiB * 64);
  const LogicalId b = *rig.Device(kMiB * 64);
  const Broker::GrowAnswer held = rig.Grow(session, a, kMiB * 64);
  const Broker::GrowAnswer waits = rig.Grow(session, b, kMiB * 8, std::chrono::hours(1));
  ASSERT_TRUE(waits.wait.has_value()) << waits.status;
  ASSERT_TRUE(rig.broker().Return(session, a, Ids(held.chunks)).ok());
  EXPECT_TRUE(rig.broker().Continue(*waits.wait).status.ok());
}

// A broker with a clock of its own: a holder that does nothing, a hog that waits for the whole card, and a
// program.
class TurnRig {
 public:
  TurnRig() {
    Broker::Options options = AllCardsOf(backend_);
    options.max_drain = std::chrono::seconds(2);
    options.clock = [this] { return now_; };
    broker_ = *Broker::Create(backend_, log_, options);
    for (std::uint64_t i = 1; i <= 3; ++i) {
      broker_->AddSession(SessionId{i}, {.pid = static_cast<std::int64_t>(1000 + i)});
      broker_->AttachSession(SessionId{i}, LeaseKey{i});
      devices_.push_back(*broker_->AddDevice(Spec(i), now_));
    }
  }
  Broker::DeviceSpec Spec(std::uint64_t i, Bytes guarantee = {}) const {
    return {.card = broker_->Cards().front().id,
            .limit = kMiB * 64,
            .guarantee = guarantee,
            .lease = LeaseKey{i},
            .device_name = "/device:GPU:0",
            .lease_name = "lease-" + std::to_string(i),
            .owner = "user-" + std::to_string(i)};
  }
  Broker::GrowAnswer Grow(std::uint64_t i, Bytes bytes, std::chrono::milliseconds timeout) {
    return broker_->Grow({.session = SessionId{i},
                          .device = devices_[i - 1],
                          .at_least = bytes,
                          .wanted = bytes,
                          .asked_at = now_,
                          .deadline = now_ + timeout});
  }
  Broker& broker() { return *broker_; }
  LogicalId device(std::uint64_t i) const { return devices_[i - 1]; }
  Clock::time_point now() const { return now_; }
  void SetTime(Clock::time_point time) { now_ = time; }
  bool HasTurn(std::size_t place) const {
    return broker_->Cards().front().queue.at(place).turn_ends.has_value();
  }

 private:
  Clock::time_point now_{std::chrono::hours(1)};
  testing::CountingBackend backend_{{kMiB * 64}, kMiB * 2};
  NoGrantLog log_;
  std::unique_ptr<Broker> broker_;
  std::vector<LogicalId> devices_;
};

TEST(BrokerTest, ARequestThatFitsIntoFreeMemoryIsServedWhenTheTurnThatHoldsItBackEnds) {
  TurnRig rig;
  ASSERT_TRUE(rig.Grow(1, kMiB * 8, {}).status.ok());
  ASSERT_TRUE(rig.Grow(2, kMiB * 64, std::chrono::hours(24)).wait.has_value());
  const Broker::GrowAnswer waits = rig.Grow(3, kMiB * 8, std::chrono::hours(1));
  ASSERT_TRUE(waits.wait.has_value()) << waits.status;
  EXPECT_EQ(waits.next_look, rig.now() + std::chrono::seconds(2));
  rig.SetTime(waits.next_look);
  EXPECT_TRUE(rig.broker().Continue(*waits.wait).status.ok());
  EXPECT_EQ(rig.broker().Held(SessionId{3}), kMiB * 8);
  // In the rest after the turn no request is held back.
  EXPECT_FALSE(rig.HasTurn(0));
  EXPECT_FALSE(rig.Grow(3, kMiB * 8, {}).wait.has_value());
  EXPECT_EQ(rig.broker().Held(SessionId{3}), kMiB * 16);
}

TEST(BrokerTest, ATurnEndsWhenItsRequestNeedsMemoryOfASessionThatWaits) {
  TurnRig rig;
  ASSERT_TRUE(rig.Grow(1, kMiB * 8, {}).status.ok());
  ASSERT_TRUE(rig.Grow(2, kMiB * 64, std::chrono::hours(24)).wait.has_value());
  ASSERT_TRUE(rig.HasTurn(0));
  const Broker::GrowAnswer granted = rig.Grow(1, kMiB * 8, {});
  EXPECT_TRUE(granted.status.ok()) << granted.status;
  EXPECT_EQ(rig.broker().Held(SessionId{1}), kMiB * 16);
}

TEST(BrokerTest, ARefusalThatIsDueToATurnNamesItsRequest) {
  TurnRig rig;
  ASSERT_TRUE(rig.Grow(1, kMiB * 8, {}).status.ok());
  ASSERT_TRUE(rig.Grow(2, kMiB * 64, std::chrono::hours(24)).wait.has_value());
  const Broker::GrowAnswer waits = rig.Grow(3, kMiB * 8, {});
  ASSERT_TRUE(waits.wait.has_value()) << "even a timeout of 0 outlasts a short turn";
  rig.SetTime(waits.next_look);
  const Broker::GrowAnswer refused = rig.broker().Continue(*waits.wait);
  EXPECT_EQ(GetRefusal(refused.status).value_or(Refusal()).reason, RefusalReason::kCard);
  EXPECT_THAT(
      testing::Unwrapped(std::string(refused.status.message())),
      HasSubstr("held back for /device:GPU:0 of lease lease-2 (user user-2, pid 1002), which waits for "
                "64.00MiB; its turn ends in 1.9 s"));
}

TEST(BrokerTest, ARequestWhoseTurnsWereInVainIsToldSoAtItsDeadline) {
  TurnRig rig;
  ASSERT_TRUE(rig.Grow(1, kMiB * 8, {}).status.ok());
  Broker::GrowAnswer waits = rig.Grow(2, kMiB * 64, std::chrono::seconds(5));
  while (waits.wait) {
    rig.SetTime(waits.next_look);
    waits = rig.broker().Continue(*waits.wait);
  }
  EXPECT_THAT(std::string(waits.status.message()),
              HasSubstr("ask for less: the request had 1 turn of at most 2.0 s"));
}

TEST(BrokerTest, ARequestThatLapsesTakesNoTurnFromItsUsersOtherRequests) {
  TurnRig rig;
  ASSERT_TRUE(rig.Grow(1, kMiB * 8, {}).status.ok());
  const Broker::GrowAnswer hog = rig.Grow(2, kMiB * 64, std::chrono::hours(24));
  const Broker::GrowAnswer waits = rig.Grow(3, kMiB * 60, std::chrono::hours(1));
  ASSERT_TRUE(hog.wait.has_value() && waits.wait.has_value());
  const Clock::time_point start = rig.now();
  rig.SetTime(start + std::chrono::seconds(2));
  ASSERT_TRUE(rig.broker().Continue(*hog.wait).wait.has_value());
  // Until 4 s the queue rests. The next turn is user-3's.
  const Broker::GrowAnswer brief = rig.Grow(3, kMiB * 60, std::chrono::seconds(1));
  ASSERT_TRUE(brief.wait.has_value());
  rig.SetTime(start + std::chrono::seconds(3));
  EXPECT_EQ(GetRefusal(rig.broker().Continue(*brief.wait).status).value_or(Refusal()).reason,
            RefusalReason::kCard);
  rig.SetTime(start + std::chrono::seconds(4));
  ASSERT_TRUE(rig.broker().Continue(*waits.wait).wait.has_value());
  const std::vector<Broker::Queued> queue = rig.broker().Cards().front().queue;
  ASSERT_EQ(queue.size(), 2u);
  EXPECT_EQ(queue.front().id, *waits.wait);
  EXPECT_TRUE(queue.front().turn_ends.has_value()) << "user-2 has two turns before user-3 has one";
}

TEST(BrokerTest, ATurnHoldsBackNewGuaranteesAndNeverThoseThatAreThere) {
  TurnRig rig;
  const LogicalId guaranteed = *rig.broker().AddDevice(rig.Spec(3, kMiB * 4), rig.now());
  ASSERT_TRUE(rig.Grow(1, kMiB * 8, {}).status.ok());
  ASSERT_TRUE(rig.Grow(2, kMiB * 60, std::chrono::hours(24)).wait.has_value());
  ASSERT_TRUE(rig.HasTurn(0));
  const Broker::GrowAnswer inside = rig.broker().Grow({.session = SessionId{3},
                                                       .device = guaranteed,
                                                       .at_least = kMiB * 4,
                                                       .wanted = kMiB * 4,
                                                       .asked_at = rig.now(),
                                                       .deadline = rig.now()});
  EXPECT_TRUE(inside.status.ok() && !inside.wait) << inside.status;
  const absl::Status held_back = rig.broker().AddDevice(rig.Spec(3, kMiB * 4), rig.now()).status();
  EXPECT_THAT(testing::Unwrapped(std::string(held_back.message())),
              HasSubstr("held back for /device:GPU:0 of lease lease-2"));
  rig.SetTime(rig.now() + std::chrono::seconds(2));
  EXPECT_TRUE(rig.broker().AddDevice(rig.Spec(3, kMiB * 4), rig.now()).ok());
}

// What a preallocated device guarantees is not coming back to the card, whoever waits for it.
TEST(BrokerTest, PreallocatedMemoryHidesNoDeadlock) {
  for (const bool in_use : {false, true}) {
    SCOPED_TRACE(in_use);
    Rig rig(kMiB * 64);
    const SessionId first = rig.Session(1);
    const SessionId second = rig.Session(2, LeaseKey{2});
    const LogicalId ready = *rig.Device(kMiB * 16, kLease, true);
    const LogicalId a = *rig.Device(kMiB * 64);
    const LogicalId b = *rig.Device(kMiB * 64, LeaseKey{2});
    if (in_use) {
      ASSERT_TRUE(rig.Grow(first, ready, kMiB * 8).status.ok());
    }
    ASSERT_TRUE(rig.Grow(first, a, kMiB * 24).status.ok());
    ASSERT_TRUE(rig.Grow(second, b, kMiB * 24).status.ok());
    ASSERT_TRUE(rig.Grow(first, a, kMiB * 8, std::chrono::hours(1)).wait.has_value());
    const Broker::GrowAnswer victim = rig.Grow(second, b, kMiB * 8, std::chrono::hours(1));
    const std::optional<Refusal> refusal = GetRefusal(victim.status);
    ASSERT_TRUE(refusal.has_value()) << victim.status;
    EXPECT_EQ(refusal->reason, RefusalReason::kDeadlock);
  }
}

TEST(BrokerTest, AHolderOfPreallocatedMemoryThatDoesNotWaitMayStillEnd) {
  Rig rig(kMiB * 64);
  const SessionId first = rig.Session(1);
  const SessionId second = rig.Session(2, LeaseKey{2});
  const SessionId idle = rig.Session(3, LeaseKey{3});
  const LogicalId a = *rig.Device(kMiB * 64);
  const LogicalId b = *rig.Device(kMiB * 64, LeaseKey{2});
  const LogicalId ready = *rig.Device(kMiB * 16, LeaseKey{3}, true);
  ASSERT_TRUE(rig.Grow(idle, ready, kMiB * 8).status.ok());
  ASSERT_TRUE(rig.Grow(first, a, kMiB * 24).status.ok());
  ASSERT_TRUE(rig.Grow(second, b, kMiB * 24).status.ok());
  EXPECT_TRUE(rig.Grow(first, a, kMiB * 8, std::chrono::hours(1)).wait.has_value());
  EXPECT_TRUE(rig.Grow(second, b, kMiB * 8, std::chrono::hours(1)).wait.has_value());
}

// The grant was on its way when the last of them began to wait.
TEST(BrokerTest, AGrantThatIsFetchedMayLeaveADeadlockBehind) {
  Rig rig(kMiB * 64);
  const SessionId first = rig.Session(1);
  const SessionId second = rig.Session(2, LeaseKey{2});
  const SessionId third = rig.Session(3, LeaseKey{3});
  const LogicalId a = *rig.Device(kMiB * 64);
  const LogicalId b = *rig.Device(kMiB * 64, LeaseKey{2});
  const LogicalId c = *rig.Device(kMiB * 64, LeaseKey{3});
  ASSERT_TRUE(rig.Grow(second, b, kMiB * 56).status.ok());
  const Broker::GrowAnswer held = rig.Grow(third, c, kMiB * 8);
  const Broker::GrowAnswer one = rig.Grow(first, a, kMiB * 8, std::chrono::hours(1));
  const Broker::GrowAnswer two = rig.Grow(first, a, kMiB * 8, std::chrono::hours(1));
  ASSERT_TRUE(one.wait && two.wait);
  ASSERT_TRUE(rig.broker().Return(third, c, Ids(held.chunks)).ok());  // `one` is granted
  const Broker::GrowAnswer last = rig.Grow(second, b, kMiB * 8, std::chrono::hours(1));
  ASSERT_TRUE(last.wait.has_value()) << last.status;
  EXPECT_TRUE(rig.broker().Continue(*one.wait).status.ok());
  const std::optional<Refusal> refusal = GetRefusal(rig.broker().Continue(*last.wait).status);
  ASSERT_TRUE(refusal.has_value());
  EXPECT_EQ(refusal->reason, RefusalReason::kDeadlock);
}

TEST(BrokerTest, DrainingMemoryOfTheLeaseIsWaitedFor) {
  Rig rig(kMiB * 64);
  const SessionId dying = rig.Session(1);
  const SessionId living = rig.Session(2);
  const LogicalId device = *rig.Device(kMiB * 8);
  ASSERT_TRUE(rig.Grow(dying, device, kMiB * 8).status.ok());
  rig.broker().StartDraining(dying);
  const Broker::GrowAnswer waiting = rig.Grow(living, device, kMiB * 8, std::chrono::hours(1));
  ASSERT_TRUE(waiting.wait.has_value()) << waiting.status;
  EXPECT_THAT(rig.broker().FinishDraining({dying}), ElementsAre(dying));
  EXPECT_TRUE(rig.broker().Continue(*waiting.wait).status.ok());
  EXPECT_EQ(rig.broker().Held(living), kMiB * 8);
  EXPECT_TRUE(rig.broker().CheckInvariants().ok());
}

TEST(BrokerTest, ALoweredPreallocatedLimitIsStillGrantedInFull) {
  Rig rig(kMiB * 256);
  const SessionId session = rig.Session(1);
  const LogicalId device = *rig.Device(kMiB * 64, kLease, true);
  // All small chunks are in use, so that only large ones are left.
  std::vector<Chunk> small;
  while (true) {
    const Broker::GrowAnswer answer = rig.Grow(session, device, kMiB * 2);
    ASSERT_TRUE(answer.status.ok()) << answer.status;
    ASSERT_EQ(answer.chunks.size(), 1u);
    if (answer.chunks[0].bytes > kMiB * 2) {
      ASSERT_TRUE(rig.broker().Return(session, device, Ids(answer.chunks)).ok());
      break;
    }
    small.push_back(answer.chunks[0]);
  }
  ASSERT_EQ(small.size(), 16u);
  const Bytes limit = kMiB * 42;
  ASSERT_TRUE(rig.broker().ResizeDevice(device, limit, Bytes(), Clock::now()).ok());
  for (Bytes held = kMiB * 32; held < limit; held += kMiB * 2) {
    const Broker::GrowAnswer answer = rig.Grow(session, device, kMiB * 2);
    ASSERT_TRUE(answer.status.ok()) << answer.status;
    EXPECT_TRUE(rig.broker().CheckInvariants().ok()) << rig.broker().CheckInvariants();
  }
  EXPECT_EQ(rig.Card().view.held, limit);
  EXPECT_EQ(GetRefusal(rig.Grow(session, device, kMiB * 2).status).value_or(Refusal()).reason,
            RefusalReason::kLimit);
  // As much comes back to the device as its limit promises, and no more.
  rig.broker().ReturnAll(session);
  EXPECT_EQ(rig.Card().view.held, limit);
}

TEST(BrokerTest, PreallocatedMemoryCannotFail) {
  Rig rig(kMiB * 256);
  const SessionId session = rig.Session(1);
  const LogicalId device = *rig.Device(kMiB * 128, kLease, true);
  EXPECT_EQ(rig.Card().view.held, kMiB * 128);
  rig.faults().FailFrom(1);
  Bytes sum;
  std::vector<ChunkId> all;
  while (sum < kMiB * 128) {
    const Broker::GrowAnswer answer = rig.Grow(session, device, kMiB * 2);
    ASSERT_TRUE(answer.status.ok()) << answer.status;
    for (const Chunk& chunk : answer.chunks) {
      sum += chunk.bytes;
      all.push_back(chunk.id);
    }
  }
  EXPECT_EQ(sum, kMiB * 128);
  EXPECT_FALSE(rig.Grow(session, device, kMiB * 2).status.ok());
  rig.faults().Heal();
  ASSERT_TRUE(rig.broker().Return(session, device, all).ok());
  EXPECT_TRUE(rig.Grow(session, device, kMiB * 128).status.ok());
  rig.broker().ReturnAll(session);
  EXPECT_EQ(rig.Card().view.held, kMiB * 128);
  rig.broker().RemoveDevice(device);
  EXPECT_EQ(rig.Card().view.held, Bytes());
  EXPECT_TRUE(rig.broker().CheckInvariants().ok());
}

// A process of the lease that keeps a returned chunk, or cut its memory off, cannot harm the next one.
TEST(BrokerTest, APreallocatedChunkIsGrantedOnceAndReplacedByAnEmptyOne) {
  testing::CountingBackend backend({kMiB * 64}, kMiB * 2);
  const std::unique_ptr<Broker> broker = MakeBroker(backend);
  const LogicalId device = *broker->AddDevice(
      {.card = broker->Cards().front().id, .limit = kMiB * 8, .preallocate = true, .lease = kLease},
      Clock::now());
  const auto grow = [&](std::uint64_t session) {
    return broker->Grow({.session = SessionId{session},
                         .device = device,
                         .at_least = kMiB * 8,
                         .wanted = kMiB * 8,
                         .asked_at = Clock::now(),
                         .deadline = Clock::now()});
  };
  for (const std::uint64_t id : {1, 2, 3}) {
    broker->AddSession(SessionId{id}, {.pid = 1});
    broker->AttachSession(SessionId{id}, kLease);
  }
  const Broker::GrowAnswer first = grow(1);
  ASSERT_EQ(first.chunks.size(), 4u) << first.status;
  ASSERT_TRUE(broker->Return(SessionId{1}, device, Ids(first.chunks)).ok());
  EXPECT_EQ(broker->Find(device)->missing, Bytes());
  const Broker::GrowAnswer second = grow(2);
  ASSERT_EQ(second.chunks.size(), 4u) << second.status;
  for (const Chunk& chunk : second.chunks) {
    EXPECT_THAT(Ids(first.chunks), ::testing::Not(::testing::Contains(chunk.id)));
  }
  // Also where the holder dies.
  broker->StartDraining(SessionId{2});
  EXPECT_THAT(broker->FinishDraining({SessionId{2}}), ElementsAre(SessionId{2}));
  // Where a new chunk cannot be made at once, the next request that needs it tries again.
  const Broker::GrowAnswer third = grow(3);
  ASSERT_EQ(third.chunks.size(), 4u) << third.status;
  backend.FailCreateAfter(0);
  ASSERT_TRUE(broker->Return(SessionId{3}, device, Ids(third.chunks)).ok());
  backend.FailCreateAfter(-1);
  EXPECT_EQ(broker->Find(device)->missing, kMiB * 8);
  EXPECT_EQ(grow(1).chunks.size(), 4u);
  EXPECT_EQ(broker->Find(device)->missing, Bytes());
  EXPECT_TRUE(broker->CheckInvariants().ok()) << broker->CheckInvariants();
}

TEST(BrokerTest, AGuaranteeThatGoesIsForThoseWhoWait) {
  Rig rig(kMiB * 64);
  const SessionId session = rig.Session(1);
  const LogicalId device = *rig.Device(kMiB * 64);
  const absl::StatusOr<LogicalId> guaranteed = rig.broker().AddDevice({.card = rig.Card().id,
                                                                       .limit = kMiB * 32,
                                                                       .guarantee = kMiB * 32,
                                                                       .preallocate = false,
                                                                       .lease = LeaseKey{2},
                                                                       .device_name = "/device:GPU:0",
                                                                       .lease_name = "lease-2",
                                                                       .owner = "kim"},
                                                                      Clock::now());
  ASSERT_TRUE(guaranteed.ok()) << guaranteed.status();
  const SessionId idle = rig.Session(2, LeaseKey{3});
  const LogicalId held = *rig.Device(kMiB * 64, LeaseKey{3});
  ASSERT_TRUE(rig.Grow(idle, held, kMiB * 8).status.ok());
  const Broker::GrowAnswer waiting = rig.Grow(session, device, kMiB * 32, std::chrono::hours(1));
  ASSERT_TRUE(waiting.wait.has_value()) << waiting.status;
  rig.broker().RemoveDevice(*guaranteed);
  const Broker::GrowAnswer granted = rig.broker().Continue(*waiting.wait);
  EXPECT_FALSE(granted.wait.has_value());
  EXPECT_EQ(granted.chunks.size(), 16u) << granted.status;
}

// A backend that could not confirm a returned chunk must not cost a preallocated device its memory.
TEST(BrokerTest, AResizeCountsOnlyMemoryThatIsThere) {
  Rig rig(kMiB * 256, {.code = absl::StatusCode::kResourceExhausted, .cleanup_fails = true});
  const SessionId session = rig.Session(1);
  const LogicalId device = *rig.Device(kMiB * 128, kLease, true);
  rig.faults().FailFrom(1);
  ASSERT_TRUE(rig.broker().ResizeDevice(device, kMiB * 64, Bytes(), Clock::now()).ok());
  EXPECT_EQ(rig.broker().Find(device)->leaving, kMiB * 64);
  ASSERT_TRUE(rig.broker().ResizeDevice(device, kMiB * 64, Bytes(), Clock::now()).ok());
  EXPECT_EQ(rig.broker().Find(device)->leaving, kMiB * 64);
  EXPECT_TRUE(absl::IsUnavailable(rig.broker().ResizeDevice(device, kMiB * 128, Bytes(), Clock::now())));
  EXPECT_EQ(rig.broker().Find(device)->limit, kMiB * 64);
  EXPECT_TRUE(rig.broker().CheckInvariants().ok()) << rig.broker().CheckInvariants();
  rig.faults().Heal();
  ASSERT_TRUE(rig.broker().RetryUnconfirmed());
  ASSERT_TRUE(rig.broker().ResizeDevice(device, kMiB * 128, Bytes(), Clock::now()).ok());
  const Broker::GrowAnswer granted = rig.Grow(session, device, kMiB * 128);
  EXPECT_TRUE(granted.status.ok()) << granted.status;
  EXPECT_TRUE(rig.broker().CheckInvariants().ok()) << rig.broker().CheckInvariants();
}

TEST(BrokerTest, AResizeThatFailsLeavesThePreallocatedChunksAsTheyWere) {
  Rig rig(kMiB * 256, {.code = absl::StatusCode::kResourceExhausted, .cleanup_fails = false});
  const SessionId session = rig.Session(1);
  const LogicalId device = *rig.Device(kMiB * 64, kLease, true);
  rig.faults().FailCall(3);  // after two large chunks
  EXPECT_FALSE(rig.broker().ResizeDevice(device, kMiB * 164, Bytes(), Clock::now()).ok());
  EXPECT_EQ(rig.broker().Find(device)->limit, kMiB * 64);
  EXPECT_EQ(rig.Card().view.held, kMiB * 64);
  const Broker::GrowAnswer granted = rig.Grow(session, device, kMiB * 2);
  ASSERT_EQ(granted.chunks.size(), 1u) << granted.status;
  EXPECT_EQ(granted.chunks.front().bytes, kMiB * 2);
  EXPECT_TRUE(rig.broker().CheckInvariants().ok()) << rig.broker().CheckInvariants();
}

TEST(BrokerTest, AnExhaustedBackendIsAskedNowAndThenOnly) {
  Rig rig(kMiB * 64, {.code = absl::StatusCode::kResourceExhausted, .cleanup_fails = false});
  const SessionId dying = rig.Session(1);
  const SessionId living = rig.Session(2);
  const LogicalId device = *rig.Device(kMiB * 64);
  ASSERT_TRUE(rig.Grow(dying, device, kMiB * 8).status.ok());
  rig.broker().StartDraining(dying);
  rig.faults().FailFrom(1);
  const Clock::time_point start = Clock::now();
  Broker::GrowAnswer answer = rig.Grow(living, device, kMiB * 8, std::chrono::hours(1));
  for (int i = 0; i < 1000 && answer.wait; ++i) answer = rig.broker().Continue(*answer.wait);
  ASSERT_TRUE(answer.wait.has_value()) << answer.status;
  const auto looks = (Clock::now() - start) / std::chrono::milliseconds(20);
  EXPECT_LE(rig.faults().calls(), static_cast<std::uint64_t>(looks) + 1);
  rig.faults().Heal();
  EXPECT_THAT(rig.broker().FinishDraining({dying}), ElementsAre(dying));
  EXPECT_TRUE(rig.Finish(answer).status.ok());
}

TEST(BrokerTest, OnlyWhatIsGrantedToTheSessionCanBeReturned) {
  Rig rig(kMiB * 64);
  const SessionId session = rig.Session(1);
  const SessionId other = rig.Session(2);
  const LogicalId device = *rig.Device(kMiB * 64);
  const Broker::GrowAnswer granted = rig.Grow(session, device, kMiB * 4);
  std::vector<ChunkId> ids = Ids(granted.chunks);
  EXPECT_TRUE(absl::IsInvalidArgument(rig.broker().Return(other, device, ids)));
  ids.push_back(ids.front());
  EXPECT_TRUE(absl::IsInvalidArgument(rig.broker().Return(session, device, ids)));
  EXPECT_EQ(rig.broker().Held(session), kMiB * 4);
}

TEST(BrokerTest, AGrantThatCannotBeLoggedIsTakenBack) {
  testing::CountingBackend backend({kMiB * 64}, kMiB * 2);
  RecordingLog log;
  const std::unique_ptr<Broker> broker = *Broker::Create(backend, log, AllCardsOf(backend));
  const LogicalId device = *broker->AddDevice(
      {.card = broker->Cards().front().id, .limit = kMiB * 64, .lease = kLease}, Clock::now());
  broker->AddSession(SessionId{1}, {.pid = 1});
  broker->AttachSession(SessionId{1}, kLease);
  const auto grow = [&] {
    return broker->Grow({.session = SessionId{1},
                         .device = device,
                         .at_least = kMiB * 4,
                         .wanted = kMiB * 4,
                         .asked_at = Clock::now(),
                         .deadline = Clock::now()});
  };
  log.SetFailing(true);
  EXPECT_TRUE(absl::IsUnavailable(grow().status));
  EXPECT_TRUE(log.granted().empty());
  EXPECT_TRUE(broker->Held(SessionId{1}).is_zero());
  EXPECT_EQ(backend.Handles(), 0u);
  EXPECT_EQ(broker->counters().refusals, 1u);
  log.SetFailing(false);
  EXPECT_TRUE(grow().status.ok());
  EXPECT_EQ(log.granted().size(), 2u);
}

TEST(BrokerTest, OnlyABrokerOfOtherProcessesAsksWhetherACardHasReturnedMemoryBack) {
  for (const bool leaves_process : {false, true}) {
    testing::CountingBackend backend({kMiB * 64}, kMiB * 2);
    backend.BecomeReal();
    backend.SetReclaiming(0, testing::CountingBackend::Reclaiming::kTaken);
    NoGrantLog log;
    Broker::Options options = AllCardsOf(backend);
    options.leaves_process = leaves_process;
    const std::unique_ptr<Broker> broker = *Broker::Create(backend, log, options);
    const LogicalId device = *broker->AddDevice(
        {.card = broker->Cards().front().id, .limit = kMiB * 64, .lease = kLease}, Clock::now());
    broker->AddSession(SessionId{1}, {.pid = 1});
    broker->AttachSession(SessionId{1}, kLease);
    const Broker::GrowAnswer answer = broker->Grow({.session = SessionId{1},
                                                    .device = device,
                                                    .at_least = kMiB * 2,
                                                    .wanted = kMiB * 2,
                                                    .asked_at = Clock::now(),
                                                    .deadline = Clock::now()});
    ASSERT_TRUE(answer.status.ok()) << answer.status;
    ASSERT_TRUE(broker->Return(SessionId{1}, device, std::array{answer.chunks.front().id}).ok());
    EXPECT_EQ(broker->Held(SessionId{1}).is_zero(), !leaves_process);
  }
}

TEST(BrokerTest, CardsAreOrderedByTheRoomThatALeaseLeavesThem) {
  testing::CountingBackend backend({kMiB * 32, kMiB * 64, kMiB * 64}, kMiB * 2);
  const std::unique_ptr<Broker> broker = MakeBroker(backend);
  const std::vector<Broker::CardInfo> cards = broker->Cards();
  const auto order = [&](const std::map<CardId, Bytes>& planned) {
    std::vector<int> indices;
    for (const Broker::CardInfo* card : Broker::ByRoom({&cards[0], &cards[1], &cards[2]}, planned)) {
      indices.push_back(card->card.index);
    }
    return indices;
  };
  EXPECT_THAT(order({}), ElementsAre(1, 2, 0));
  EXPECT_THAT(order({{cards[1].id, kMiB * 16}}), ElementsAre(2, 1, 0));
  // Limits may add up to more than the card.
  EXPECT_THAT(order({{cards[1].id, kMiB * 128}, {cards[2].id, kMiB * 40}}), ElementsAre(0, 2, 1));
}

TEST(BrokerTest, SizesThatCannotBeAreRefused) {
  Rig rig(kMiB * 64);
  const SessionId session = rig.Session(1);
  const LogicalId device = *rig.Device(kMiB * 64);
  EXPECT_TRUE(absl::IsInvalidArgument(rig.Grow(session, device, Bytes()).status));
  EXPECT_TRUE(GetRefusal(rig.Grow(session, device, Bytes(~std::uint64_t{0})).status).has_value());
  EXPECT_TRUE(absl::IsNotFound(rig.Grow(session, LogicalId{99}, kMiB).status));
  EXPECT_EQ(rig.Grow(session, device, Bytes(1)).chunks.front().bytes, kMiB * 2);
}

// Everything that a lease goes through; returns whether all of it worked.
bool Scenario(Rig& rig) {
  const SessionId session = rig.Session(1);
  const SessionId lost = rig.Session(2);
  bool ok = true;
  const absl::StatusOr<LogicalId> growing = rig.Device(kMiB * 96);
  const absl::StatusOr<LogicalId> ready = rig.Device(kMiB * 64, kLease, true);
  for (const absl::StatusOr<LogicalId>& device : {growing, ready}) {
    ok = ok && device.ok();
    if (!device.ok()) continue;
    for (const SessionId user : {session, lost}) {
      const Broker::GrowAnswer answer = rig.Finish(rig.Grow(user, *device, kMiB * 6));
      ok = ok && answer.status.ok();
      for (const Chunk& chunk : answer.chunks) ok = rig.broker().Export(user, chunk.id).ok() && ok;
      if (!answer.chunks.empty() && user == session) {
        ok = rig.broker().Return(user, *device, Ids(answer.chunks)).ok() && ok;
      }
    }
    EXPECT_TRUE(rig.broker().CheckInvariants().ok()) << rig.broker().CheckInvariants();
  }
  rig.broker().StartDraining(lost);
  rig.broker().ReturnAll(session);
  rig.broker().FinishDraining({lost});
  for (int i = 0; i < 3 && !rig.broker().RetryUnconfirmed(); ++i) {
  }
  for (const absl::StatusOr<LogicalId>& device : {growing, ready}) {
    if (device.ok()) rig.broker().RemoveDevice(*device);
  }
  EXPECT_TRUE(rig.broker().RetryUnconfirmed() || rig.broker().RetryUnconfirmed());
  EXPECT_EQ(rig.broker().Held(session), Bytes());
  EXPECT_EQ(rig.broker().Held(lost), Bytes());
  rig.broker().RemoveSession(session);
  rig.broker().RemoveSession(lost);
  return ok;
}

void Sweep(FailingBackend::Options options) {
  std::uint64_t calls = 0;
  for (std::uint64_t n = 1;; ++n) {
    Rig rig(kMiB * 256, options);
    rig.faults().FailCall(n);
    Scenario(rig);
    const Broker::CardInfo card = rig.Card();
    EXPECT_EQ(card.view.held, Bytes()) << "call " << n;
    EXPECT_EQ(card.view.promised, Bytes()) << "call " << n;
    EXPECT_TRUE(rig.broker().CheckInvariants().ok()) << rig.broker().CheckInvariants();
    if (!rig.faults().has_failed()) {
      calls = rig.faults().calls();
      break;
    }
  }
  std::printf("the sweep saw %llu calls\n", static_cast<unsigned long long>(calls));
  EXPECT_GE(calls, 20u);
}

TEST(BrokerTest, AnyFailedCallLeavesNothingBehind) { Sweep({}); }
TEST(BrokerTest, AnyFailedCallOfAFullMachineLeavesNothingBehind) {
  Sweep({.code = absl::StatusCode::kResourceExhausted, .cleanup_fails = true});
}

}  // namespace
}  // namespace lgpu
