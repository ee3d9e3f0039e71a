// What the Broker promises about requests, deadlocks and cards, case by case.

#include "allocator/broker/broker.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <map>
#include <memory>
#include <vector>

#include "allocator/broker/card_observer.h"
#include "lgpu/refusal.h"
#include "tests/allocator/broker/broker_rig.h"
#include "tests/support/broker_testing.h"
#include "tests/support/counting_backend.h"

namespace lgpu {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Clock = std::chrono::steady_clock;

TEST(BrokerTest, GrowsToTheLimitAndNoFurther) {
  Rig rig(kMiB * 64);
  const SessionId session = rig.Session(1);
  const LogicalId device = *rig.Device(kMiB * 5);
  const Broker::Answer granted = rig.Grow(session, device, kMiB * 6);
  ASSERT_TRUE(granted.status.ok()) << granted.status;
  EXPECT_EQ(granted.chunks.size(), 3u);
  const Broker::Answer refused = rig.Grow(session, device, kMiB * 2, std::chrono::seconds(60));
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
  const Broker::Answer refused = rig.Grow(second, b, kMiB * 8);
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
  const Broker::Answer held = rig.Grow(first, a, kMiB * 60);
  const Broker::Answer waiting = rig.Grow(second, b, kMiB * 8, std::chrono::hours(1));
  ASSERT_TRUE(waiting.wait.has_value()) << waiting.status;
  EXPECT_TRUE(AskAgain(rig.broker(), *waiting.wait).wait.has_value());
  ASSERT_TRUE(rig.broker().Return(first, a, Ids(held.chunks)).ok());
  const Broker::Answer granted = AskAgain(rig.broker(), *waiting.wait);
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
  const Broker::Answer victim = rig.Grow(second, b, kMiB * 8, std::chrono::hours(1));
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
  const Broker::Answer refused = rig.Grow(session, device, kMiB * 24, std::chrono::hours(1));
  EXPECT_EQ(GetRefusal(refused.status).value_or(Refusal()).reason, RefusalReason::kDeadlock);
  const std::string text(refused.status.message());
  EXPECT_THAT(text, HasSubstr("no other lease holds memory of GPU 0 (simulated) for /device:GPU:0"));
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
  const Broker::Answer idle_has = rig.Grow(idle, a, kMiB * 16);
  ASSERT_TRUE(rig.Grow(second, b, kMiB * 32).status.ok());
  const Broker::Answer one = rig.Grow(first, a, kMiB * 8, std::chrono::hours(1));
  const Broker::Answer two = rig.Grow(second, b, kMiB * 8, std::chrono::hours(1));
  ASSERT_TRUE(one.wait && two.wait) << one.status << two.status;
  ASSERT_TRUE(rig.broker().Return(idle, a, Ids(idle_has.chunks)).ok());
  EXPECT_TRUE(AskAgain(rig.broker(), *one.wait).status.ok());
  EXPECT_TRUE(AskAgain(rig.broker(), *two.wait).status.ok());
}

// Another thread of the program may free the first device's memory, as in a `local` context, which has a
// session for each device.
TEST(BrokerTest, AProgramMayWaitWithOneDeviceForMemoryThatItsOtherDeviceHolds) {
  Rig rig(kMiB * 64);
  const SessionId session = rig.Session(1);
  const LogicalId a = *rig.Device(kMiB * 64);
  const LogicalId b = *rig.Device(kMiB * 64);
  const Broker::Answer held = rig.Grow(session, a, kMiB * 64);
  const Broker::Answer waits = rig.Grow(session, b, kMiB * 8, std::chrono::hours(1));
  ASSERT_TRUE(waits.wait.has_value()) << waits.status;
  ASSERT_TRUE(rig.broker().Return(session, a, Ids(held.chunks)).ok());
  EXPECT_TRUE(AskAgain(rig.broker(), *waits.wait).status.ok());
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
    const Broker::Answer victim = rig.Grow(second, b, kMiB * 8, std::chrono::hours(1));
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
  const Broker::Answer held = rig.Grow(third, c, kMiB * 8);
  const Broker::Answer one = rig.Grow(first, a, kMiB * 8, std::chrono::hours(1));
  const Broker::Answer two = rig.Grow(first, a, kMiB * 8, std::chrono::hours(1));
  ASSERT_TRUE(one.wait && two.wait);
  ASSERT_TRUE(rig.broker().Return(third, c, Ids(held.chunks)).ok());  // `one` is granted
  const Broker::Answer last = rig.Grow(second, b, kMiB * 8, std::chrono::hours(1));
  ASSERT_TRUE(last.wait.has_value()) << last.status;
  EXPECT_TRUE(AskAgain(rig.broker(), *one.wait).status.ok());
  const std::optional<Refusal> refusal = GetRefusal(AskAgain(rig.broker(), *last.wait).status);
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
  const Broker::Answer waiting = rig.Grow(living, device, kMiB * 8, std::chrono::hours(1));
  ASSERT_TRUE(waiting.wait.has_value()) << waiting.status;
  EXPECT_THAT(rig.broker().FinishDraining({dying}), ElementsAre(dying));
  EXPECT_TRUE(AskAgain(rig.broker(), *waiting.wait).status.ok());
  EXPECT_EQ(rig.broker().Held(living), kMiB * 8);
  EXPECT_TRUE(rig.broker().CheckInvariants().ok());
}

TEST(BrokerTest, OnlyWhatIsGrantedToTheSessionCanBeReturned) {
  Rig rig(kMiB * 64);
  const SessionId session = rig.Session(1);
  const SessionId other = rig.Session(2);
  const LogicalId device = *rig.Device(kMiB * 64);
  const Broker::Answer granted = rig.Grow(session, device, kMiB * 4);
  std::vector<ChunkId> ids = Ids(granted.chunks);
  EXPECT_TRUE(absl::IsInvalidArgument(rig.broker().Return(other, device, ids)));
  ids.push_back(ids.front());
  EXPECT_TRUE(absl::IsInvalidArgument(rig.broker().Return(session, device, ids)));
  EXPECT_EQ(rig.broker().Held(session), kMiB * 4);
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
    const LogicalId device =
        *broker->AddDevice({.card = broker->Cards().front().id, .limit = kMiB * 64, .lease = kLease});
    broker->AddSession(SessionId{1}, {.pid = 1});
    broker->AttachSession(SessionId{1}, kLease);
    const Broker::Answer answer = broker->Grow({.session = SessionId{1},
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

}  // namespace
}  // namespace lgpu
