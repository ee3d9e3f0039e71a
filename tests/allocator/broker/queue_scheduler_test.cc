#include "allocator/broker/queue_scheduler.h"

#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <vector>

#include "lgpu/bytes.h"
#include "lgpu/refusal.h"
#include "tests/allocator/broker/requests_fixture.h"

namespace lgpu {
namespace {

// Three sessions on a card of 256 MiB, each with a growing device of its own user.
class QueueSchedulerTest : public RequestsFixture {
 protected:
  QueueSchedulerTest() {
    AddSession(kSecond, 101);
    AddSession(kThird, 102);
    const std::vector<std::string> owners = {"ann", "bob", "cyd"};
    for (const std::string& owner : owners) {
      devices_.push_back(AddDevice(256_MiB));
      tables_.devices.at(devices_.back()).spec.owner = owner;
    }
  }
  std::vector<WaiterId> Order() const { return waiting_.queues.at(card_).Order(); }
  bool IsTurnOf(WaiterId id) const {
    return waiting_.queues.at(card_).turn() && waiting_.queues.at(card_).turn()->of == id;
  }

  static constexpr SessionId kSecond{2}, kThird{3};
  std::vector<LogicalId> devices_;
};

TEST_F(QueueSchedulerTest, MemoryThatBecomesFreeServesTheFirstRequestOfEachUser) {
  const ChunkId chunk = Hold(kThird, devices_[2], 256_MiB);
  const Asked ann = Place(kSession, devices_[0], 64_MiB);
  const Asked ann_too = Place(kSession, devices_[0], 64_MiB);
  const Asked bob = Place(kSecond, devices_[1], 160_MiB);
  StartReturning(chunk);
  Confirm(chunk);
  scheduler_.Serve(card_);
  EXPECT_TRUE(Continue(ann.id).making);
  EXPECT_TRUE(Continue(bob.id).making);
  EXPECT_TRUE(Continue(ann_too.id).answer.wait);
  EXPECT_EQ(Order(), std::vector<WaiterId>{ann_too.id});
  ExpectInStep();
}

TEST_F(QueueSchedulerTest, ATurnHoldsBackARequestThatWouldFit) {
  Hold(kThird, devices_[2], 192_MiB);
  const Asked large = Place(kSession, devices_[0], 128_MiB);
  EXPECT_TRUE(IsTurnOf(large.id));
  const Asked small = Place(kSecond, devices_[1], 32_MiB);
  ASSERT_TRUE(small.answer.wait);
  const std::vector<Broker::Queued> queue = scheduler_.QueueOf(card_);
  ASSERT_EQ(queue.size(), 2u);
  EXPECT_EQ(queue[0].owner, "ann");
  EXPECT_EQ(queue[0].asked, 128_MiB);
  EXPECT_EQ(queue[0].turn_ends, now_ + waiting_.max_drain);
  EXPECT_FALSE(queue[1].turn_ends);
  now_ += waiting_.max_drain;
  clock_.Tick();
  EXPECT_TRUE(Continue(small.id).making);
  EXPECT_EQ(scheduler_.QueueOf(card_)[0].turns, 1);
}

TEST_F(QueueSchedulerTest, WhereAllHoldersWaitTheYoungestRequestIsRefused) {
  Hold(kSession, devices_[0], 128_MiB);
  Hold(kSecond, devices_[1], 128_MiB);
  const Asked first = Place(kSession, devices_[0], 32_MiB);
  ASSERT_TRUE(first.answer.wait);
  const Asked second = Place(kSecond, devices_[1], 32_MiB);
  ASSERT_TRUE(GetRefusal(second.answer.status)) << second.answer.status;
  EXPECT_EQ(GetRefusal(second.answer.status)->reason, RefusalReason::kDeadlock);
  EXPECT_EQ(Order(), std::vector<WaiterId>{first.id});
}

TEST_F(QueueSchedulerTest, MemoryThatIsLeavingCountsOnceForATurn) {
  StartReturning(Hold(kThird, devices_[2], 60_MiB));
  Hold(kSession, devices_[0], 60_MiB);
  Hold(kSecond, devices_[1], 60_MiB);
  // Each has the 76 MiB that are free and the 60 MiB that are leaving in reach: the other one waits too.
  const Asked first = Place(kSession, devices_[0], 160_MiB);
  now_ += waiting_.max_drain;  // while it was alone it had a turn
  const Asked second = Place(kSecond, devices_[1], 160_MiB);
  now_ += waiting_.max_drain;
  scheduler_.Serve(card_);
  ASSERT_EQ(Order().size(), 2u);
  EXPECT_FALSE(waiting_.queues.at(card_).turn());
  EXPECT_TRUE(Place(kThird, devices_[2], 64_MiB).making) << "no turn in vain holds it back";
}

TEST_F(QueueSchedulerTest, MemoryThatASessionReturnsIsInReachOfItsOwnRequest) {
  StartReturning(Hold(kSession, devices_[0], 128_MiB));
  Hold(kSecond, devices_[1], 128_MiB);
  const Asked second = Place(kSecond, devices_[1], 128_MiB);
  EXPECT_TRUE(IsTurnOf(second.id));
  const Asked first = Place(kSession, devices_[0], 64_MiB);
  ASSERT_TRUE(first.answer.wait);
  now_ += waiting_.max_drain;
  scheduler_.Serve(card_);
  now_ += waiting_.max_drain;
  scheduler_.Serve(card_);
  EXPECT_TRUE(IsTurnOf(first.id)) << "its user is first of the ring";
}

TEST_F(QueueSchedulerTest, MemoryThatLeavesInsideAGuaranteeIsWorthNoWaiting) {
  const LogicalId guaranteed = AddDevice(64_MiB, true);
  StartReturning(Hold(kSecond, guaranteed, 64_MiB));
  tables_.sessions.at(kThird).trims = true;
  Hold(kThird, devices_[2], 192_MiB);
  Asked asked = Place(kSession, devices_[0], 32_MiB, std::chrono::milliseconds(0));
  ASSERT_TRUE(asked.answer.wait) << "for idle memory of the third session";
  const std::vector<TrimOrder> orders = trims_.TakeOrders(kThird);
  ASSERT_EQ(orders.size(), 1u);
  EXPECT_EQ(orders[0].bytes, 32_MiB);
  ASSERT_TRUE(trims_.Answer(kThird, orders[0].id, /*pending=*/false).ok());
  scheduler_.Serve(card_);
  EXPECT_FALSE(Continue(asked.id).answer.wait) << "no memory comes back to the card";
}

}  // namespace
}  // namespace lgpu
