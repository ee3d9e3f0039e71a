#include "daemon/server/call_pool.h"

#include <gtest/gtest.h>

#include <atomic>
#include <semaphore>
#include <string>
#include <vector>

namespace lgpu::daemon {
namespace {

// Calls that wait until the test lets them go.
struct Held {
  std::counting_semaphore<> started{0};
  std::counting_semaphore<> go{0};
  void operator()() {
    started.release();
    go.acquire();
  }
};

TEST(CallPoolTest, WaitingCallsOfOneUserLeaveThreadsToOtherUsers) {
  Held held;
  std::binary_semaphore answered{0};
  auto pool = CallPool::Start("test", 8);
  ASSERT_TRUE(pool.ok()) << pool.status();
  for (int i = 0; i < 100; ++i) (*pool)->Run(1, [&held] { held(); });
  for (int i = 0; i < 4; ++i) held.started.acquire();
  // Half of the threads are all that one user gets.
  EXPECT_FALSE(held.started.try_acquire());
  (*pool)->Run(2, [&answered] { answered.release(); });
  answered.acquire();
  held.go.release(100);
}

TEST(CallPoolTest, ACallThatMayNotStartWaitsForItsOwnUser) {
  Held held;
  auto pool = CallPool::Start("test", 2);
  ASSERT_TRUE(pool.ok()) << pool.status();
  (*pool)->Run(1, [&held] { held(); });
  held.started.acquire();
  EXPECT_FALSE((*pool)->OthersWaitFor(1));
  (*pool)->Run(1, [&held] { held(); });  // one of two threads is this user's share
  EXPECT_TRUE((*pool)->OthersWaitFor(1));
  EXPECT_FALSE((*pool)->OthersWaitFor(2));
  held.go.release(2);
}

TEST(CallPoolTest, AUserWithoutAThreadWaitsForEveryUser) {
  Held held;
  auto pool = CallPool::Start("test", 2);
  ASSERT_TRUE(pool.ok()) << pool.status();
  for (const std::uint32_t uid : {1u, 2u}) {
    (*pool)->Run(uid, [&held] { held(); });
    held.started.acquire();
  }
  EXPECT_FALSE((*pool)->OthersWaitFor(1));
  (*pool)->Run(3, [&held] { held(); });
  EXPECT_TRUE((*pool)->OthersWaitFor(1));
  EXPECT_TRUE((*pool)->OthersWaitFor(2));
  held.go.release(3);
}

TEST(CallPoolTest, UsersTakeTurns) {
  Held held;
  std::counting_semaphore<> done{0};
  std::vector<std::string> order;  // one thread writes it: the other one is held
  auto pool = CallPool::Start("test", 2);
  ASSERT_TRUE(pool.ok()) << pool.status();
  for (const std::uint32_t uid : {8u, 9u}) {
    (*pool)->Run(uid, [&held] { held(); });
    held.started.acquire();
  }
  for (const char* call : {"1a", "1b", "1c", "2a", "2b"}) {
    (*pool)->Run(call[0] == '1' ? 1 : 2, [&, call] {
      order.push_back(call);
      done.release();
    });
  }
  held.go.release();
  for (int i = 0; i < 5; ++i) done.acquire();
  EXPECT_EQ(order, (std::vector<std::string>{"1a", "2a", "1b", "2b", "1c"}));
  held.go.release();
}

TEST(CallPoolTest, TheCallsThatAreLeftRunBeforeItEnds) {
  std::atomic<int> runs = 0;
  {
    auto pool = CallPool::Start("test", 2);
    ASSERT_TRUE(pool.ok()) << pool.status();
    for (int i = 0; i < 1000; ++i) (*pool)->Run(7, [&runs] { ++runs; });
  }
  EXPECT_EQ(runs, 1000);
}

}  // namespace
}  // namespace lgpu::daemon
