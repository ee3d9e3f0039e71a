// At the limit: which requests wait for other threads of the program.

#include <atomic>
#include <barrier>
#include <cstring>
#include <thread>
#include <vector>

#include "tests/support/pool_fixture.h"

namespace lgpu {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

class PoolWaitTest : public PoolFixture {
 protected:
  /// Another thread of this program uses the pool.
  void UseFromAnotherThread() {
    std::thread([this] { EXPECT_TRUE(pool_->Free(*pool_->Allocate(1_MiB)).ok()); }).join();
  }
};

TEST_F(PoolWaitTest, ThreadsThatNeedMoreThanThereIsAreServedInTurn) {
  Open({.limit = 4_MiB});
  std::vector<std::thread> threads;
  std::barrier start(3);
  std::atomic<int> refused = 0;
  for (int t = 0; t < 3; ++t) {
    threads.emplace_back([&] {
      // Each has been there before any is short.
      EXPECT_TRUE(pool_->Free(*pool_->Allocate(1_MiB)).ok());
      start.arrive_and_wait();
      for (int i = 0; i < 20; ++i) {
        const absl::StatusOr<Block> block = pool_->Allocate(3_MiB, {.timeout = seconds(20)});
        if (!block.ok()) {
          ++refused;
          continue;
        }
        std::memset(block->address, 1, block->bytes.count());  // takes a while
        EXPECT_TRUE(pool_->Free(*block).ok());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(refused, 0);
  EXPECT_EQ(pool_->stats().num_refusals, 0U) << "who got it in the end was not refused";
  EXPECT_TRUE(pool_->CheckInvariants().ok());
}

TEST_F(PoolWaitTest, AThreadOnItsOwnIsRefusedAtOnce) {
  Open({.limit = 4_MiB});
  const Block keep = Must(3_MiB);
  const std::optional<Refusal> refusal =
      GetRefusal(pool_->Allocate(2_MiB, {.timeout = seconds(20)}).status());
  ASSERT_TRUE(refusal.has_value());
  EXPECT_EQ(refusal->reason, RefusalReason::kLimit);
  EXPECT_FALSE(refusal->waited.has_value());
  EXPECT_TRUE(pool_->Free(keep).ok());
}

TEST_F(PoolWaitTest, ARequestAboveTheLimitIsRefusedAtOnce) {
  Open({.limit = 4_MiB});
  UseFromAnotherThread();
  const std::optional<Refusal> refusal =
      GetRefusal(pool_->Allocate(5_MiB, {.timeout = seconds(20)}).status());
  ASSERT_TRUE(refusal.has_value());
  EXPECT_FALSE(refusal->waited.has_value());
}

TEST_F(PoolWaitTest, WithoutATimeoutARequestDoesNotWait) {
  Open({.limit = 4_MiB});
  const Block keep = Must(3_MiB);
  UseFromAnotherThread();
  const std::optional<Refusal> refusal = GetRefusal(pool_->Allocate(2_MiB).status());
  ASSERT_TRUE(refusal.has_value());
  EXPECT_FALSE(refusal->waited.has_value());
  EXPECT_EQ(pool_->stats().num_refusals, 1U);
  EXPECT_TRUE(pool_->Free(keep).ok());
}

TEST_F(PoolWaitTest, ThreadsThatAllWaitForEachOtherAreRefusedInTheEnd) {
  Open({.limit = 4_MiB});
  const Block keep = Must(3_MiB);
  UseFromAnotherThread();
  const std::optional<Refusal> refusal =
      GetRefusal(pool_->Allocate(2_MiB, {.timeout = milliseconds(30)}).status());
  ASSERT_TRUE(refusal.has_value());
  EXPECT_EQ(refusal->reason, RefusalReason::kLimit);
  EXPECT_GE(refusal->waited.value_or(milliseconds(0)), milliseconds(30));
  EXPECT_EQ(pool_->stats().num_refusals, 1U) << "one call, however often it tried";
  EXPECT_EQ(pool_->stats().last_refusal, RefusalReason::kLimit);
  EXPECT_TRUE(pool_->Free(keep).ok());
}

TEST_F(PoolWaitTest, BlocksInAnotherThreadsCacheAreFound) {
  Open({.limit = 64_MiB});
  std::atomic<bool> is_waiting = false;
  std::thread other([&] {
    std::vector<Block> small;
    for (absl::StatusOr<Block> block; (block = pool_->Allocate(64_KiB)).ok();) small.push_back(*block);
    is_waiting.wait(false);
    // Some of it fits into the cache of this thread, which other threads search only when they are short.
    for (const Block& block : small) EXPECT_TRUE(pool_->Free(block).ok());
  });
  while (pool_->stats().used < 64_MiB) std::this_thread::yield();
  is_waiting = true;
  is_waiting.notify_all();
  const absl::StatusOr<Block> all = pool_->Allocate(64_MiB, {.timeout = seconds(20)});
  EXPECT_TRUE(all.ok()) << all.status();
  other.join();
  if (all.ok()) MustFree(*all);
}

}  // namespace
}  // namespace lgpu
