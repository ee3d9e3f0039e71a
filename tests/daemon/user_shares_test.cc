#include "daemon/server/user_shares.h"

#include <gtest/gtest.h>

namespace lgpu::daemon {
namespace {

std::size_t TakeAll(UserShares& shares, std::uint32_t uid) {
  std::size_t taken = 0;
  while (shares.TryTake(uid)) ++taken;
  return taken;
}

TEST(UserSharesTest, OneUserGetsHalfAndEachNewUserHalfOfTheRest) {
  UserShares shares(64);
  EXPECT_EQ(TakeAll(shares, 1), 32u);
  EXPECT_EQ(TakeAll(shares, 2), 16u);
  EXPECT_EQ(TakeAll(shares, 3), 8u);
  EXPECT_FALSE(shares.HasRoom(1));
  EXPECT_TRUE(shares.HasRoom(4));
}

TEST(UserSharesTest, UsersThatTakeTurnsGetEqualShares) {
  UserShares shares(100);
  for (bool any = true; any;) {
    any = false;
    for (const std::uint32_t uid : {1u, 2u, 3u}) any = shares.TryTake(uid) || any;
  }
  for (const std::uint32_t uid : {1u, 2u, 3u}) EXPECT_EQ(shares.CountOf(uid), 25u);
}

TEST(UserSharesTest, APlaceThatIsGivenBackMayBeTakenAgain) {
  UserShares shares(2);
  ASSERT_TRUE(shares.TryTake(1));
  ASSERT_FALSE(shares.TryTake(1));
  shares.GiveBack(1);
  EXPECT_EQ(shares.CountOf(1), 0u);
  EXPECT_TRUE(shares.TryTake(1));
}

TEST(UserSharesTest, MorePlacesThanThereAreStopEveryUserUntilTheyAreGivenBack) {
  UserShares shares(10);
  shares.Take(1, 20);
  EXPECT_FALSE(shares.HasRoom(2));
  shares.GiveBack(1, 15);
  EXPECT_TRUE(shares.HasRoom(2));
  EXPECT_FALSE(shares.HasRoom(1));
}

}  // namespace
}  // namespace lgpu::daemon
