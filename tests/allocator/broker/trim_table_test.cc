#include "allocator/broker/trim_table.h"

#include <gtest/gtest.h>

#include <chrono>

namespace lgpu {
namespace {

using std::chrono::milliseconds;
using TimePoint = TrimTable::TimePoint;

constexpr Bytes kMiB(std::uint64_t{1} << 20);
constexpr SessionId kOne{1};
constexpr SessionId kTwo{2};
constexpr LogicalId kDevice{7};
const TimePoint kStart = TimePoint() + std::chrono::hours(1);

class TrimTableTest : public ::testing::Test {
 protected:
  std::vector<TrimTable::Holder> Holders() const {
    return {{.session = kOne, .device = kDevice, .bytes = kMiB * 8},
            {.session = kTwo, .device = kDevice, .bytes = kMiB * 32}};
  }
  // What `session` is asked for, which is one thing.
  TrimOrder Order(SessionId session) {
    const std::vector<TrimOrder> orders = table_.Take(session);
    EXPECT_EQ(orders.size(), 1u);
    return orders.empty() ? TrimOrder() : orders.front();
  }

  TrimTable table_;
  TrimTable::Need need_;
};

TEST_F(TrimTableTest, AsksTheLargestHolderFirstAndTheNextOnlyAfterItsAnswer) {
  TrimTable::Asked asked = table_.Ask(need_, Holders(), kMiB * 10, kStart);
  EXPECT_TRUE(asked.hope);
  EXPECT_EQ(asked.session, kTwo);
  const TrimOrder first = Order(kTwo);
  EXPECT_EQ(first.device, kDevice);
  EXPECT_EQ(first.bytes, kMiB * 10);
  asked = table_.Ask(need_, Holders(), kMiB * 10, kStart + milliseconds(1));
  EXPECT_TRUE(asked.hope);
  EXPECT_FALSE(asked.session.has_value());

  EXPECT_EQ(*table_.Answer(kTwo, first.id, /*pending=*/false, kStart + milliseconds(2)), kDevice);
  asked = table_.Ask(need_, Holders(), kMiB * 9, kStart + milliseconds(2));
  EXPECT_EQ(asked.session, kOne);
  const TrimOrder second = Order(kOne);
  EXPECT_EQ(second.bytes, kMiB * 8) << "more than it holds helps nobody";
  EXPECT_TRUE(table_.IsHopeful(need_, Holders()));
  EXPECT_TRUE(table_.Answer(kOne, second.id, false, kStart + milliseconds(3)).ok());
  EXPECT_FALSE(table_.IsHopeful(need_, Holders()));
  asked = table_.Ask(need_, Holders(), kMiB * 9, kStart + milliseconds(3));
  EXPECT_FALSE(asked.hope);
  EXPECT_FALSE(asked.session.has_value());
}

TEST_F(TrimTableTest, OneThatDoesNotAnswerKeepsHopeButNotTheOthersFromBeingAsked) {
  EXPECT_EQ(table_.Ask(need_, Holders(), kMiB, kStart).session, kTwo);
  EXPECT_EQ(need_.look_again, kStart + TrimTable::kPatience);
  const TrimTable::Asked asked = table_.Ask(need_, Holders(), kMiB, need_.look_again);
  EXPECT_EQ(asked.session, kOne);
  EXPECT_TRUE(table_.Answer(kOne, Order(kOne).id, false, kStart + milliseconds(30)).ok());
  EXPECT_TRUE(table_.IsHopeful(need_, Holders())) << "the first answer is still to come";
  EXPECT_FALSE(table_.Ask(need_, Holders(), kMiB, kStart + milliseconds(50)).session.has_value());
}

TEST_F(TrimTableTest, WhoHasSomethingPendingIsAskedAgainSoon) {
  EXPECT_EQ(table_.Ask(need_, {Holders()[1]}, kMiB, kStart).session, kTwo);
  EXPECT_TRUE(table_.Answer(kTwo, Order(kTwo).id, /*pending=*/true, kStart).ok());
  TrimTable::Asked asked = table_.Ask(need_, {Holders()[1]}, kMiB, kStart + milliseconds(1));
  EXPECT_TRUE(asked.hope);
  EXPECT_FALSE(asked.session.has_value());
  asked = table_.Ask(need_, {Holders()[1]}, kMiB, kStart + TrimTable::kPatience);
  EXPECT_EQ(asked.session, kTwo);
}

TEST_F(TrimTableTest, WhoStillNeedsMemoryAsksAllAgainLater) {
  EXPECT_EQ(table_.Ask(need_, {Holders()[1]}, kMiB, kStart).session, kTwo);
  EXPECT_TRUE(table_.Answer(kTwo, Order(kTwo).id, false, kStart).ok());
  EXPECT_FALSE(table_.Ask(need_, {Holders()[1]}, kMiB, kStart + milliseconds(20)).hope);
  const TimePoint again = need_.look_again;
  EXPECT_FALSE(table_.Ask(need_, {Holders()[1]}, kMiB, kStart + milliseconds(30)).hope);
  EXPECT_EQ(need_.look_again, again) << "a look in between does not put the next round off";
  EXPECT_EQ(table_.Ask(need_, {Holders()[1]}, kMiB, again).session, kTwo);
}

TEST_F(TrimTableTest, AnAnswerFromBeforeDoesNotCountForANewNeed) {
  EXPECT_EQ(table_.Ask(need_, {Holders()[1]}, kMiB, kStart).session, kTwo);
  const TrimOrder open = Order(kTwo);
  TrimTable::Need later;
  EXPECT_TRUE(table_.Ask(later, {Holders()[1]}, kMiB, kStart + milliseconds(1)).hope);
  EXPECT_TRUE(table_.Answer(kTwo, open.id, false, kStart + milliseconds(2)).ok());
  EXPECT_FALSE(table_.IsHopeful(need_, {Holders()[1]}));
  EXPECT_EQ(table_.Ask(later, {Holders()[1]}, kMiB, kStart + milliseconds(2)).session, kTwo);
}

TEST_F(TrimTableTest, WhoIsSlowDoesNotPutTheNextRoundOffForTheOthers) {
  TimePoint now = kStart;
  int asked_one = 0;
  for (; now < kStart + std::chrono::seconds(2); now = std::max(need_.look_again, now + milliseconds(1))) {
    if (table_.Ask(need_, Holders(), kMiB, now).session == kOne) {
      ++asked_one;
      EXPECT_TRUE(table_.Answer(kOne, Order(kOne).id, false, now).ok());
    }
  }
  EXPECT_GE(asked_one, 5) << "kTwo never answers";
}

TEST_F(TrimTableTest, WhoGaveAllThatItWasAskedForMayHaveMore) {
  std::vector<TrimTable::Holder> holders = {Holders()[1]};
  EXPECT_EQ(table_.Ask(need_, holders, kMiB * 8, kStart).session, kTwo);
  EXPECT_TRUE(table_.Answer(kTwo, Order(kTwo).id, false, kStart).ok());
  holders[0].bytes -= kMiB * 8;
  EXPECT_TRUE(table_.IsHopeful(need_, holders));
  EXPECT_EQ(table_.Ask(need_, holders, kMiB * 2, kStart).session, kTwo);
  EXPECT_TRUE(table_.Answer(kTwo, Order(kTwo).id, false, kStart).ok());
  EXPECT_FALSE(table_.Ask(need_, holders, kMiB * 2, kStart).hope) << "now it gave nothing";
}

TEST_F(TrimTableTest, AnAnswerCountsForWhoAskedOnly) {
  const std::vector<TrimTable::Holder> holders = {Holders()[1]};
  TrimTable::Need second;
  TrimTable::Need third;
  EXPECT_EQ(table_.Ask(need_, holders, kMiB, kStart).session, kTwo);
  EXPECT_TRUE(table_.Ask(second, holders, kMiB, kStart).hope);
  EXPECT_TRUE(table_.Ask(third, holders, kMiB, kStart).hope);
  EXPECT_TRUE(table_.Answer(kTwo, Order(kTwo).id, false, kStart).ok());
  EXPECT_EQ(table_.Ask(second, holders, kMiB, kStart).session, kTwo);
  EXPECT_TRUE(table_.Answer(kTwo, Order(kTwo).id, false, kStart).ok());
  EXPECT_TRUE(table_.IsHopeful(third, holders));
  EXPECT_EQ(table_.Ask(third, holders, kMiB, kStart).session, kTwo);
}

TEST_F(TrimTableTest, WrongAnswersAndForgottenHolders) {
  EXPECT_EQ(table_.Ask(need_, Holders(), kMiB, kStart).session, kTwo);
  const TrimOrder open = Order(kTwo);
  EXPECT_TRUE(absl::IsInvalidArgument(table_.Answer(kOne, open.id, false, kStart).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(table_.Answer(kTwo, TrimId{99}, false, kStart).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(table_.Answer(kTwo, TrimId{}, false, kStart).status()));
  table_.Forget(kTwo);
  EXPECT_TRUE(absl::IsInvalidArgument(table_.Answer(kTwo, open.id, false, kStart).status()));
  EXPECT_TRUE(table_.AskAlso(Holders()[0], kMiB, kStart));
  EXPECT_FALSE(table_.AskAlso(Holders()[0], kMiB, kStart)) << "it is asked already";
  table_.Forget(kOne);
  EXPECT_TRUE(table_.Take(kOne).empty());
}

TEST_F(TrimTableTest, AnOverdueOrderIsToldOnceAndKeepsNoHope) {
  EXPECT_EQ(table_.Ask(need_, {Holders()[1]}, kMiB, kStart).session, kTwo);
  const TrimOrder order = Order(kTwo);
  EXPECT_TRUE(table_.TakeOverdue(kStart + TrimTable::kOverdue - milliseconds(1)).empty());
  EXPECT_TRUE(table_.IsHopeful(need_, {Holders()[1]}));
  const TimePoint late = kStart + TrimTable::kOverdue;
  const std::vector<TrimTable::Overdue> overdue = table_.TakeOverdue(late);
  ASSERT_EQ(overdue.size(), 1u);
  EXPECT_EQ(overdue[0].session, kTwo);
  EXPECT_EQ(overdue[0].asked, kMiB);
  EXPECT_TRUE(table_.TakeOverdue(late + std::chrono::hours(1)).empty());
  EXPECT_TRUE(table_.Ignores(kTwo));
  EXPECT_FALSE(table_.Ignores(kOne));
  EXPECT_FALSE(table_.IsHopeful(need_, {Holders()[1]}));
  EXPECT_FALSE(table_.Ask(need_, {Holders()[1]}, kMiB, late).hope);
  EXPECT_EQ(table_.Ask(need_, Holders(), kMiB, late).session, kOne) << "the others are asked as ever";

  // A late answer counts, and the holder can be asked again.
  EXPECT_TRUE(table_.Answer(kTwo, order.id, false, late).ok());
  EXPECT_FALSE(table_.Ignores(kTwo));
  TrimTable::Need another;
  EXPECT_TRUE(table_.Ask(another, {Holders()[1]}, kMiB, late).session.has_value());
}

TEST_F(TrimTableTest, AnAnswerIsFoundByItsOrder) {
  const TrimId first = table_.AskAlso(Holders()[0], kMiB, kStart);
  ASSERT_TRUE(first);
  EXPECT_FALSE(table_.AskAlso(Holders()[0], kMiB, kStart)) << "one order at a time";
  EXPECT_FALSE(table_.AnswerTo(kOne, kDevice, first).has_value());
  EXPECT_TRUE(table_.Answer(kOne, Order(kOne).id, /*pending=*/true, kStart).ok());
  EXPECT_TRUE(table_.AnswerTo(kOne, kDevice, first)->pending);
  const TrimId second = table_.AskAlso(Holders()[0], kMiB, kStart);
  EXPECT_FALSE(table_.AnswerTo(kOne, kDevice, second).has_value());
  table_.Forget(kOne);
  EXPECT_FALSE(table_.AnswerTo(kOne, kDevice, second)->pending) << "a holder that is gone has answered";
  EXPECT_EQ(table_.orders(), 2u);
}

}  // namespace
}  // namespace lgpu
