#include "client/session/maintenance.h"

#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <thread>

namespace lgpu {
namespace {

using Clock = std::chrono::steady_clock;

TEST(MaintenanceTest, RunsWhenStartedWhenWokenAndWhenItWants) {
  MaintenanceThread thread;
  std::promise<void> third;
  std::atomic<int> calls = 0;
  thread.Start([&](Clock::time_point now) -> std::optional<Clock::time_point> {
    const int call = ++calls;
    if (call == 3) third.set_value();
    if (call == 2) return now;  // once more, at once
    return std::nullopt;
  });
  while (calls < 1) std::this_thread::yield();
  thread.Wake();
  third.get_future().wait();
  thread.Stop();
  const int before = calls;
  thread.Wake();
  EXPECT_EQ(calls, before);
}

TEST(MaintenanceTest, StopWaitsForTheTask) {
  MaintenanceThread thread;
  std::promise<void> running;
  std::promise<void> go_on;
  std::atomic<bool> done = false;
  thread.Start([&](Clock::time_point) -> std::optional<Clock::time_point> {
    running.set_value();
    go_on.get_future().wait();
    done = true;
    return std::nullopt;
  });
  running.get_future().wait();
  std::thread releaser([&] { go_on.set_value(); });
  thread.Stop();
  EXPECT_TRUE(done);
  releaser.join();
}

TEST(MaintenanceTest, ManyWakesAreNeverLost) {
  MaintenanceThread thread;
  std::atomic<int> wanted = 0;
  std::atomic<int> seen = 0;
  thread.Start([&](Clock::time_point) -> std::optional<Clock::time_point> {
    seen = wanted.load();
    return std::nullopt;
  });
  for (int i = 1; i <= 200; ++i) {
    wanted = i;
    thread.Wake();
    while (seen != i) std::this_thread::yield();
  }
}

}  // namespace
}  // namespace lgpu
