#include "allocator/broker/giving_way.h"

#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <vector>

#include "lgpu/bytes.h"
#include "lgpu/refusal.h"
#include "tests/allocator/broker/requests_fixture.h"

namespace lgpu {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

// A card of 256 MiB. Leases "ann", "bob" and "cyd" have a program each (sessions 1 to 3) with a growing
// device, and sessions 11 to 13 run their release hooks where a test says so.
class GivingWayTest : public RequestsFixture {
 protected:
  GivingWayTest() {
    const std::vector<std::string> names = {"ann", "bob", "cyd"};
    for (std::uint64_t i = 0; i < names.size(); ++i) {
      AddSession(Program(i), static_cast<std::int64_t>(100 + i));
      tables_.sessions[Program(i)].lease = LeaseKey{i + 1};
      tables_.sessions[Program(i)].waits_longer = true;
      devices_.push_back(AddDevice(256_MiB));
      DeviceEntry& device = tables_.devices.at(devices_.back());
      device.spec.lease = LeaseKey{i + 1};
      device.spec.lease_name = names[i];
      device.spec.owner = names[i];
      device.last_use = now_ - seconds(60);
    }
  }
  static SessionId Program(std::uint64_t i) { return SessionId{i + 1}; }
  static SessionId Runner(std::uint64_t i) { return SessionId{i + 11}; }
  void AddHook(std::uint64_t i) {
    AddSession(Runner(i), static_cast<std::int64_t>(200 + i));
    tables_.sessions[Runner(i)].lease = LeaseKey{i + 1};
    tables_.sessions[Runner(i)].runs_release = true;
  }
  Asked Ask(std::uint64_t i, Bytes bytes, milliseconds timeout = seconds(2)) {
    return Place(Program(i), devices_[i], bytes, timeout);
  }
  /// The program of a lease frees a chunk.
  void Free(ChunkId chunk) {
    StartReturning(chunk);
    Confirm(chunk);
    scheduler_.Serve(card_);
  }
  void Answer(std::uint64_t i, const ReleaseOrder& order, ReleaseOutcome outcome) {
    const auto card = giving_way_.Answer(Runner(i), order.id, outcome);
    ASSERT_TRUE(card.ok()) << card.status();
    if (*card) scheduler_.Serve(**card);
  }
  void Pass(Broker::TimePoint::duration time) {
    now_ += time;
    clock_.Tick();
  }
  bool IsRefused(WaiterId id) {
    Asked asked = Continue(id);
    return GetRefusal(asked.answer.status).has_value();
  }

