#include "allocator/broker/card_queue.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace lgpu {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr WaiterId kOne{1}, kTwo{2}, kThree{3}, kFour{4};

class CardQueueTest : public ::testing::Test {
 protected:
  CardQueue queue_{seconds(2)};
  CardQueue::TimePoint now_{seconds(1000)};
};

TEST_F(CardQueueTest, UsersAreServedInTurnAndTheRequestsOfEachInOrder) {
  queue_.Join(kOne, "kim");
  queue_.Join(kTwo, "kim");
  queue_.Join(kThree, "lee");
  queue_.Join(kFour, "kim");
  EXPECT_THAT(queue_.Order(), ElementsAre(kOne, kThree, kTwo, kFour));
  queue_.NoteServed(kOne);
  queue_.Leave(kOne, now_);
  EXPECT_THAT(queue_.Order(), ElementsAre(kThree, kTwo, kFour)) << "kim was served";
  queue_.Leave(kThree, now_);
  queue_.Join(kThree, "lee");
  EXPECT_THAT(queue_.Order(), ElementsAre(kTwo, kThree, kFour));
  for (const WaiterId id : {kTwo, kThree, kFour}) queue_.Leave(id, now_);
  EXPECT_TRUE(queue_.empty());
  EXPECT_THAT(queue_.Order(), IsEmpty());
}

TEST_F(CardQueueTest, AUserWhoseRequestLeavesUnservedKeepsItsPlaceUnlessItHadATurn) {
  queue_.Join(kOne, "kim");
  queue_.Join(kTwo, "kim");
  queue_.Join(kThree, "kim");
  queue_.Join(kFour, "lee");
  queue_.Leave(kOne, now_);
  EXPECT_THAT(queue_.Order(), ElementsAre(kTwo, kFour, kThree));
  queue_.StartTurn(kTwo, now_);
  queue_.Leave(kTwo, now_);
  EXPECT_THAT(queue_.Order(), ElementsAre(kFour, kThree));
}

TEST_F(CardQueueTest, ATurnHoldsBackEveryOtherRequestAndLastsAtMostItsTime) {
  queue_.Join(kOne, "kim");
  queue_.Join(kTwo, "lee");
  EXPECT_FALSE(queue_.HoldsBack(kTwo));
  EXPECT_EQ(queue_.NextChange(now_), std::nullopt);
  queue_.StartTurn(kOne, now_);
  EXPECT_FALSE(queue_.HoldsBack(kOne));
  EXPECT_TRUE(queue_.HoldsBack(kTwo));
  EXPECT_TRUE(queue_.HoldsBack(kThree)) << "a request that does not wait yet";
  EXPECT_EQ(queue_.NextChange(now_), now_ + seconds(2));
  EXPECT_FALSE(queue_.IsTurnOver(now_ + milliseconds(1999)));
  EXPECT_TRUE(queue_.IsTurnOver(now_ + seconds(2)));
}

TEST_F(CardQueueTest, AfterATurnItsRequestIsLastOfItsUserAndItsUserLastOfTheRing) {
  queue_.Join(kOne, "kim");
  queue_.Join(kTwo, "kim");
  queue_.Join(kThree, "lee");
  queue_.StartTurn(kOne, now_);
  queue_.EndTurn(now_ + seconds(2));
  EXPECT_FALSE(queue_.HoldsBack(kThree));
  EXPECT_THAT(queue_.Order(), ElementsAre(kThree, kTwo, kOne));
  EXPECT_EQ(queue_.TurnsOf(kOne), 1);
  EXPECT_EQ(queue_.TurnsOf(kTwo), 0);
}

TEST_F(CardQueueTest, TheRestLastsAsLongAsTheTurnDid) {
  queue_.Join(kOne, "kim");
  queue_.StartTurn(kOne, now_);
  queue_.EndTurn(now_ + milliseconds(300));
  EXPECT_FALSE(queue_.MayStartTurn(now_ + milliseconds(599)));
  EXPECT_EQ(queue_.NextChange(now_ + milliseconds(400)), now_ + milliseconds(600));
  EXPECT_TRUE(queue_.MayStartTurn(now_ + milliseconds(600)));
  EXPECT_EQ(queue_.NextChange(now_ + milliseconds(600)), std::nullopt);
}

TEST_F(CardQueueTest, ATurnThatIsLookedAtLateLastedNoLonger) {
  queue_.Join(kOne, "kim");
  queue_.StartTurn(kOne, now_);
  queue_.EndTurn(now_ + seconds(9));
  EXPECT_TRUE(queue_.MayStartTurn(now_ + seconds(9)));
}

TEST_F(CardQueueTest, ARequestThatLeavesEndsItsTurn) {
  queue_.Join(kOne, "kim");
  queue_.Join(kTwo, "lee");
  queue_.StartTurn(kOne, now_);
  queue_.Leave(kOne, now_ + seconds(1));
  EXPECT_FALSE(queue_.turn().has_value());
  EXPECT_FALSE(queue_.HoldsBack(kTwo));
  EXPECT_FALSE(queue_.MayStartTurn(now_ + milliseconds(1500)))
      << "coming back at once is no way past the rest";
  EXPECT_THAT(queue_.Order(), ElementsAre(kTwo));
}

}  // namespace
}  // namespace lgpu
