// The work of a session's background thread for the daemon: trims and snapshots.

#include "client/session/memory_session.h"

#include <gmock/gmock.h>

#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "proto/wire/channel.h"
#include "proto/wire/session_messages.h"
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
  void Ask(std::uint64_t id, std::uint32_t page, std::uint32_t cells = 0) {
    const std::lock_guard lock(log_->mutex);
    log_->questions.push_back({.snapshot_id = id, .device_id = 1, .page = page, .cells = cells});
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

TEST_F(MemorySessionTest, AMapHasTheSumsOfTheBlocksAndTheirOps) {
  for (int i = 0; i < 100; ++i) {
    ASSERT_TRUE(session_.memory(0).Allocate(Bytes(1024), {.op = i % 4 == 0 ? "AddN" : "MatMul"}).ok());
  }
  ASSERT_TRUE(session_.memory(0).Allocate(Bytes(512)).ok());
  session_.StartUpkeep();
  Ask(7, 0, 50);
  const wire::SnapshotPage page = AwaitPages(1)[0];
  EXPECT_EQ(page.code, 0) << page.message;
  EXPECT_FALSE(page.more);
  EXPECT_FALSE(page.blocks.has_value());
  ASSERT_TRUE(page.map.has_value());
  EXPECT_THAT(page.op_names, ElementsAre("MatMul", "AddN", ""));
  EXPECT_THAT(page.map->op_bytes, ElementsAre(75 * 1024, 25 * 1024, 512));
  EXPECT_GE(page.map->held_bytes, page.region->used_bytes);
  EXPECT_LE(page.map->held_bytes, page.region->held_bytes) << "mapped memory is held";
  ASSERT_FALSE(page.map->used.empty());
  EXPECT_LE(page.map->used.size(), 50u);
  std::uint64_t used = 0, blocks = 0;
  for (std::size_t i = 0; i < page.map->used.size(); ++i) {
    used += page.map->used[i];
    blocks += page.map->blocks[i];
    EXPECT_EQ(page.map->used[i] == 0, page.map->op[i] == 0);
  }
  EXPECT_EQ(used, page.region->used_bytes);
  EXPECT_EQ(blocks, 101u);
}

TEST_F(MemorySessionTest, AMapThatIsLongerThanAFrameComesInPages) {
  for (int i = 0; i < 10'000; ++i) {
    const std::string op = std::to_string(i % 1000) + std::string(150, 'x');
    ASSERT_TRUE(session_.memory(0).Allocate(Bytes(512), {.op = op}).ok());
  }
  session_.StartUpkeep();
  std::vector<std::string> names;
  std::uint64_t used = 0, told = 0;
  bool more = true;
  for (std::uint32_t page = 0; more; ++page) {
    Ask(7, page, 5000);
    const wire::SnapshotPage answer = AwaitPages(page + 1)[page];
    ASSERT_EQ(answer.code, 0) << answer.message;
    EXPECT_LE(wire::Encode(wire::Frame{.body = answer}).size(), wire::Protocol::kMaxFrameBytes);
    more = answer.more;
    names.insert(names.end(), answer.op_names.begin(), answer.op_names.end());
    ASSERT_TRUE(answer.map.has_value());
    for (const std::uint64_t bytes : answer.map->op_bytes) told += bytes;
    for (const std::uint64_t bytes : answer.map->used) used += bytes;
    if (!answer.map->used.empty()) {
      EXPECT_EQ(names.size(), 1000u) << "a cell came before all names";
    }
  }
  EXPECT_GT(AwaitPages(1).size(), 2u);
  EXPECT_EQ(used, 10'000u * 512);
  EXPECT_EQ(told, used);
}

}  // namespace
}  // namespace lgpu
