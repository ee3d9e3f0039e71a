#include "client/driver/light_locks.h"

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <mutex>
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

// Threads that sleep are woken, and one whose waking is missed goes on: the test ends.
TEST(LightMutexTest, AThreadThatSleepsGoesOnWhenTheSectionIsFree) {
  LightMutex mutex;
  std::atomic<int> done{0};
  std::vector<std::thread> threads;
  mutex.lock();
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&] {
      const std::lock_guard lock(mutex);
      done.fetch_add(1);
    });
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_EQ(done.load(), 0);
  mutex.unlock();
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(done.load(), kThreads);
}

TEST(LightMutexesTest, TheThreadThatHasAllOfThemSeesNoHalfOfAChange) {
  constexpr std::size_t kParts = 2;
  struct Pair {
    int one = 0, other = 0;
  };
  LightMutexes<kParts> mutexes;
  std::array<Pair, kParts> pairs;
  std::atomic<int> running{kThreads};
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < kThreads; ++i) {
    threads.emplace_back([&, part = i % kParts] {
      for (int round = 0; round < kRounds; ++round) {
        const std::lock_guard lock(mutexes.Of(part));
        ++pairs[part].one;
        ++pairs[part].other;
      }
      running.fetch_sub(1);
    });
  }
  bool is_same = true;
  while (running.load() > 0) {
    {
      const std::lock_guard all(mutexes);
      for (const Pair& pair : pairs) is_same = is_same && pair.one == pair.other;
    }
    std::this_thread::yield();
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_TRUE(is_same);
  EXPECT_EQ(pairs[0].one + pairs[1].other, kThreads * kRounds);
}

}  // namespace
}  // namespace lgpu::shim
