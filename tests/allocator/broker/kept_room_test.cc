// A lease that gave way has room kept: leases that never give way do not take it.

#include "allocator/broker/kept_room.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <map>
#include <optional>
#include <string>

#include "tests/allocator/broker/preemption_fixture.h"

namespace lgpu {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::HasSubstr;

constexpr LeaseKey kDan{4};

/// Ann's lease of 800 MiB gave way for bob's of 500, which gives way, too. Cyd's never does. Of 524 MiB that
/// are free 300 are kept.
class KeptRoomTest : public PreemptionFixture {
 protected:
  KeptRoomTest() {
    const LogicalId ann = Add(kAnn);
    bob_ = Add(kBob);
    cyd_ = Add(kCyd, Broker::Preemptible::kNever);
    Charged(Program(1, kAnn), 800_MiB);
    UsedBefore(ann, seconds(60));
    bobs_ = Program(2, kBob);
    const Broker::Answer waiting = Charge(bobs_, 500_MiB, seconds(30));
    Suspend(TakeOrders().at(0));
    EXPECT_TRUE(IsServed(waiting));
    cyds_ = Program(3, kCyd);
    EXPECT_FALSE(Charges(cyds_, 900_MiB)) << "it takes what was lent to bob's program";
    EXPECT_EQ(CardFree(), 524_MiB);
  }
  std::optional<Broker::Answer> AnswerTo(const Broker::Answer& waiting) {
    return broker_->TakeAnswer(*waiting.wait);
  }
  void BringAnnBack() {
    ASSERT_EQ(broker_->suspensions().TakeBack(kAnn, {}), absl::OkStatus());
    broker_->suspensions().End(kAnn);
    Check();
  }

  LogicalId bob_, cyd_;
  SessionId bobs_, cyds_;
};

TEST_F(KeptRoomTest, AChargeWaitsThatWouldTakeIt) {
  Charged(cyds_, 200_MiB);
  EXPECT_EQ(words_.at(3)->free(), Bytes()) << "nor is any of it lent";
  const Broker::Answer waiting = Charge(cyds_, 100_MiB, seconds(2));
  ASSERT_TRUE(waiting.wait);
  Pass(milliseconds(2001));
  const std::optional<Broker::Answer> answer = AnswerTo(waiting);
  ASSERT_TRUE(answer);
  EXPECT_THAT(std::string(answer->status.message()),
              HasSubstr("300.00MiB of the free memory is kept for lease lease-1,"));
  EXPECT_TRUE(Charges(cyds_, 24_MiB));
}

TEST_F(KeptRoomTest, ChunksWaitThatWouldTakeItAndGrowthAheadDoesNot) {
  const Broker::Answer grown = broker_->Grow({.session = cyds_,
                                              .device = cyd_,
                                              .at_least = 100_MiB,
                                              .wanted = 400_MiB,
                                              .asked_at = now_,
                                              .deadline = now_});
  ASSERT_TRUE(grown.status.ok()) << grown.status;
  EXPECT_EQ(CardFree(), 424_MiB) << "as much as was needed, and no more";
  const Broker::Answer refused = Grow(cyds_, cyd_, 200_MiB);
  EXPECT_THAT(std::string(refused.status.message()), HasSubstr("is kept for lease lease-1"));
  EXPECT_EQ(CardFree(), 424_MiB);
}

TEST_F(KeptRoomTest, GuaranteesAreNotMadeOfIt) {
  const auto add = [this](Bytes guarantee, Broker::Preemptible preemptible) {
    return broker_->AddDevice({.card = Card(0),
                               .limit = 1_GiB,
                               .guarantee = guarantee,
                               .lease = kDan,
                               .device_name = "/device:GPU:0",
                               .lease_name = "lease-4",
                               .owner = "user-4",
                               .preemptible = preemptible});
  };
  const auto refused = add(240_MiB, Broker::Preemptible::kNever);
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr("is kept for lease lease-1"));
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr("ask for at most 224.00MiB"));
  EXPECT_TRUE(add(224_MiB, Broker::Preemptible::kNever).ok());
  EXPECT_TRUE(add(240_MiB, Broker::Preemptible::kIdle).ok()) << "it gives way";
}

TEST_F(KeptRoomTest, WhoGivesWayMayUseIt) {
  EXPECT_TRUE(Charges(bobs_, 500_MiB));
  EXPECT_TRUE(Charges(cyds_, 2_MiB)) << "ann's lease has room once bob's gives way";
}

TEST_F(KeptRoomTest, ARequestThatWaitsForItIsServedAfterTheOthersReturn) {
  const Broker::Answer waiting = Charge(cyds_, 300_MiB, seconds(3600));
  ASSERT_TRUE(waiting.wait);
  Pass(seconds(1));
  const Broker::Answer bobs = Charge(bobs_, 100_MiB, seconds(30));
  Pass(seconds(3));
  EXPECT_TRUE(!bobs.wait || IsServed(bobs)) << "a turn of the other is over";
  Uncharge(bobs_, 600_MiB);
  EXPECT_FALSE(AnswerTo(waiting)) << "800 of 1,024 MiB are kept";
  BringAnnBack();
  EXPECT_FALSE(AnswerTo(waiting)) << "224 MiB are free";
  Uncharge(SessionId{1}, 800_MiB);
  EXPECT_TRUE(IsServed(waiting));
}

TEST_F(KeptRoomTest, TheOnlyHolderThatWaitsForItIsNoDeadlock) {
  Charged(cyds_, 200_MiB);
  Uncharge(bobs_, 500_MiB);
  const Broker::Answer waiting = Charge(cyds_, 100_MiB, seconds(3600));
  ASSERT_TRUE(waiting.wait);
  Pass(seconds(60));
  EXPECT_FALSE(AnswerTo(waiting)) << "it waits for ann's lease, not for memory of another that waits";
  broker_->suspensions().Fail(kAnn);
  EXPECT_TRUE(IsServed(waiting)) << "a lease that never comes back has no room kept";
}