  std::vector<LogicalId> devices_;
};

TEST_F(GivingWayTest, AnIdleLeaseIsAskedAndTheRequestWaitsLongerThanItAskedFor) {
  AddHook(0);
  const ChunkId chunk = Hold(Program(0), devices_[0], 200_MiB);
  const Asked bob = Ask(1, 100_MiB);
  ASSERT_TRUE(bob.answer.wait);
  const std::vector<ReleaseOrder> orders = giving_way_.TakeOrders(Runner(0));
  ASSERT_EQ(orders.size(), 1u);
  EXPECT_EQ(orders[0].lease, LeaseKey{1});
  EXPECT_EQ(orders[0].bytes, 44_MiB);
  EXPECT_EQ(orders[0].limit, waiting_.give_way_wait);
  EXPECT_TRUE(giving_way_.TakeOrders(Runner(0)).empty());
  Pass(seconds(20));
  EXPECT_TRUE(Continue(bob.id).answer.wait) << "the request waits while a lease gives way";
  Free(chunk);
  EXPECT_TRUE(Continue(bob.id).making);
  EXPECT_FALSE(giving_way_.HasHead(card_));
  ExpectInStep();
}

TEST_F(GivingWayTest, AViewNamesTheRequestUntilTheLeaseHasAnswered) {
  AddHook(0);
  Hold(Program(0), devices_[0], 256_MiB);
  EXPECT_TRUE(giving_way_.Views().empty());
  Ask(1, 100_MiB);
  const std::vector<ReleaseOrder> orders = giving_way_.TakeOrders(Runner(0));
  ASSERT_EQ(orders.size(), 1u);
  const std::vector<GivingWayView> views = giving_way_.Views();
  ASSERT_EQ(views.size(), 1u);
  EXPECT_EQ(views[0].lease, LeaseKey{1});
  EXPECT_EQ(views[0].for_owner, "bob");
  EXPECT_EQ(views[0].for_lease, "bob");
  EXPECT_EQ(views[0].for_pid, 101);
  Answer(0, orders[0], ReleaseOutcome::kDone);
  EXPECT_TRUE(giving_way_.Views().empty());
}

TEST_F(GivingWayTest, WhatAnAskedLeaseGivesIsTheHeadsAlone) {
  AddHook(0);
  const ChunkId first = Hold(Program(0), devices_[0], 128_MiB);
  const ChunkId second = Hold(Program(0), devices_[0], 128_MiB);
  const Asked bob = Ask(1, 200_MiB);
  Pass(waiting_.max_drain);  // its turn is over
  Free(first);
  EXPECT_EQ(View().free(), Bytes());
  const Asked cyd = Ask(2, 20_MiB);
  ASSERT_TRUE(cyd.answer.wait) << "the free memory is set aside for bob";
  ExpectInStep();
  Free(second);
  EXPECT_TRUE(Continue(bob.id).making);
  EXPECT_TRUE(Continue(cyd.id).making) << "what bob does not need is for all";
  ExpectInStep();
}

TEST_F(GivingWayTest, WhereAllThatCanBeAskedDoNotSufficeNoneIsAsked) {
  AddHook(0);
  Hold(Program(0), devices_[0], 56_MiB);
  Hold(Program(2), devices_[2], 200_MiB);
  const Asked bob = Ask(1, 100_MiB);
  Pass(milliseconds(1500));
  EXPECT_TRUE(giving_way_.TakeOrders(Runner(0)).empty());
  Pass(milliseconds(500));
  EXPECT_TRUE(IsRefused(bob.id));
}

TEST_F(GivingWayTest, TheLongestIdleIsAskedAndNoneThatIsNotNeeded) {
  AddHook(0);
  AddHook(2);
  Hold(Program(0), devices_[0], 56_MiB);
  Hold(Program(2), devices_[2], 200_MiB);
  tables_.devices.at(devices_[0]).last_use = now_ - seconds(90);
  Ask(1, 50_MiB);
  EXPECT_EQ(giving_way_.TakeOrders(Runner(0)).size(), 1u) << "it suffices";
  EXPECT_TRUE(giving_way_.TakeOrders(Runner(2)).empty());
}

TEST_F(GivingWayTest, ALongerIdleLeaseThatIsTooSmallIsLeftOut) {
  AddHook(0);
  AddHook(2);
  Hold(Program(0), devices_[0], 56_MiB);
  Hold(Program(2), devices_[2], 200_MiB);
  tables_.devices.at(devices_[0]).last_use = now_ - seconds(90);
  Ask(1, 180_MiB);
  EXPECT_EQ(giving_way_.TakeOrders(Runner(2)).size(), 1u);
  EXPECT_TRUE(giving_way_.TakeOrders(Runner(0)).empty());
}

TEST_F(GivingWayTest, TheHooksOfALeaseTakeTurns) {
  AddHook(0);
  const SessionId second{21};
  AddSession(second, 300);
  tables_.sessions[second].runs_release = true;
  Hold(Program(0), devices_[0], 256_MiB);
  Ask(1, 100_MiB);
  const std::vector<ReleaseOrder> orders = giving_way_.TakeOrders(Runner(0));
  ASSERT_EQ(orders.size(), 1u);
  EXPECT_TRUE(giving_way_.TakeOrders(second).empty()) << "one hook for one request";
  Answer(0, orders[0], ReleaseOutcome::kNotIdle);
  Ask(1, 100_MiB);
  EXPECT_EQ(giving_way_.TakeOrders(second).size(), 1u);
  EXPECT_TRUE(giving_way_.TakeOrders(Runner(0)).empty());
}

TEST_F(GivingWayTest, ALeaseInUseIsAskedAsSoonAsItIsIdle) {
  AddHook(0);
  Hold(Program(0), devices_[0], 256_MiB);
  tables_.devices.at(devices_[0]).last_use = std::nullopt;
  Ask(1, 100_MiB);
  EXPECT_TRUE(giving_way_.TakeOrders(Runner(0)).empty()) << "it cannot tell when it was used";
  tables_.devices.at(devices_[0]).last_use = now_;
  Pass(milliseconds(900));
  EXPECT_TRUE(giving_way_.TakeOrders(Runner(0)).empty());
  Pass(milliseconds(200));
  EXPECT_EQ(giving_way_.TakeOrders(Runner(0)).size(), 1u);
}

TEST_F(GivingWayTest, ALeaseIsAskedWhenItHasBeenIdleForAsLongAsItsOwnerSaid) {
  AddHook(0);
  Hold(Program(0), devices_[0], 256_MiB);
  tables_.devices.at(devices_[0]).last_use = now_;
  tables_.devices.at(devices_[0]).idle_after = seconds(10);
  tables_.sessions.at(Runner(0)).release.took = seconds(20);
  Ask(1, 100_MiB, seconds(30));
  Pass(seconds(10) - milliseconds(1));
  EXPECT_TRUE(giving_way_.TakeOrders(Runner(0)).empty());
  Pass(milliseconds(1) + GivingWay::kLookEvery);
  EXPECT_EQ(giving_way_.TakeOrders(Runner(0)).size(), 1u) << "the time that its hook took does not count";
}

TEST_F(GivingWayTest, ALeaseThatWaitsItselfIsNotAsked) {
  AddHook(0);
  Hold(Program(0), devices_[0], 128_MiB);
  Hold(Program(2), devices_[2], 128_MiB);
  const Asked ann = Ask(0, 64_MiB, std::chrono::hours(1));
  ASSERT_TRUE(ann.answer.wait);
  Ask(1, 100_MiB);
  EXPECT_TRUE(giving_way_.TakeOrders(Runner(0)).empty());
}

TEST_F(GivingWayTest, ARequestWithTimeout0AndAnOldProgramMakeNobodyGiveWay) {
  AddHook(0);
  Hold(Program(0), devices_[0], 256_MiB);
  EXPECT_FALSE(Ask(1, 100_MiB, milliseconds(0)).answer.wait);
  tables_.sessions.at(Program(2)).waits_longer = false;
  EXPECT_TRUE(Ask(2, 100_MiB).answer.wait);
  EXPECT_TRUE(giving_way_.TakeOrders(Runner(0)).empty());
}

TEST_F(GivingWayTest, AfterAHookThatFailedTheRequestIsRefusedAtItsOwnTimeAndTheLeaseRests) {
  AddHook(0);
  Hold(Program(0), devices_[0], 256_MiB);
  const Asked bob = Ask(1, 100_MiB);
  const std::vector<ReleaseOrder> orders = giving_way_.TakeOrders(Runner(0));
  ASSERT_EQ(orders.size(), 1u);
  Pass(seconds(10));
  Answer(0, orders[0], ReleaseOutcome::kFailed);
  clock_.Tick();
  const Asked refused = Continue(bob.id);
  const std::optional<Refusal> refusal = GetRefusal(refused.answer.status);
  ASSERT_TRUE(refusal) << refused.answer.status;
  ASSERT_FALSE(refusal->advice.empty());
  EXPECT_EQ(refusal->advice[0], "ask for less: lease ann was asked to give way and gave 0B");
  Ask(1, 100_MiB);
  Pass(seconds(1));
  EXPECT_TRUE(giving_way_.TakeOrders(Runner(0)).empty()) << "it rests";
  Pass(GivingWay::kFirstRest);
  Ask(1, 100_MiB);
  EXPECT_EQ(giving_way_.TakeOrders(Runner(0)).size(), 1u);
}

TEST_F(GivingWayTest, MemoryThatComesALittleAfterTheHooksEndServesTheHead) {
  AddHook(0);
  const ChunkId chunk = Hold(Program(0), devices_[0], 256_MiB);
  const Asked bob = Ask(1, 100_MiB);
  const std::vector<ReleaseOrder> orders = giving_way_.TakeOrders(Runner(0));
  ASSERT_EQ(orders.size(), 1u);
  Pass(seconds(3));
  Answer(0, orders[0], ReleaseOutcome::kDone);
  Pass(GivingWay::kSettle - seconds(1));
  ASSERT_TRUE(Continue(bob.id).answer.wait);
  Free(chunk);
  EXPECT_TRUE(Continue(bob.id).making);
  const std::vector<GivingWayNews> news = giving_way_.TakeNews();
  ASSERT_EQ(news.size(), 2u);
  EXPECT_EQ(news[0].what, GivingWayNews::What::kServed);
  EXPECT_EQ(news[0].lease, LeaseKey{2});
  EXPECT_EQ(news[1].what, GivingWayNews::What::kGave);
  EXPECT_EQ(news[1].lease, LeaseKey{1});
  EXPECT_EQ(news[1].bytes, 256_MiB);
}

TEST_F(GivingWayTest, WhatWasSetAsideIsFreeAgainWhenItsRequestLeavesAndWhenNothingMoreComes) {
  AddHook(0);
  const ChunkId first = Hold(Program(0), devices_[0], 128_MiB);
  Hold(Program(0), devices_[0], 128_MiB);
  const Asked bob = Ask(1, 200_MiB);
  Free(first);
  ASSERT_EQ(View().free(), Bytes());
  clock_.Withdraw(bob.id);
  EXPECT_EQ(View().free(), 128_MiB);
  ExpectInStep();
}

TEST_F(GivingWayTest, NothingStaysSetAsideForAHeadThatNobodyGivesWayForAnyMore) {
  AddHook(0);
  const ChunkId first = Hold(Program(0), devices_[0], 128_MiB);
  Hold(Program(0), devices_[0], 128_MiB);
  Ask(1, 200_MiB, std::chrono::hours(1));
  const std::vector<ReleaseOrder> orders = giving_way_.TakeOrders(Runner(0));
  ASSERT_EQ(orders.size(), 1u);
  Free(first);
  Answer(0, orders[0], ReleaseOutcome::kDone);
  Pass(GivingWay::kSettle);
  EXPECT_EQ(View().free(), 128_MiB);
  ExpectInStep();
}

TEST_F(GivingWayTest, ACardHasOneHeadAndTheNextRequestFollowsIt) {
  AddHook(0);
  const ChunkId chunk = Hold(Program(0), devices_[0], 128_MiB);
  const ChunkId rest = Hold(Program(0), devices_[0], 128_MiB);
  const Asked bob = Ask(1, 120_MiB, seconds(30));
  const Asked cyd = Ask(2, 120_MiB, seconds(30));
  EXPECT_EQ(giving_way_.TakeOrders(Runner(0)).size(), 1u);
  Free(chunk);
  EXPECT_TRUE(Continue(bob.id).making);
  ASSERT_TRUE(Continue(cyd.id).answer.wait);
  EXPECT_EQ(giving_way_.TakeOrders(Runner(0)).size(), 1u) << "it has memory still, for the next head";
  Free(rest);
  EXPECT_TRUE(Continue(cyd.id).making);
}

TEST_F(GivingWayTest, TheEndOfASessionThatRunsAHookEndsTheWaiting) {
  AddHook(0);
  Hold(Program(0), devices_[0], 256_MiB);
  const Asked bob = Ask(1, 100_MiB);
  ASSERT_TRUE(bob.answer.wait);
  trims_.Stop(Runner(0));
  Pass(seconds(2));
  EXPECT_TRUE(IsRefused(bob.id));
}

TEST_F(GivingWayTest, CountersTellWhatCameOfAsksAndHowLongRequestsWaited) {
  AddHook(0);
  const ChunkId chunk = Hold(Program(0), devices_[0], 256_MiB);
  const Asked bob = Ask(1, 100_MiB);
  std::vector<ReleaseOrder> orders = giving_way_.TakeOrders(Runner(0));
  ASSERT_EQ(orders.size(), 1u);
  EXPECT_EQ(giving_way_.counters().asks, 1u);
  Pass(seconds(3));
  Answer(0, orders[0], ReleaseOutcome::kFailed);
  Pass(seconds(0));
  EXPECT_TRUE(IsRefused(bob.id));
  EXPECT_EQ(giving_way_.counters().in_vain, 1u);
  EXPECT_EQ(giving_way_.counters().gave, 0u);
  EXPECT_EQ(giving_way_.counters().waited, seconds(3));
  Pass(GivingWay::kFirstRest);
  Ask(1, 100_MiB);
  orders = giving_way_.TakeOrders(Runner(0));
  ASSERT_EQ(orders.size(), 1u);
  Pass(seconds(2));
  Free(chunk);
  const GivingWayCounters counters = giving_way_.counters();
  EXPECT_EQ(counters.asks, 2u);
  EXPECT_EQ(counters.gave, 1u);
  EXPECT_EQ(counters.in_vain, 1u);
  EXPECT_EQ(counters.bytes, 256_MiB);
  EXPECT_EQ(counters.waited, seconds(5));
}

TEST_F(GivingWayTest, ARequestThatIsGivenUpPaysForAsLongAsItMadeALeaseGiveWay) {
  AddHook(0);
  AddHook(2);
  Hold(Program(0), devices_[0], 128_MiB);
  Hold(Program(2), devices_[2], 128_MiB);
  const Asked bob = Ask(1, 20_MiB);
  ASSERT_EQ(giving_way_.TakeOrders(Runner(0)).size(), 1u);
  Pass(seconds(7));
  clock_.Withdraw(bob.id);
  Ask(1, 20_MiB, seconds(30));
  Pass(seconds(7) - milliseconds(1));
  EXPECT_TRUE(giving_way_.TakeOrders(Runner(2)).empty()) << "it pays";
  Pass(milliseconds(1) + GivingWay::kLookEvery);
  EXPECT_EQ(giving_way_.TakeOrders(Runner(2)).size(), 1u) << "it has paid";
}

TEST_F(GivingWayTest, ThePriceIsASecondAtLeast) {
  AddHook(0);
  AddHook(2);
  Hold(Program(0), devices_[0], 128_MiB);
  Hold(Program(2), devices_[2], 128_MiB);
  clock_.Withdraw(Ask(1, 20_MiB).id);
  Ask(1, 20_MiB, seconds(30));
  Pass(AskerAccounts::kLeastPaid - milliseconds(1));
  EXPECT_TRUE(giving_way_.TakeOrders(Runner(2)).empty());
  Pass(milliseconds(1) + GivingWay::kLookEvery);
  EXPECT_EQ(giving_way_.TakeOrders(Runner(2)).size(), 1u);
}

TEST_F(GivingWayTest, AProgramThatEndsPaysAndANewOneOfItsUserPaysInItsPlace) {
  AddHook(0);
  AddHook(2);
  Hold(Program(0), devices_[0], 128_MiB);
  Hold(Program(2), devices_[2], 128_MiB);
  Ask(1, 20_MiB);
  ASSERT_EQ(giving_way_.TakeOrders(Runner(0)).size(), 1u);
  Pass(seconds(7));
  requests_.Drop(Program(1));
  AddSession(SessionId{21}, 300);
  tables_.sessions[SessionId{21}].lease = LeaseKey{9};
  tables_.sessions[SessionId{21}].waits_longer = true;
  const LogicalId device = AddDevice(256_MiB);
  tables_.devices.at(device).spec.lease = LeaseKey{9};
  tables_.devices.at(device).spec.owner = "bob";
  Place(SessionId{21}, device, 20_MiB, seconds(30));
  EXPECT_TRUE(giving_way_.TakeOrders(Runner(2)).empty()) << "the new lease is of the same user";
  Pass(seconds(7) + GivingWay::kLookEvery);
  EXPECT_EQ(giving_way_.TakeOrders(Runner(2)).size(), 1u);
}

TEST_F(GivingWayTest, OtherUsersDoNotPay) {
  AddHook(0);
  Hold(Program(0), devices_[0], 256_MiB);
  const Asked bob = Ask(1, 20_MiB);
  const std::vector<ReleaseOrder> orders = giving_way_.TakeOrders(Runner(0));
  ASSERT_EQ(orders.size(), 1u);
  Pass(seconds(7));
  clock_.Withdraw(bob.id);
  Answer(0, orders[0], ReleaseOutcome::kNotIdle);
  Ask(2, 20_MiB);
  EXPECT_EQ(giving_way_.TakeOrders(Runner(0)).size(), 1u);
}

TEST_F(GivingWayTest, WithoutAUserTheLeasePays) {
  AddHook(0);
  AddHook(2);
  Hold(Program(0), devices_[0], 128_MiB);
  Hold(Program(2), devices_[2], 128_MiB);
  for (const LogicalId device : devices_) tables_.devices.at(device).spec.owner.clear();
  const Asked bob = Ask(1, 20_MiB);
  ASSERT_EQ(giving_way_.TakeOrders(Runner(0)).size(), 1u);
  Pass(seconds(7));
  clock_.Withdraw(bob.id);
  Ask(1, 20_MiB, seconds(30));
  EXPECT_TRUE(giving_way_.TakeOrders(Runner(2)).empty());
  AddSession(SessionId{21}, 300);
  tables_.sessions[SessionId{21}].lease = LeaseKey{9};
  tables_.sessions[SessionId{21}].waits_longer = true;
  const LogicalId device = AddDevice(256_MiB);
  tables_.devices.at(device).spec.lease = LeaseKey{9};
  Place(SessionId{21}, device, 20_MiB, seconds(30));
  EXPECT_EQ(giving_way_.TakeOrders(Runner(2)).size(), 1u) << "another lease does not pay";
}

TEST_F(GivingWayTest, RequestsThatAreServedOrRefusedCostNothing) {
  AddHook(0);
  AddHook(2);
  const ChunkId chunk = Hold(Program(0), devices_[0], 128_MiB);
  Hold(Program(2), devices_[2], 128_MiB);
  const Asked served = Ask(1, 20_MiB);
  ASSERT_EQ(giving_way_.TakeOrders(Runner(0)).size(), 1u);
  Pass(seconds(7));
  Free(chunk);
  ASSERT_TRUE(Continue(served.id).making);
  const Asked refused = Ask(1, 140_MiB);
  const std::vector<ReleaseOrder> orders = giving_way_.TakeOrders(Runner(2));
  ASSERT_EQ(orders.size(), 1u) << "the one that was served cost nothing";
  Pass(seconds(7));
  Answer(2, orders[0], ReleaseOutcome::kNotIdle);
  ASSERT_TRUE(IsRefused(refused.id));
  Ask(1, 140_MiB);
  EXPECT_EQ(giving_way_.TakeOrders(Runner(2)).size(), 1u) << "the one that was refused cost nothing";
}

TEST_F(GivingWayTest, ALeaseThatIsNotMadeAfterAllPays) {
  AddHook(0);
  AddHook(2);
  Hold(Program(0), devices_[0], 128_MiB);
  Hold(Program(2), devices_[2], 128_MiB);
  const auto make = [&] {
    Waiter waiter;
    waiter.spec = {.session = {},
                   .device = {},
                   .at_least = 20_MiB,
                   .wanted = {},
                   .asked_at = now_,
                   .deadline = Broker::TimePoint::max()};
    waiter.card = card_;
    waiter.user = "dan";
    waiter.guarantee = {.what = GuaranteeWish::For::kReservation,
                        .spec = {.card = card_, .limit = 20_MiB, .lease = {}, .lease_name = "new"},
                        .size = {.limit = 20_MiB, .guarantee = 20_MiB}};
    const WaiterId id = waiting_.NewWaiter();
    EXPECT_FALSE(requests_.Settle(id, waiter));
    return id;
  };
  const WaiterId first = make();
  ASSERT_EQ(giving_way_.TakeOrders(Runner(0)).size(), 1u);
  Pass(seconds(7));
  clock_.Withdraw(first);
  make();
  EXPECT_TRUE(giving_way_.TakeOrders(Runner(2)).empty());
  Pass(seconds(7) + GivingWay::kLookEvery);
  EXPECT_EQ(giving_way_.TakeOrders(Runner(2)).size(), 1u);
}

TEST_F(GivingWayTest, AnAnswerToAnotherSessionsOrderIsAnError) {
  AddHook(0);
  Hold(Program(0), devices_[0], 256_MiB);
  Ask(1, 100_MiB);
  const std::vector<ReleaseOrder> orders = giving_way_.TakeOrders(Runner(0));
  ASSERT_EQ(orders.size(), 1u);
  EXPECT_TRUE(
      absl::IsInvalidArgument(giving_way_.Answer(Program(2), orders[0].id, ReleaseOutcome::kDone).status()));
  EXPECT_TRUE(
      absl::IsInvalidArgument(giving_way_.Answer(Runner(0), ReleaseId{99}, ReleaseOutcome::kDone).status()));
}

TEST_F(GivingWayTest, ALeaseThatWasUsedMeanwhileDoesNotRest) {
  AddHook(0);
  Hold(Program(0), devices_[0], 256_MiB);
  const Asked bob = Ask(1, 100_MiB);
  const std::vector<ReleaseOrder> orders = giving_way_.TakeOrders(Runner(0));
  ASSERT_EQ(orders.size(), 1u);
  Answer(0, orders[0], ReleaseOutcome::kNotIdle);
  Pass(seconds(2));
  const Asked refused = Continue(bob.id);
  const std::optional<Refusal> refusal = GetRefusal(refused.answer.status);
  ASSERT_TRUE(refusal) << refused.answer.status;
  EXPECT_EQ(refusal->advice[0], "ask again: lease ann may give way, and was in use");
  Ask(1, 100_MiB);
  EXPECT_EQ(giving_way_.TakeOrders(Runner(0)).size(), 1u);
}

TEST_F(GivingWayTest, AGuaranteeThatWaitsForALeaseIsServedFromWhatWasGivenForIt) {
  AddHook(0);
  const ChunkId chunk = Hold(Program(0), devices_[0], 256_MiB);
  Waiter waiter;
  waiter.spec = {.session = {},
                 .device = {},
                 .at_least = 100_MiB,
                 .wanted = {},
                 .asked_at = now_,
                 .deadline = Broker::TimePoint::max()};
  waiter.card = card_;
  waiter.user = "dan";
  waiter.guarantee = {.what = GuaranteeWish::For::kReservation,
                      .spec = {.card = card_, .limit = 100_MiB, .lease = {}, .lease_name = "new"},
                      .size = {.limit = 100_MiB, .guarantee = 100_MiB}};
  const WaiterId id = waiting_.NewWaiter();
  ASSERT_FALSE(requests_.Settle(id, waiter));
  ASSERT_EQ(giving_way_.TakeOrders(Runner(0)).size(), 1u);
  Free(chunk);
  EXPECT_EQ(waiting_.waiters.at(id).phase, Waiter::Phase::kServed);
  EXPECT_EQ(View().free(), 156_MiB) << "its bytes are set aside until the lease is made";
  ExpectInStep();
}

}  // namespace
}  // namespace lgpu
