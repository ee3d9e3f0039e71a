#include "allocator/broker/pending_requests.h"

#include <gtest/gtest.h>

#include <chrono>
#include <deque>

#include "lgpu/bytes.h"
#include "lgpu/refusal.h"
#include "tests/allocator/broker/requests_fixture.h"

namespace lgpu {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

class PendingRequestsTest : public RequestsFixture {
 protected:
  PendingRequestsTest() {
    AddSession(kSecond, 101);
    AddSession(kThird, 102);
  }
  std::deque<WaiterId> LimitLine() const { return tables_.devices.at(device_).limit_waiters; }

  static constexpr SessionId kSecond{2}, kThird{3};
  const LogicalId device_ = AddDevice(64_MiB);
};

TEST_F(PendingRequestsTest, ARequestThatFitsIsChargedAndItsChunksAreToBeMade) {
  const Asked asked = Place(kSession, device_, 10_MiB);
  ASSERT_TRUE(asked.making);
  Bytes sum;
  for (const Bytes size : asked.making->sizes) sum += size;
  EXPECT_EQ(sum, 10_MiB);
  EXPECT_EQ(asked.request.booked, 10_MiB);
  EXPECT_TRUE(waiting_.waiters.empty());
  ExpectInStep();
}

TEST_F(PendingRequestsTest, ARequestWaitsUntilItsDeadlineAndIsThenRefused) {
  const LogicalId other = AddDevice(240_MiB);
  Hold(kSecond, other, 240_MiB);
  Asked asked = Place(kSession, device_, 32_MiB, seconds(3));
  ASSERT_EQ(asked.answer.wait, asked.id);
  EXPECT_LE(clock_.Next(), now_ + seconds(3));
  now_ += milliseconds(2999);
  ASSERT_TRUE(Continue(asked.id).answer.wait);
  now_ += milliseconds(1);
  asked = Continue(asked.id);
  EXPECT_FALSE(asked.answer.wait);
  ASSERT_TRUE(GetRefusal(asked.answer.status)) << asked.answer.status;
  EXPECT_EQ(GetRefusal(asked.answer.status)->reason, RefusalReason::kCard);
  EXPECT_EQ(tables_.counters.refusals, 1u);
  EXPECT_TRUE(absl::IsFailedPrecondition(Continue(asked.id).answer.status)) << "it is over";
  ExpectInStep();
}

TEST_F(PendingRequestsTest, AWithdrawnRequestLeavesItsQueueAndItsTurnAndTheNextOneIsServed) {
  const LogicalId other = AddDevice(240_MiB);
  Hold(kSecond, other, 240_MiB);
  const Asked large = Place(kSession, device_, 32_MiB);
  ASSERT_TRUE(waiting_.queues.at(card_).turn());
  const Asked behind = Place(kThird, device_, 8_MiB);
  ASSERT_TRUE(behind.answer.wait) << "the turn keeps the free memory for the large one";
  clock_.Withdraw(large.id);
  const Asked over = Continue(large.id);
  EXPECT_FALSE(over.answer.wait);
  EXPECT_TRUE(absl::IsCancelled(over.answer.status)) << over.answer.status;
  EXPECT_TRUE(Continue(behind.id).making);
  EXPECT_TRUE(waiting_.queues.at(card_).empty());
  EXPECT_EQ(tables_.counters.refusals, 0u);
  clock_.Withdraw(large.id);  // it is over: nothing happens
  ExpectInStep();
}

TEST_F(PendingRequestsTest, AWithdrawnRequestThatIsChargedAlreadyIsServed) {
  const LogicalId other = AddDevice(240_MiB);
  const ChunkId chunk = Hold(kSecond, other, 240_MiB);
  const Asked asked = Place(kSession, device_, 32_MiB);
  StartReturning(chunk);
  Confirm(chunk);
  scheduler_.Serve(card_);
  clock_.Withdraw(asked.id);
  EXPECT_TRUE(Continue(asked.id).making) << "its session gives the chunks back";
  ExpectInStep();
}

TEST_F(PendingRequestsTest, AWithdrawnRequestThatTheBackendPutOffIsOver) {
  Asked asked = Place(kSession, device_, 10_MiB);
  admission_.Leave(asked.id, asked.request);
  requests_.PutOff(asked.id, asked.request);
  Hold(kSecond, AddDevice(250_MiB), 250_MiB);
  clock_.Withdraw(asked.id);
  EXPECT_TRUE(absl::IsCancelled(Continue(asked.id).answer.status));
  ExpectInStep();
}

TEST_F(PendingRequestsTest, ARequestThatTheBackendPutOffIsAdmittedAgainLaterAndNotSooner) {
  Asked asked = Place(kSession, device_, 10_MiB);
  admission_.Leave(asked.id, asked.request);
  requests_.PutOff(asked.id, asked.request);
  EXPECT_FALSE(Continue(asked.id).making);
  now_ = clock_.Next();
  EXPECT_TRUE(Continue(asked.id).making);
  ExpectInStep();
}

TEST_F(PendingRequestsTest, TheRequestsOfASessionThatEndsLeaveTheirLines) {
  const ChunkId chunk = Hold(kSecond, device_, 60_MiB);
  StartReturning(chunk);
  const Asked limit = Place(kSession, device_, 32_MiB);
  const Asked behind = Place(kThird, device_, 34_MiB);
  ASSERT_EQ(LimitLine(), (std::deque<WaiterId>{limit.id, behind.id}));
  requests_.Drop(kSession);
  EXPECT_EQ(LimitLine(), std::deque<WaiterId>{behind.id});
  EXPECT_TRUE(absl::IsFailedPrecondition(Continue(limit.id).answer.status));
  EXPECT_TRUE(tables_.sessions.at(kSession).waiting.empty());
  ExpectInStep();
}

TEST_F(PendingRequestsTest, ARequestThatAsksForIdleMemoryAgainKeepsItsPlaceUnderTheLimit) {
  tables_.sessions.at(kSecond).trims = true;
  Hold(kSecond, device_, 64_MiB);
  const Asked first = Place(kSession, device_, 10_MiB);
  const Asked second = Place(kThird, device_, 10_MiB);
  ASSERT_EQ(LimitLine(), (std::deque<WaiterId>{first.id, second.id}));
  now_ = clock_.Next();
  EXPECT_TRUE(Continue(first.id).answer.wait);
  EXPECT_EQ(LimitLine(), (std::deque<WaiterId>{first.id, second.id}));
}

TEST_F(PendingRequestsTest, WhatARequestAskedForItsCardDoesNotMoveItUnderTheLimit) {
  const ChunkId chunk = Hold(kSession, device_, 4_MiB);
  const LogicalId other = AddDevice(240_MiB);
  Hold(kSecond, other, 240_MiB);
  const Asked first = Place(kSession, device_, 32_MiB);
  const Asked second = Place(kThird, device_, 34_MiB);
  ASSERT_TRUE(waiting_.queues.at(card_).turn());
  StartReturning(chunk);
  EXPECT_TRUE(tables_.ledger.Resize(device_, {.limit = 34_MiB}).ok());
  scheduler_.Serve(card_);
  ASSERT_EQ(LimitLine(), (std::deque<WaiterId>{first.id, second.id}));
  now_ += seconds(1);
  EXPECT_TRUE(Continue(first.id).answer.wait);
  EXPECT_EQ(LimitLine(), (std::deque<WaiterId>{first.id, second.id}));
}

}  // namespace
}  // namespace lgpu
