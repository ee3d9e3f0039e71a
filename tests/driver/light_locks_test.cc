#include "client/driver/light_locks.h"

#include <gtest/gtest.h>

#include <atomic>
#include <mutex>
#include <shared_mutex>
#include <thread>
#include <vector>

namespace lgpu::shim {
namespace {

constexpr int kThreads = 4, kRounds = 20000;

TEST(LightMutexTest, OneThreadIsInTheSectionAtATime) {
  LightMutex mutex;
  int count = 0;
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&] {
      for (int round = 0; round < kRounds; ++round) {
        const std::lock_guard lock(mutex);
        ++count;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(count, kThreads * kRounds);
}

TEST(LightGateTest, TheThreadThatHasItAloneSeesNoHalfOfAChange) {
  LightGate gate;
  std::atomic<int> one{0}, other{0};
  std::atomic<int> running{kThreads};
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&] {
      for (int round = 0; round < kRounds; ++round) {
        const std::shared_lock shared(gate);
        one.fetch_add(1, std::memory_order_relaxed);
        other.fetch_add(1, std::memory_order_relaxed);
      }
      running.fetch_sub(1);
    });
  }
  bool is_same = true;
  while (running.load() > 0) {
    {
      const std::unique_lock alone(gate);
      is_same = is_same && one.load(std::memory_order_relaxed) == other.load(std::memory_order_relaxed);
    }
    std::this_thread::yield();
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_TRUE(is_same);
  EXPECT_EQ(one.load(), kThreads * kRounds);
}

}  // namespace
}  // namespace lgpu::shim
