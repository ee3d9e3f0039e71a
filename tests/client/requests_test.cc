// The table of requests, and the thread that reads for all that wait.

#include "client/link/requests.h"

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

namespace lgpu::link {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using Clock = std::chrono::steady_clock;

struct Row {
  std::uint64_t id = 0;
  Clock::time_point more_until{};
  bool is_done = false;
};

/// Threads that wait on one end of a channel; the test is at the other end.
class RequestsTest : public ::testing::Test {
 protected:
  class Sync {
   public:
    explicit Sync(RequestsTest& test) : test_(test), lock_(test.mutex_) {}
    void lock() { lock_.lock(); }
    void unlock() { lock_.unlock(); }
    void SleepUntil(Clock::time_point until) {
      ++test_.sleepers_;
      test_.changed_.notify_all();
      test_.changed_.wait_until(lock_, until);
      --test_.sleepers_;
    }
    void WakeAll() { test_.changed_.notify_all(); }
    bool CanRead() { return true; }
    Clock::time_point NextLook(Clock::time_point until) { return until; }
    bool IsStopped() { return test_.is_stopped_; }

   private:
    RequestsTest& test_;
    std::unique_lock<std::mutex> lock_;
  };

  RequestsTest() {
    int pair[2];
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
    ours_ = wire::FrameChannel(UniqueFd(pair[0]));
    theirs_ = wire::FrameChannel(UniqueFd(pair[1]));
  }
  std::uint64_t Add() {
    const std::lock_guard lock(mutex_);
    return requests_.Add({});
  }
  Waited Await(std::uint64_t id, Clock::time_point deadline = Clock::now() + seconds(20)) {
    Sync sync(*this);
    return requests_.Await(
        sync, ours_, id, deadline, [](const Row& row) { return row.is_done; },
        [this](const PlainStatus& status, const wire::ReceivedFrame& received) {
          if (!status.ok()) return;
          if (const auto* const still = received.frame.Get<wire::StillWaiting>()) {
            requests_.Extend(*still, seconds(20));
          } else if (Row* const row = requests_.Find(RequestOf(received.frame))) {
            row->is_done = true;
          }
        });
  }
  void Answer(std::uint64_t id) { EXPECT_TRUE(theirs_.Send({.body = wire::Closed{.request_id = id}}).ok()); }
  void AwaitSleepers(int count) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return sleepers_ == count; });
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  wire::FrameChannel ours_, theirs_;
  Requests<Row> requests_;
  int sleepers_ = 0;
  bool is_stopped_ = false;
};

TEST_F(RequestsTest, OneThreadReadsAndEachGetsItsAnswerInAnyOrder) {
  constexpr int kThreads = 4;
  std::vector<std::uint64_t> ids;
  for (int i = 0; i < kThreads; ++i) ids.push_back(Add());
  std::vector<std::thread> threads;
  for (const std::uint64_t id : ids) {
    threads.emplace_back([this, id] { EXPECT_EQ(Await(id), Waited::kOver); });
  }
  AwaitSleepers(kThreads - 1);
  // Each answer may be the reader's own, after which another thread has to read the next one.
  for (auto id = ids.rbegin(); id != ids.rend(); ++id) Answer(*id);
  for (std::thread& thread : threads) thread.join();
  EXPECT_FALSE(requests_.is_reading());
}

TEST_F(RequestsTest, ASleeperReadsWhenTheReadersTimeIsOver) {
  const std::uint64_t hasty = Add(), patient = Add();
  std::thread reader([&] { EXPECT_EQ(Await(hasty, Clock::now() + milliseconds(50)), Waited::kLate); });
  std::thread sleeper([&] { EXPECT_EQ(Await(patient), Waited::kOver); });
  reader.join();
  Answer(patient);
  sleeper.join();
}

TEST_F(RequestsTest, AnAnswerThatIsThereIsReadAfterTheDeadline) {
  const std::uint64_t id = Add();
  Answer(id);
  EXPECT_EQ(Await(id, Clock::now() - seconds(1)), Waited::kOver);
  EXPECT_EQ(Await(Add(), Clock::now() - seconds(1)), Waited::kLate);
}

TEST_F(RequestsTest, TheDaemonsOwnDeadlineCounts) {
  const std::uint64_t id = Add();
  EXPECT_TRUE(theirs_.Send({.body = wire::StillWaiting{.request_id = id, .more_ms = 60'000}}).ok());
  std::thread caller([&] { EXPECT_EQ(Await(id, Clock::now() - seconds(1)), Waited::kOver); });
  while (true) {
    const std::lock_guard lock(mutex_);
    if (requests_.Find(id)->more_until > Clock::now()) break;
  }
  Answer(id);
  caller.join();
}

TEST_F(RequestsTest, AStopEndsTheWait) {
  is_stopped_ = true;
  EXPECT_EQ(Await(Add(), Clock::now() + milliseconds(5)), Waited::kLate);
  EXPECT_TRUE(theirs_.Send({.body = wire::Attested{}}).ok());
  EXPECT_EQ(Await(Add()), Waited::kStopped);
}

TEST_F(RequestsTest, NumbersRiseAndAreNotUsedTwice) {
  const std::uint64_t first = Add();
  EXPECT_EQ(first, 1u);
  requests_.Remove(first);
  EXPECT_EQ(requests_.Find(first), nullptr);
  EXPECT_EQ(requests_.NewId(), 2u);
  EXPECT_EQ(Add(), 3u);
  EXPECT_TRUE(requests_.WasAsked(2));
  EXPECT_FALSE(requests_.WasAsked(0));
  EXPECT_FALSE(requests_.WasAsked(4));
}

}  // namespace
}  // namespace lgpu::link
