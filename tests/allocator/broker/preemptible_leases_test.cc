// Preemptible leases are suspended for others while they are idle; here the test moves their programs.

#include "allocator/broker/preemptible_leases.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <optional>
#include <vector>

#include "tests/allocator/broker/preemption_fixture.h"

namespace lgpu {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

using PreemptibleLeasesTest = PreemptionFixture;

TEST_F(PreemptibleLeasesTest, AnIdleOneIsSuspendedForAnotherAndItsMemoryIsForThatAlone) {
  const LogicalId ann = Add(kAnn);
  Add(kBob);
  Charged(Program(1, kAnn), 800_MiB);
  UsedBefore(ann, seconds(60));
  const SessionId bob = Program(2, kBob);
  const Broker::Answer waiting = Charge(bob, 500_MiB, milliseconds(500));
  ASSERT_TRUE(waiting.wait);
  const std::vector<ReleaseOrder> orders = TakeOrders();
  ASSERT_EQ(orders.size(), 1u);
  EXPECT_EQ(orders[0].lease, kAnn);
  EXPECT_EQ(orders[0].bytes, 276_MiB);
  EXPECT_EQ(orders[0].asker, "lease-2");
  EXPECT_TRUE(TakeOrders().empty());
  EXPECT_EQ(broker_->releases().LongerWait(*waiting.wait), now_ + seconds(60));
  Suspend(orders[0]);
  EXPECT_TRUE(IsServed(waiting));
  EXPECT_LE(CardFree(), 524_MiB);
}

TEST_F(PreemptibleLeasesTest, ARequestWaitsForALeaseThatHasAllMemoryGuaranteed) {
  const auto ann = broker_->AddDevice({.card = Card(0),
                                       .limit = 1_GiB,
                                       .guarantee = 1_GiB,
                                       .lease = kAnn,
                                       .device_name = "/device:GPU:0",
                                       .lease_name = "lease-1",
                                       .owner = "user-1",
                                       .preemptible = Broker::Preemptible::kIdle});
  ASSERT_TRUE(ann.ok());
  Add(kBob);
  Charged(Program(1, kAnn), 800_MiB);
  UsedBefore(*ann, {});
  const Broker::Answer waiting = Charge(Program(2, kBob), 500_MiB, seconds(30));
  ASSERT_TRUE(waiting.wait) << "the lease gives way as soon as it is idle: " << waiting.status;
  Pass(milliseconds(2100));
  Suspend(TakeOrders().at(0));
  EXPECT_TRUE(IsServed(waiting));
}

TEST_F(PreemptibleLeasesTest, AMoveThatOutlastsItsTimeKeepsNobodyBusy) {
  const LogicalId ann = Add(kAnn);
  Add(kBob);
  Charged(Program(1, kAnn), 800_MiB);
  UsedBefore(ann, seconds(60));
  ASSERT_TRUE(Charge(Program(2, kBob), 500_MiB, milliseconds(500)).wait);
  const std::vector<ReleaseOrder> orders = TakeOrders();
  ASSERT_EQ(orders.size(), 1u);
  ASSERT_EQ(broker_->suspensions().Begin(kAnn), absl::OkStatus());
  Pass(seconds(61));
  const std::optional<Broker::TimePoint> next = broker_->Tick();
  ASSERT_TRUE(next.has_value());
  EXPECT_GT(*next, now_) << "the move is still under way";
  broker_->suspensions().Park(kAnn);
  Answer(orders[0], ReleaseOutcome::kDone);
}

TEST_F(PreemptibleLeasesTest, AProgramThatMovesItsChunksGivesWayAndMakesOthersGiveWay) {
  const auto mover = [this](std::uint64_t id, LeaseKey lease, bool suspends_itself) {
    const SessionId session{id};
    broker_->AddSession(session, {.pid = static_cast<std::int64_t>(1000 + id),
                                  .waker = wakers_[id],
                                  .waits_longer = true,
                                  .suspends_itself = suspends_itself});
    broker_->AttachSession(session, lease);
    return session;
  };
  const LogicalId ann = Add(kAnn);
  const LogicalId bob = Add(kBob);
  const LogicalId cyd = Add(kCyd);
  const SessionId owner = mover(1, kAnn, true);
  const Broker::Answer grown = Grow(owner, ann, 600_MiB);
  ASSERT_TRUE(grown.status.ok());
  ASSERT_TRUE(Grow(mover(3, kCyd, false), cyd, 200_MiB).status.ok());
  UsedBefore(ann, seconds(60));
  UsedBefore(cyd, seconds(60));
  const Broker::Answer waiting = Grow(mover(2, kBob, true), bob, 500_MiB, seconds(5));
  ASSERT_TRUE(waiting.wait);
  const std::vector<ReleaseOrder> orders = TakeOrders();
  ASSERT_EQ(orders.size(), 1u) << "the program of cyd cannot move its memory";
  EXPECT_EQ(orders[0].lease, kAnn);
  for (const Chunk& chunk : grown.chunks) {
    ASSERT_TRUE(broker_->Return(owner, ann, std::vector<ChunkId>{chunk.id}).ok());
  }
  ASSERT_EQ(broker_->suspensions().BeginOwn(kAnn, owner, {{ann, 580_MiB}}), absl::OkStatus());
  broker_->suspensions().Park(kAnn);
  Answer(orders[0], ReleaseOutcome::kDone);
  EXPECT_TRUE(IsServed(waiting));
}

TEST_F(PreemptibleLeasesTest, TheTradeIsFair) {
  const LogicalId ann = Add(kAnn);
  Add(kBob, Broker::Preemptible::kNever);
  Charged(Program(1, kAnn), 800_MiB);
  UsedBefore(ann, seconds(60));
  const SessionId bob = Program(2, kBob);
  EXPECT_TRUE(Charge(bob, 500_MiB, milliseconds(500)).wait);
  EXPECT_TRUE(TakeOrders().empty()) << "what is not preemptible makes nobody give way";
}

TEST_F(PreemptibleLeasesTest, OneThatIsNotIdleOrNotPreemptibleIsLeftAlone) {
  const LogicalId ann = Add(kAnn);
  const LogicalId cyd = Add(kCyd, Broker::Preemptible::kNever);
  Add(kBob);
  Charged(Program(1, kAnn), 400_MiB);
  Charged(Program(3, kCyd), 400_MiB);
  UsedBefore(cyd, seconds(60));
  UsedBefore(ann, milliseconds(1900));
  const SessionId bob = Program(2, kBob);
  EXPECT_TRUE(Charge(bob, 500_MiB, seconds(5)).wait);
  EXPECT_TRUE(TakeOrders().empty());
  Pass(milliseconds(200));
  const std::vector<ReleaseOrder> orders = TakeOrders();
  ASSERT_EQ(orders.size(), 1u) << "it is idle for two seconds now";
  EXPECT_EQ(orders[0].lease, kAnn);
}

TEST_F(PreemptibleLeasesTest, OneThatIsUsedMeanwhileIsAskedAgainWhenItIsIdle) {
  const LogicalId ann = Add(kAnn);
  Add(kBob);
  Charged(Program(1, kAnn), 800_MiB);
  UsedBefore(ann, seconds(60));
  const Broker::Answer waiting = Charge(Program(2, kBob), 500_MiB, milliseconds(500));
  const std::vector<ReleaseOrder> orders = TakeOrders();
  ASSERT_EQ(orders.size(), 1u);
  Pass(milliseconds(600));
  Answer(orders[0], ReleaseOutcome::kNotIdle);
  Pass(milliseconds(1900));
  EXPECT_TRUE(TakeOrders().empty());
  Pass(milliseconds(200));
  const std::vector<ReleaseOrder> again = TakeOrders();
  ASSERT_EQ(again.size(), 1u);
  Suspend(again[0]);
  EXPECT_TRUE(IsServed(waiting));
}

TEST_F(PreemptibleLeasesTest, OneThatCannotBeMovedRestsAndTheRequestIsRefusedInItsTime) {
  const LogicalId ann = Add(kAnn);
  Add(kBob);
  Charged(Program(1, kAnn), 800_MiB);
  UsedBefore(ann, seconds(600));
  const SessionId bob = Program(2, kBob);
  const Broker::Answer waiting = Charge(bob, 500_MiB, milliseconds(500));
  const std::vector<ReleaseOrder> orders = TakeOrders();
  ASSERT_EQ(orders.size(), 1u);
  Pass(milliseconds(600));
  EXPECT_FALSE(broker_->TakeAnswer(*waiting.wait)) << "it waits longer than it asked for";
  Answer(orders[0], ReleaseOutcome::kFailed);
  Pass(milliseconds(1));
  const std::optional<Broker::Answer> refused = broker_->TakeAnswer(*waiting.wait);
  ASSERT_TRUE(refused);
  EXPECT_THAT(std::string(refused->status.message()), ::testing::HasSubstr("lease-1"));
  EXPECT_TRUE(Charge(bob, 500_MiB, milliseconds(500)).wait);
  EXPECT_TRUE(TakeOrders().empty()) << "it rests for a minute";
  Pass(seconds(60));
  EXPECT_TRUE(Charge(bob, 500_MiB, milliseconds(500)).wait);
  EXPECT_EQ(TakeOrders().size(), 1u);
}

TEST_F(PreemptibleLeasesTest, AsFewAsAreNeededAndNoneWhereAllTogetherDoNotSuffice) {
  const LogicalId ann = Add(kAnn);
  const LogicalId cyd = Add(kCyd);
  Add(kBob);
  Charged(Program(1, kAnn), 200_MiB);
  Charged(Program(3, kCyd), 500_MiB);
  Charged(Session(4, kBob), 200_MiB);
  UsedBefore(ann, seconds(20));
  UsedBefore(cyd, seconds(10));
  const SessionId bob = Program(2, kBob);
  EXPECT_TRUE(Charge(bob, 824_MiB, milliseconds(500)).wait);
  EXPECT_EQ(TakeOrders().size(), 2u);
}

TEST_F(PreemptibleLeasesTest, TheOneThatComesBackHasTheOtherSuspended) {
  const LogicalId ann = Add(kAnn);
  const LogicalId bob = Add(kBob);
  Charged(Program(1, kAnn), 800_MiB);
  UsedBefore(ann, seconds(60));
  const Broker::Answer waiting = Charge(Program(2, kBob), 500_MiB, seconds(30));
  Suspend(TakeOrders().at(0));
  ASSERT_TRUE(IsServed(waiting));
  UsedBefore(bob, {});
  const auto waker = std::make_shared<FlagWaker>();
  const WaiterId room = broker_->reservations().Queue({.card = Card(0),
                                                       .bytes = 800_MiB,
                                                       .owner = "user-1",
                                                       .waker = waker,
                                                       .preemptible = Broker::Preemptible::kIdle,
                                                       .lease = kAnn});
  EXPECT_TRUE(TakeOrders().empty()) << "the other is not idle";
  Pass(milliseconds(2100));
  const std::vector<ReleaseOrder> orders = TakeOrders();
  ASSERT_EQ(orders.size(), 1u);
  EXPECT_EQ(orders[0].lease, kBob);
  Suspend(orders[0]);
  EXPECT_TRUE(broker_->TakeAnswer(room));
  EXPECT_EQ(broker_->suspensions().TakeBack(kAnn, std::vector<WaiterId>{room}), absl::OkStatus());
  broker_->suspensions().End(kAnn);
  broker_->reservations().Leave(room);
  EXPECT_EQ(Held(ann), 800_MiB);
}

TEST_F(PreemptibleLeasesTest, ItStaysForAsLongAsTwiceItsMovesTookTwice) {
  const LogicalId ann = Add(kAnn);
  Add(kBob);
  Charged(Program(1, kAnn), 800_MiB);
  UsedBefore(ann, seconds(60));
  const SessionId bob = Program(2, kBob);
  const Broker::Answer waiting = Charge(bob, 500_MiB, seconds(30));
  const std::vector<ReleaseOrder> orders = TakeOrders();
  ASSERT_EQ(orders.size(), 1u);
  Pass(seconds(3));  // as long as the suspension took
  Suspend(orders[0]);
  ASSERT_TRUE(IsServed(waiting));
  Uncharge(bob, 500_MiB);
  ASSERT_EQ(broker_->suspensions().TakeBack(kAnn, {}), absl::OkStatus());
  broker_->suspensions().End(kAnn);
  UsedBefore(ann, {});
  EXPECT_TRUE(Charge(bob, 500_MiB, seconds(60)).wait);
  Pass(seconds(11));
  EXPECT_TRUE(TakeOrders().empty()) << "two moves take 6 s, so it must be idle for 12";
  Pass(seconds(2));
  EXPECT_EQ(TakeOrders().size(), 1u);
}

TEST_F(PreemptibleLeasesTest, OneThatGivesWayAtWorkIsSuspendedAtWorkWhenItsTurnIsOver) {
  const LogicalId ann = Add(kAnn, Broker::Preemptible::kAlways);
  Add(kBob, Broker::Preemptible::kAlways);
  Charged(Program(1, kAnn), 800_MiB);
  const Broker::Answer waiting = Charge(Program(2, kBob), 500_MiB, seconds(30));
  for (int i = 0; i < 19; ++i) {
    UsedBefore(ann, {});
    Pass(milliseconds(500));
    EXPECT_TRUE(TakeOrders().empty()) << i;
  }
  UsedBefore(ann, {});
  Pass(milliseconds(500));
  const std::vector<ReleaseOrder> orders = TakeOrders();
  ASSERT_EQ(orders.size(), 1u);
  EXPECT_TRUE(orders[0].at_work);
  Suspend(orders[0]);
  EXPECT_TRUE(IsServed(waiting));
}

TEST_F(PreemptibleLeasesTest, ARequestWaitsForATurnForAsLongAsItTakes) {
  const LogicalId ann = Add(kAnn, Broker::Preemptible::kAlways);
  Add(kBob);
  Charged(Program(1, kAnn), 800_MiB);
  UsedBefore(ann, seconds(60));
  const SessionId bob = Program(2, kBob);
  const Broker::Answer first = Charge(bob, 500_MiB, milliseconds(500));
  const std::vector<ReleaseOrder> orders = TakeOrders();
  ASSERT_EQ(orders.size(), 1u);
  Pass(seconds(20));
  Suspend(orders[0]);
  ASSERT_TRUE(IsServed(first));
  Uncharge(bob, 500_MiB);
  ASSERT_EQ(broker_->suspensions().TakeBack(kAnn, {}), absl::OkStatus());
  broker_->suspensions().End(kAnn);
  // The moves take 40 s, so the turn is 400 s.
  UsedBefore(ann, {});
  const Broker::Answer second = Charge(bob, 500_MiB, milliseconds(500));
  for (int i = 0; i < 399; ++i) {
    Pass(seconds(1));
    UsedBefore(ann, {});
    ASSERT_FALSE(broker_->TakeAnswer(*second.wait)) << i;
    ASSERT_TRUE(TakeOrders().empty()) << i;
  }
  Pass(seconds(2));
  const std::vector<ReleaseOrder> again = TakeOrders();
  ASSERT_EQ(again.size(), 1u);
  EXPECT_TRUE(again[0].at_work);
  Suspend(again[0]);
  EXPECT_TRUE(IsServed(second));
}

TEST_F(PreemptibleLeasesTest, ARequestThatWaitsForAnIdleLeaseIsRefusedInTheEnd) {
  const LogicalId ann = Add(kAnn);
  Add(kBob);
  Charged(Program(1, kAnn), 800_MiB);
  const Broker::Answer waiting = Charge(Program(2, kBob), 500_MiB, milliseconds(500));
  for (int i = 0; i < 59; ++i) {
    UsedBefore(ann, {});
    Pass(seconds(1));
    ASSERT_FALSE(broker_->TakeAnswer(*waiting.wait)) << i;
  }
  UsedBefore(ann, {});
  Pass(seconds(2));
  const std::optional<Broker::Answer> refused = broker_->TakeAnswer(*waiting.wait);
  ASSERT_TRUE(refused);
  EXPECT_FALSE(refused->status.ok());
}

TEST_F(PreemptibleLeasesTest, TwoThatWaitForEachOtherTakeTurns) {
  const LogicalId ann = Add(kAnn);
  const LogicalId bob = Add(kBob);
  const SessionId ann_program = Program(1, kAnn), bob_program = Program(2, kBob);
  Charged(ann_program, 500_MiB);
  Charged(bob_program, 500_MiB);
  UsedBefore(ann, {});
  UsedBefore(bob, {});
  const Broker::Answer first = Charge(ann_program, 300_MiB, milliseconds(500));
  const Broker::Answer second = Charge(bob_program, 300_MiB, milliseconds(500));
  ASSERT_TRUE(first.wait && second.wait);
  Pass(milliseconds(2100));
  const std::vector<ReleaseOrder> orders = TakeOrders();
  ASSERT_EQ(orders.size(), 1u);
  Suspend(orders[0]);
  const bool is_first = orders[0].lease == kBob;
  EXPECT_TRUE(IsServed(is_first ? first : second));
  EXPECT_FALSE(broker_->TakeAnswer(*(is_first ? second : first).wait)) << "it waits with its lease";
}

TEST_F(PreemptibleLeasesTest, WhoIsServedHasItsTime) {
  Add(kAnn, Broker::Preemptible::kAlways);
  const LogicalId bob = Add(kBob, Broker::Preemptible::kAlways);
  Charged(Program(1, kAnn), 800_MiB);
  const Broker::Answer waiting = Charge(Program(2, kBob), 500_MiB, milliseconds(500));
  Pass(seconds(10));
  Suspend(TakeOrders().at(0));
  ASSERT_TRUE(IsServed(waiting));
  broker_->reservations().Queue({.card = Card(0),
                                 .bytes = 800_MiB,
                                 .owner = "user-1",
                                 .preemptible = Broker::Preemptible::kAlways,
                                 .lease = kAnn});
  for (int i = 0; i < 18; ++i) {
    UsedBefore(bob, {});
    Pass(milliseconds(500));
    ASSERT_TRUE(TakeOrders().empty()) << i;
  }
  UsedBefore(bob, {});
  Pass(seconds(2));
  EXPECT_EQ(TakeOrders().size(), 1u);
}

TEST_F(PreemptibleLeasesTest, AnAttemptToSuspendALeaseGivesItNoMoreTime) {
  const LogicalId ann = Add(kAnn, Broker::Preemptible::kAlways);
  Add(kBob);
  Charged(Program(1, kAnn), 800_MiB);
  Pass(seconds(9));
  ASSERT_EQ(broker_->suspensions().Begin(kAnn), absl::OkStatus());
  broker_->suspensions().End(kAnn);
  UsedBefore(ann, {});
  EXPECT_TRUE(Charge(Program(2, kBob), 500_MiB, milliseconds(500)).wait);
  Pass(milliseconds(900));
  EXPECT_TRUE(TakeOrders().empty());
  UsedBefore(ann, {});
  Pass(milliseconds(200));
  EXPECT_EQ(TakeOrders().size(), 1u);
}

TEST_F(PreemptibleLeasesTest, WhoCannotBeMovedHasNobodyMoved) {
  const LogicalId ann = Add(kAnn);
  const LogicalId bob = Add(kBob);
  Charged(Program(1, kAnn), 700_MiB);
  UsedBefore(ann, seconds(60));
  const SessionId program = Program(2, kBob);
  ASSERT_TRUE(Grow(program, bob, 4_MiB).status.ok());
  EXPECT_TRUE(Charge(program, 500_MiB, milliseconds(500)).wait);
  EXPECT_TRUE(TakeOrders().empty()) << "it has memory through liblgpu";
}

TEST_F(PreemptibleLeasesTest, TheRequestOfASuspendedLeaseIsKnown) {
  Add(kAnn);
  const SessionId program = Program(1, kAnn);
  Charged(program, 500_MiB);
  ASSERT_EQ(broker_->suspensions().Begin(kAnn), absl::OkStatus());
  broker_->suspensions().Park(kAnn);
  EXPECT_FALSE(broker_->suspensions().Find(kAnn)->has_requests);
  EXPECT_TRUE(Charge(program, 100_MiB, milliseconds(500)).wait);
  EXPECT_TRUE(broker_->suspensions().Find(kAnn)->has_requests);
}

TEST_F(PreemptibleLeasesTest, ARequestWaitsForAMoveHoweverLongItTakes) {
  const LogicalId ann = Add(kAnn);
  Add(kBob);
  Charged(Program(1, kAnn), 800_MiB);
  UsedBefore(ann, seconds(60));
  const Broker::Answer waiting = Charge(Program(2, kBob), 500_MiB, milliseconds(500));
  const std::vector<ReleaseOrder> orders = TakeOrders();
  ASSERT_EQ(orders.size(), 1u);
  ASSERT_EQ(broker_->suspensions().Begin(kAnn), absl::OkStatus());
  for (int i = 0; i < 200; ++i) {
    Pass(seconds(1));
    ASSERT_FALSE(broker_->TakeAnswer(*waiting.wait)) << i;
  }
  broker_->suspensions().Park(kAnn);
  Answer(orders[0], ReleaseOutcome::kDone);
  EXPECT_TRUE(IsServed(waiting));
}

TEST_F(PreemptibleLeasesTest, OneThatIsIdleGivesWayBeforeOneAtWork) {
  const LogicalId ann = Add(kAnn, Broker::Preemptible::kAlways);
  const LogicalId cyd = Add(kCyd);
  Add(kBob);
  Charged(Program(1, kAnn), 500_MiB);
  Charged(Program(3, kCyd), 500_MiB);
  Pass(seconds(30));
  UsedBefore(ann, {});
  UsedBefore(cyd, seconds(2));
  EXPECT_TRUE(Charge(Program(2, kBob), 400_MiB, seconds(30)).wait);
  const std::vector<ReleaseOrder> orders = TakeOrders();
  ASSERT_EQ(orders.size(), 1u);
  EXPECT_EQ(orders[0].lease, kCyd);
}

TEST_F(PreemptibleLeasesTest, AProgramOfLiblgpuIsNotMoved) {
  const LogicalId ann = Add(kAnn);
  Add(kBob);
  const SessionId program = Program(1, kAnn);
  ASSERT_TRUE(Grow(program, ann, 800_MiB).status.ok());
  UsedBefore(ann, seconds(60));
  EXPECT_TRUE(Charge(Program(2, kBob), 500_MiB, seconds(5)).wait);
  EXPECT_TRUE(TakeOrders().empty());
}

}  // namespace
}  // namespace lgpu
