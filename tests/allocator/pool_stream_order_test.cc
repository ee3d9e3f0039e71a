#include <gtest/gtest.h>

#include <optional>

#include "allocator/pool/stream_order.h"

namespace lgpu {
namespace {

TEST(StreamOrderTest, NumbersOfStampsDoNotRunOut) {
  StreamOrder order(StreamOrder::kManyStamps);
  EXPECT_EQ(order.SmallerBy(), order.passed()) << "nothing is closed";
  order.NoteFree(StreamOrder::Only(0));
  const std::optional<StreamOrder::Closing> closing = order.Close();
  ASSERT_TRUE(closing);
  EXPECT_EQ(order.SmallerBy(), 0u) << "somebody will say that it was recorded";
  order.Recorded(closing->stamp, {{0, 7}});
  const std::optional<StreamOrder::Waiting> waiting = order.Oldest();
  ASSERT_TRUE(waiting);
  order.NoteOrdered(3, closing->stamp, order.rebases());
  order.Passed(*waiting);
  order.Park(11, 1, StreamOrder::Only(2), 8);
  const std::uint32_t by = order.SmallerBy();
  EXPECT_EQ(by, closing->stamp);
  const std::uint64_t before = order.rebases();
  order.Rebase(by);
  EXPECT_EQ(order.passed(), 0u);
  EXPECT_EQ(order.stamp(), 1u);
  EXPECT_FALSE(order.IsOrdered(3, 1)) << "what is freed now";
  order.NoteOrdered(3, closing->stamp, before);
  EXPECT_FALSE(order.IsOrdered(3, 1)) << "a number of before is nobody's";
  order.Passed(*waiting);
  EXPECT_EQ(order.passed(), 0u);
  EXPECT_FALSE(order.NextReady());
  const std::optional<StreamOrder::Closing> next = order.Close();
  ASSERT_TRUE(next);
  order.Recorded(next->stamp, {{2, 1}});
  order.Passed(*order.Oldest());
  EXPECT_TRUE(order.NextReady()) << "what waits goes on waiting, and ends";
  EXPECT_TRUE(order.IsOrdered(3, 1));
}

TEST(StreamOrderTest, UnpassedStampsAreAlsoRenumbered) {
  StreamOrder order(StreamOrder::kManyStamps);
  order.NoteFree(StreamOrder::Only(0));
  const StreamOrder::Closing closing = *order.Close();
  order.Recorded(closing.stamp, {{0, 7}});
  const StreamOrder::Waiting before = *order.Oldest();
  ASSERT_GT(order.SmallerBy(), 0u) << "a load without a pause";
  order.Rebase(order.SmallerBy());
  EXPECT_EQ(order.passed(), 0u);
  order.Passed(before);
  EXPECT_FALSE(order.IsOrdered(3, 1)) << "that was about another number";
  const StreamOrder::Waiting after = *order.Oldest();
  EXPECT_EQ(after.stamp, 1u);
  EXPECT_EQ(after.fences.size(), 1u);
  order.Passed(after);
  EXPECT_TRUE(order.IsOrdered(3, 1));
  EXPECT_FALSE(order.has_batches());
}

}  // namespace
}  // namespace lgpu