TEST_F(KeptRoomTest, AProgramThatLgpudCannotMoveTakesNoneThoughItsLeaseGivesWay) {
  const LogicalId device = Add(kDan);
  const SessionId dans = Program(4, kDan);
  const Broker::Answer refused = Grow(dans, device, 300_MiB);
  EXPECT_THAT(std::string(refused.status.message()), HasSubstr("is kept for lease lease-1"));
  EXPECT_TRUE(Grow(dans, device, 200_MiB).status.ok());
}

TEST_F(KeptRoomTest, WhatIsSetAsideForTheLeaseIsNotKeptAgain) {
  Uncharge(bobs_, 500_MiB);
  const WaiterId room = broker_->reservations().Queue({.card = Card(0),
                                                       .bytes = 800_MiB,
                                                       .owner = "user-1",
                                                       .preemptible = Broker::Preemptible::kIdle,
                                                       .lease = kAnn});
  ASSERT_TRUE(broker_->TakeAnswer(room));
  EXPECT_EQ(CardFree(), 224_MiB);
  EXPECT_TRUE(Charges(cyds_, 200_MiB));
  broker_->reservations().Leave(room);
}

TEST_F(KeptRoomTest, AReleaseHookIsAskedForWhatARequestHasToLeave) {
  const LogicalId dans = Add(kDan, Broker::Preemptible::kNever);
  const SessionId hook{5};
  broker_->AddSession(hook, {.pid = 1005, .waker = wakers_[5], .waits_longer = true, .runs_release = true});
  broker_->AttachSession(hook, kDan);
  const SessionId holder = Program(4, kDan);
  Charged(holder, 200_MiB);
  UsedBefore(dans, seconds(60));
  const Broker::Answer waiting = Charge(cyds_, 100_MiB, seconds(30));
  ASSERT_TRUE(waiting.wait) << "324 MiB are free, and 300 kept";
  const std::vector<ReleaseOrder> orders = broker_->releases().TakeOrders(hook);
  ASSERT_EQ(orders.size(), 1u);
  EXPECT_EQ(orders[0].bytes, 76_MiB);
  Uncharge(holder, 100_MiB);
  EXPECT_TRUE(IsServed(waiting));
}

TEST_F(KeptRoomTest, WhatARefusedRequestHadAsideIsKept) {
  Add(kDan);
  const SessionId dans = Program(4, kDan);
  UsedBefore(bob_, seconds(60));
  const Broker::Answer first = Charge(dans, 700_MiB, seconds(3600));
  ASSERT_TRUE(first.wait);
  ASSERT_EQ(TakeOrders().size(), 1u);
  Uncharge(bobs_, 100_MiB);
  EXPECT_EQ(CardFree(), 524_MiB) << "the 100 are aside for dan's request";
  const Broker::Answer waiting = Charge(cyds_, 300_MiB, seconds(3600));
  ASSERT_TRUE(waiting.wait);
  broker_->SetStopped(kDan, true);
  ASSERT_TRUE(AnswerTo(first));
  EXPECT_EQ(CardFree(), 624_MiB);
  EXPECT_FALSE(AnswerTo(waiting)) << "bob's program gives 400, so 400 are kept";
}

TEST_F(KeptRoomTest, AProgramsWordIsBelievedUpToWhatItsLeaseHeld) {
  Uncharge(bobs_, 500_MiB);
  BringAnnBack();
  Uncharge(SessionId{1}, 800_MiB);
  const LogicalId device = Add(kDan);
  const SessionId dans = Program(4, kDan);
  ASSERT_TRUE(broker_->suspensions().BeginOwn(kDan, dans, {{device, 1_GiB}}, {{device, 100_MiB}}).ok());
  broker_->suspensions().Park(kDan, /*keeps_room=*/true);
  EXPECT_TRUE(Charges(cyds_, 900_MiB));
  EXPECT_FALSE(Charges(cyds_, 50_MiB));
}

TEST_F(KeptRoomTest, LessIsKeptWhenAProgramOfTheLeaseEnds) {
  Uncharge(bobs_, 500_MiB);
  const Broker::Answer waiting = Charge(cyds_, 300_MiB, seconds(3600));
  ASSERT_TRUE(waiting.wait);
  broker_->StartDraining(SessionId{1});
  broker_->FinishDraining({SessionId{1}});
  EXPECT_TRUE(IsServed(waiting));
}

TEST_F(KeptRoomTest, ALeaseThatWasSuspendedByRequestHasNone) {
  Uncharge(bobs_, 500_MiB);
  BringAnnBack();
  EXPECT_TRUE(broker_->suspensions().Begin(kAnn).ok());
  broker_->suspensions().Park(kAnn);
  EXPECT_TRUE(Charges(cyds_, 500_MiB));
}

using KeptRoomOfAnEarlierBrokerTest = PreemptionFixture;

TEST_F(KeptRoomOfAnEarlierBrokerTest, IsKept) {
  const LogicalId device = Add(kAnn);
  Add(kCyd, Broker::Preemptible::kNever);
  broker_->suspensions().Restore(
      kAnn,
      {.charges = {{Program(1, kAnn), device, 800_MiB}}, .guarantees = {{device, {}}}, .keeps_room = true});
  const SessionId cyds = Program(3, kCyd);
  EXPECT_FALSE(Charges(cyds, 300_MiB));
  EXPECT_TRUE(Charges(cyds, 224_MiB));
}

}  // namespace
}  // namespace lgpu
