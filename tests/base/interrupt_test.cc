#include "base/interrupt.h"

#include <gtest/gtest.h>

#include <chrono>
#include <thread>

namespace lgpu {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::hours;

TEST(InterruptTest, AThreadWithoutAScopeIsAskedNothing) {
  const InterruptScope of_this_thread([] { return true; });
  std::thread([] {
    const Clock::time_point deadline = Clock::now() + hours(1);
    EXPECT_EQ(Interrupt::NextQuestion(deadline), deadline);
    EXPECT_FALSE(Interrupt::Happened());
    EXPECT_TRUE(Interrupt::SleepUntil(Clock::now()));
    Mutex mutex;
    CondVar changed;
    const MutexLock lock(mutex);
    EXPECT_FALSE(Interrupt::WaitUntil(changed, mutex, Clock::now())) << "the deadline has passed";
  }).join();
}

TEST(InterruptTest, AWaitAsksWithoutTheMutexAndNoMoreAfterAYes) {
  Mutex mutex;
  CondVar changed;
  int questions = 0;
  const InterruptScope scope([&] {
    const bool is_free = mutex.TryLock();
    if (is_free) mutex.Unlock();
    EXPECT_TRUE(is_free);
    return ++questions == 3;
  });
  const MutexLock lock(mutex);
  while (Interrupt::WaitUntil(changed, mutex, Clock::now() + hours(1))) {
    EXPECT_FALSE(Interrupt::HasHappened());
  }
  EXPECT_TRUE(Interrupt::HasHappened());
  EXPECT_FALSE(Interrupt::Wait(changed, mutex));
  EXPECT_FALSE(Interrupt::SleepUntil(Clock::now() + hours(1)));
  const Clock::time_point next = Interrupt::NextQuestion(Clock::now() + hours(1));
  EXPECT_LE(next, Clock::now());
  EXPECT_EQ(questions, 3);
  EXPECT_TRUE(absl::IsCancelled(Interrupt::Error()));
}

class CountsGivingUp final : public InterruptHandler {
 public:
  explicit CountsGivingUp(int& count) : count_(count) {}
  bool IsInterrupted() override { return false; }
  void BeforeWait() override { ++count_; }

 private:
  int& count_;
};

TEST(InterruptTest, BeforeTheFirstWaitEachScopeGivesUpTheProgramsLock) {
  int outer_gave_up = 0, inner_gave_up = 0;
  CountsGivingUp of_outer(outer_gave_up), of_inner(inner_gave_up);
  {
    const InterruptScope outer(of_outer);
    {
      const InterruptScope inner(of_inner);
      EXPECT_EQ(outer_gave_up + inner_gave_up, 0) << "nothing waits yet";
      Mutex mutex;
      CondVar changed;
      const MutexLock lock(mutex);
      EXPECT_FALSE(Interrupt::WaitUntil(changed, mutex, Clock::now()));
      EXPECT_EQ(inner_gave_up, 1);
      EXPECT_EQ(outer_gave_up, 1);
      EXPECT_TRUE(Interrupt::SleepUntil(Clock::now()));
    }
    Interrupt::BeforeWait();
    EXPECT_EQ(inner_gave_up, 1);
    EXPECT_EQ(outer_gave_up, 1) << "once";
  }
  const InterruptScope next(of_outer);
  Interrupt::BeforeWait();
  EXPECT_EQ(outer_gave_up, 2);
}

TEST(InterruptTest, WaitsThatEndEarlyEachTimeAskAllTheSame) {
  Mutex mutex;
  CondVar changed;
  int questions = 0;
  const InterruptScope scope([&] { return ++questions == 2; });
  const MutexLock lock(mutex);
  while (!Interrupt::HasHappened()) {
    Interrupt::WaitUntil(changed, mutex, Clock::now() + std::chrono::milliseconds(1));
  }
  EXPECT_EQ(questions, 2);
}

TEST(InterruptTest, AllScopesAreAsked) {
  bool ends_outer = false;
  const InterruptScope outer([&] { return ends_outer; });
  {
    const InterruptScope inner([] { return true; });
    EXPECT_FALSE(Interrupt::SleepUntil(Clock::now() + hours(1)));
  }
  EXPECT_FALSE(Interrupt::HasHappened()) << "the inner scope has ended, and what it was told with it";
  ends_outer = true;
  {
    const InterruptScope inner([] { return false; });
    EXPECT_FALSE(Interrupt::SleepUntil(Clock::now() + hours(1)));
  }
  EXPECT_TRUE(Interrupt::HasHappened()) << "the outer one was told so";
}

TEST(InterruptTest, AWaitInsideTheFunctionAsksNothing) {
  int questions = 0;
  const InterruptScope scope([&] {
    ++questions;
    EXPECT_TRUE(Interrupt::SleepUntil(Clock::now() + std::chrono::milliseconds(60))) << "longer than a slice";
    return questions == 2;
  });
  EXPECT_FALSE(Interrupt::SleepUntil(Clock::now() + hours(1)));
  EXPECT_EQ(questions, 2);
}

}  // namespace
}  // namespace lgpu
