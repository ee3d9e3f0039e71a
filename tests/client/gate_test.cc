#include "client/runtime/gate.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

namespace lgpu::internal {
namespace {

TEST(GateTest, AHeldGateLetsNoThreadInUntilTheHoldEnds) {
  Gate gate;
  gate.HoldAndWait();
  EXPECT_TRUE(gate.is_held());
  EXPECT_FALSE(gate.is_closed());
  EXPECT_FALSE(GatePass(gate));
  gate.EndHold();
  EXPECT_TRUE(GatePass(gate));
}

TEST(GateTest, HoldAndCloseAreIndependent) {
  Gate gate;
  gate.HoldAndWait();
  gate.CloseAndWait();
  gate.Reopen();  // the close failed: the gate is held as before
  EXPECT_TRUE(gate.is_held());
  EXPECT_FALSE(GatePass(gate));
  gate.CloseAndWait();
  gate.EndHold();
  EXPECT_TRUE(gate.is_closed());
  EXPECT_FALSE(GatePass(gate));
}

TEST(GateTest, AHoldWaitsForTheThreadsInside) {
  for (int round = 0; round < 5; ++round) {
    Gate gate;
    std::atomic<int> inside{0};
    std::atomic<bool> done{false};
    std::vector<std::thread> threads;
    for (int i = 0; i < 3; ++i) {
      threads.emplace_back([&] {
        while (!done.load()) {
          const GatePass pass(gate);
          if (!pass) continue;
          inside.fetch_add(1);
          std::this_thread::yield();
          inside.fetch_sub(1);
        }
      });
    }
    for (int hold = 0; hold < 10; ++hold) {
      gate.HoldAndWait();
      EXPECT_EQ(inside.load(), 0);
      std::this_thread::yield();
      EXPECT_EQ(inside.load(), 0);
      gate.EndHold();
    }
    done.store(true);
    for (std::thread& thread : threads) thread.join();
  }
}

TEST(GateTest, TheLastThreadOutOfAGateThatWasLeftToItIsTold) {
  int told = 0;
  Gate gate([&told] { ++told; });
  ASSERT_TRUE(gate.Enter());
  EXPECT_FALSE(gate.CloseForLast()) << "this thread is inside";
  EXPECT_EQ(told, 0);
  gate.Leave();
  EXPECT_EQ(told, 1);
}

}  // namespace
}  // namespace lgpu::internal
