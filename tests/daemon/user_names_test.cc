#include "daemon/leases/user_names.h"

#include <gtest/gtest.h>

#include "daemon/leases/users.h"

namespace lgpu::daemon {
namespace {

TEST(UserNamesTest, TheSystemIsAskedOnceInTheLifeOfAName) {
  int asked = 0;
  const UserNames names([&asked](std::uint32_t uid) {
    ++asked;
    return "user" + std::to_string(uid) + "." + std::to_string(asked);
  });
  const UserNames::Clock::time_point start{};
  EXPECT_EQ(names.NameOf(7, start), "user7.1");
  EXPECT_EQ(names.NameOf(7, start + UserNames::kLife - std::chrono::seconds(1)), "user7.1");
  EXPECT_EQ(names.NameOf(8, start), "user8.2");
  EXPECT_EQ(names.NameOf(7, start + UserNames::kLife), "user7.3");
  EXPECT_EQ(asked, 3);
}

TEST(UserNamesTest, ManyUsersTakeNoMoreMemoryThanItsBound) {
  std::size_t asked = 0;
  const UserNames names([&asked](std::uint32_t) { return std::to_string(++asked); });
  const UserNames::Clock::time_point start{};
  for (std::uint32_t uid = 0; uid < UserNames::kMost; ++uid) names.NameOf(uid, start);
  EXPECT_EQ(names.NameOf(0, start), "1");
  names.NameOf(UserNames::kMost, start);
  EXPECT_EQ(names.NameOf(0, start), std::to_string(UserNames::kMost + 2)) << "the others were forgotten";
}

TEST(UserNamesTest, WithoutAnythingElseItAsksTheSystem) { EXPECT_EQ(UserNames().NameOf(0), UserName(0)); }

}  // namespace
}  // namespace lgpu::daemon
