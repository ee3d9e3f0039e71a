// The work of a session's background thread for the daemon: trims and snapshots.

#include "client/session/memory_session.h"

#include <gmock/gmock.h>

#include <chrono>
#include <thread>

#include "tests/client/fake_lease.h"

namespace lgpu {
namespace {

using ::testing::ElementsAre;
using testing::FakeLease;
using testing::FakeLeaseLog;
using ::testing::HasSubstr;

class MemorySessionTest : public ::testing::Test {
 protected:
  ~MemorySessionTest() override { EXPECT_TRUE(session_.Close().ok()); }
  void Ask(std::uint64_t id, std::uint32_t page) {
    const std::lock_guard lock(log_->mutex);
    log_->questions.push_back({.snapshot_id = id, .device_id = 1, .page = page});
  }
  void Fail(std::vector<absl::Status> sends) {
    const std::lock_guard lock(log_->mutex);
    log_->sends = std::move(sends);
  }
  std::vector<wire::SnapshotPage> AwaitPages(std::size_t count) {
    session_.lease().WakeMaintenance();
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (std::chrono::steady_clock::now() < end) {
      {
        const std::lock_guard lock(log_->mutex);
        if (log_->pages.size() >= count) return log_->pages;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    ADD_FAILURE() << "no page came";
    return std::vector<wire::SnapshotPage>(count);
  }

  const std::shared_ptr<FakeLeaseLog> log_ = std::make_shared<FakeLeaseLog>();
  MemorySession session_{std::make_unique<FakeLease>(testing::FakeLeaseOptions{}, log_)};
};

TEST_F(MemorySessionTest, APageThatTheDaemonDidNotTakeIsSentAgain) {
  ASSERT_TRUE(session_.memory(0).Allocate(Bytes(5000)).ok());
  Fail({absl::DeadlineExceededError("it does not read"), absl::AbortedError("no memory for a frame")});
  session_.StartUpkeep();
  Ask(7, 0);
  const std::vector<wire::SnapshotPage> pages = AwaitPages(1);
  EXPECT_EQ(pages[0].snapshot_id, 7u);
  EXPECT_EQ(pages[0].code, 0) << pages[0].message;
  ASSERT_TRUE(pages[0].blocks.has_value());
  EXPECT_EQ(pages[0].blocks->bytes.size(), 1u);
  Ask(8, 0);
  EXPECT_EQ(AwaitPages(2)[1].snapshot_id, 8u);
  const std::lock_guard lock(log_->mutex);
  EXPECT_THAT(log_->order, ElementsAre("failed page", "failed page", "page", "page"));
}

TEST_F(MemorySessionTest, APageForADaemonThatIsGoneIsNotSentToTheNextOne) {
  Fail({absl::UnavailableError("the daemon was started again")});
  session_.StartUpkeep();
  Ask(7, 0);
  Ask(1, 0);  // of the next daemon
  const std::vector<wire::SnapshotPage> pages = AwaitPages(1);
  EXPECT_EQ(pages[0].snapshot_id, 1u);
}

TEST_F(MemorySessionTest, APageThatCannotBeSentIsAnError) {
  Fail({absl::InternalError("sendmsg on a session: odd")});
  session_.StartUpkeep();
  Ask(7, 0);
  const std::vector<wire::SnapshotPage> pages = AwaitPages(1);
  EXPECT_EQ(pages[0].snapshot_id, 7u);
  EXPECT_EQ(pages[0].code, static_cast<int>(absl::StatusCode::kInternal));
  EXPECT_THAT(pages[0].message, HasSubstr("odd"));
}

TEST_F(MemorySessionTest, ATrimThatComesBetweenTwoPagesIsAnsweredBeforeTheSecond) {
  for (int i = 0; i < 10'000; ++i) ASSERT_TRUE(session_.memory(0).Allocate(Bytes(512)).ok());
  session_.StartUpkeep();
  Ask(7, 0);
  ASSERT_TRUE(AwaitPages(1)[0].more);
  {
    const std::lock_guard lock(log_->mutex);
    log_->trims.push_back({.id = TrimId{3}, .device = LogicalId{1}, .bytes = Bytes(1)});
    log_->questions.push_back({.snapshot_id = 7, .device_id = 1, .page = 1});
  }
  (void)AwaitPages(2);
  const std::lock_guard lock(log_->mutex);
  EXPECT_THAT(log_->order, ElementsAre("page", "trim", "page"));
}

}  // namespace
}  // namespace lgpu
