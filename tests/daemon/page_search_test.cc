#include "daemon/recovery/page_search.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <map>
#include <memory>
#include <vector>

#include "tests/daemon/daemon_parts.h"
#include "tests/daemon/temporary_directory.h"

namespace lgpu::daemon {
namespace {

using std::chrono::milliseconds;

constexpr std::uint32_t kUser = 61301;
constexpr std::uint32_t kOther = 61302;

/// Two sessions of this process, which maps the pages of all, and one of each child, which map none.
class PageSearchTest : public ::testing::Test {
 protected:
  using Answers = std::map<SessionId, bool>;

  const TemporaryDirectory directory_;
  DaemonParts parts_{directory_.path()};
  IdleChild first_, second_;
  const std::vector<std::shared_ptr<SessionState>> sessions_ = {
      parts_.AddSession(kUser, *HoldProcess(::getpid()), 1),
      parts_.AddSession(kUser, *HoldProcess(::getpid()), 2), parts_.AddSession(kUser, first_.Hold(), 3),
      parts_.AddSession(kOther, second_.Hold(), 4)};
};

TEST_F(PageSearchTest, OneLookWithinItsBudgetAnswersForAll) {
  PageSearch search({.budget = std::chrono::hours(1), .pause = 0});
  EXPECT_EQ(
      search.Look(sessions_),
      (Answers{{SessionId{1}, true}, {SessionId{2}, true}, {SessionId{3}, false}, {SessionId{4}, false}}));
}

TEST_F(PageSearchTest, BeyondTheBudgetOneProcessIsReadAndUsersTakeTurns) {
  PageSearch search({.budget = milliseconds(0), .pause = 0});
  Answers all;
  std::vector<std::size_t> counts;
  for (int look = 0; look < 3; ++look) {
    const Answers answers = search.Look(sessions_);
    counts.push_back(answers.size());
    EXPECT_EQ(answers.contains(SessionId{4}), look == 1) << "the other user's process is the second one";
    EXPECT_EQ(answers.contains(SessionId{1}), answers.contains(SessionId{2})) << "one reading for both";
    all.insert(answers.begin(), answers.end());
  }
  EXPECT_EQ(all.size(), sessions_.size());
  EXPECT_EQ(counts[0] + counts[1] + counts[2], sessions_.size()) << "each process is read once";
}

TEST_F(PageSearchTest, ALookIsFollowedByAPause) {
  PageSearch search({.budget = std::chrono::hours(1), .pause = 1'000'000'000});
  EXPECT_EQ(search.Look(sessions_).size(), sessions_.size());
  EXPECT_TRUE(search.Look(sessions_).empty());
}

TEST_F(PageSearchTest, AProcessThatIsGoneHasNoAnswer) {
  second_.Kill();
  EXPECT_FALSE(PageSearch().Look(sessions_).contains(SessionId{4}));
}

}  // namespace
}  // namespace lgpu::daemon
