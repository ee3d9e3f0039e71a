// Calls that the program interrupts, against a fake daemon.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <future>
#include <string>
#include <vector>

#include "lgpu/interrupt.h"
#include "tests/client/daemon_dialogue.h"

namespace lgpu {
namespace {

using ::lgpu::testing::FakeDaemon;
using ::lgpu::testing::FakePeer;
using ::lgpu::testing::GrowAll;
using ::lgpu::testing::kDevice;
using ::testing::ElementsAre;

constexpr std::chrono::hours kHour{1};

class DaemonConnectionInterruptTest : public ::testing::Test {
 protected:
  /// The user presses Ctrl-C; from any thread.
  void Press() { is_pressed_ = true; }
  /// The status of `call` on a thread that looks at Ctrl-C.
  template <typename Call>
  absl::Status Interruptible(const Call& call) {
    const InterruptScope scope([this] { return is_pressed_.load(); });
    return call();
  }

 private:
  std::atomic<bool> is_pressed_ = false;
};

TEST_F(DaemonConnectionInterruptTest, AGrowIsWithdrawnAndTheSessionGoesOn) {
  std::uint64_t withdrawn = 0;
  FakeDaemon daemon([&](FakePeer& peer) {
    peer.Greet();
    const std::uint64_t grow = peer.Read().grow().request_id();
    Press();
    withdrawn = peer.Read().withdraw().request_id();
    EXPECT_EQ(withdrawn, grow);
    peer.Refuse(grow, absl::StatusCode::kCancelled, "the program gave the request up");
    peer.Grant({.request = peer.Read().grow().request_id(), .first_id = 7});
    EXPECT_TRUE(peer.Read().has_ack());
  });
  auto connection = daemon.Connect();
  ASSERT_TRUE(connection.ok()) << connection.status();
  const absl::Status status = Interruptible([&] { return GrowAll(**connection, 2_MiB, kHour).status(); });
  EXPECT_TRUE(absl::IsCancelled(status)) << status;
  const absl::StatusOr<std::vector<std::uint64_t>> ids = GrowAll(**connection, 2_MiB);
  ASSERT_TRUE(ids.ok()) << ids.status();
  EXPECT_THAT(*ids, ElementsAre(7));
  daemon.Join();
}

TEST_F(DaemonConnectionInterruptTest, AGrantThatCameAllTheSameIsGivenBack) {
  std::vector<std::uint64_t> given_back;
  FakeDaemon daemon([&](FakePeer& peer) {
    peer.Greet();
    const std::uint64_t grow = peer.Read().grow().request_id();
    Press();
    EXPECT_TRUE(peer.Read().has_withdraw());
    peer.Grant({.request = grow, .first_id = 5, .count = 2});
    EXPECT_EQ(peer.Read().ack().grant_id(), 1u);
    const v1::Frame back = peer.Read();
    given_back.assign(back.return_chunks().chunk_ids().begin(), back.return_chunks().chunk_ids().end());
  });
  auto connection = daemon.Connect();
  ASSERT_TRUE(connection.ok());
  EXPECT_TRUE(absl::IsCancelled(Interruptible([&] { return GrowAll(**connection, 4_MiB, kHour).status(); })));
  daemon.Join();
  EXPECT_THAT(given_back, ElementsAre(5, 6));
}

TEST_F(DaemonConnectionInterruptTest, ADaemonOfVersion4IsNotToldOfIt) {
  v1::Frame next;
  FakeDaemon daemon([&](FakePeer& peer) {
    peer.Greet(4);
    EXPECT_TRUE(peer.Read().has_grow());
    Press();
    next = peer.Read();
  });
  auto connection = daemon.Connect();
  ASSERT_TRUE(connection.ok());
  EXPECT_TRUE(absl::IsCancelled(Interruptible([&] { return GrowAll(**connection, 4_MiB, kHour).status(); })));
  connection->reset();
  daemon.Join();
  EXPECT_EQ(next.body_case(), v1::Frame::BODY_NOT_SET) << next.DebugString();
}

TEST_F(DaemonConnectionInterruptTest, AReturnNeedsNoAnswer) {
  std::vector<std::uint64_t> given_back;
  FakeDaemon daemon([&](FakePeer& peer) {
    peer.Greet();
    peer.Grant({.request = peer.Read().grow().request_id(), .first_id = 5, .count = 2});
    const v1::Frame back = peer.Read();
    given_back.assign(back.return_chunks().chunk_ids().begin(), back.return_chunks().chunk_ids().end());
    Press();
    peer.Read();
  });
  auto connection = daemon.Connect();
  ASSERT_TRUE(connection.ok());
  ASSERT_TRUE(GrowAll(**connection, 4_MiB).ok());
  const absl::Status status = Interruptible([&] {
    return (*connection)->Return(kDevice, std::vector{ChunkId{5}, ChunkId{6}});
  });
  EXPECT_TRUE(status.ok()) << status;
  connection->reset();
  daemon.Join();
  EXPECT_THAT(given_back, ElementsAre(5, 6));
}

TEST_F(DaemonConnectionInterruptTest, ACloseCanBeRepeated) {
  std::promise<void> is_interrupted;
  FakeDaemon daemon([&](FakePeer& peer) {
    peer.Greet();
    const std::uint64_t close = peer.Read().close().request_id();
    Press();
    is_interrupted.get_future().wait();
    peer.Closed(close);
    EXPECT_EQ(peer.Read().body_case(), v1::Frame::BODY_NOT_SET);
  });
  auto connection = daemon.Connect();
  ASSERT_TRUE(connection.ok());
  const auto close = [&] { return (*connection)->Close(); };
  EXPECT_TRUE(absl::IsCancelled(Interruptible(close)));
  EXPECT_TRUE(absl::IsCancelled(Interruptible(close))) << "it waits for the answer to the first Close";
  is_interrupted.set_value();
  EXPECT_TRUE(close().ok());
  connection->reset();
}

TEST_F(DaemonConnectionInterruptTest, AGreetingIsNotWaitedFor) {
  FakeDaemon daemon([&](FakePeer& peer) {
    EXPECT_TRUE(peer.Read().has_hello());
    Press();
    peer.Read();
  });
  const absl::Status status = Interruptible([&] { return daemon.Connect().status(); });
  EXPECT_TRUE(absl::IsCancelled(status)) << status;
}

TEST_F(DaemonConnectionInterruptTest, ADaemonThatIsAwayIsNotWaitedFor) {
  FakeDaemon daemon([](FakePeer& peer) { peer.Greet(); });
  auto connection = daemon.Connect("/nonexistent/session.sock");
  ASSERT_TRUE(connection.ok());
  daemon.Join();
  while (!(*connection)->IsLost((*connection)->generation())) std::this_thread::yield();
  Press();
  const absl::Status status = Interruptible([&] { return GrowAll(**connection, 2_MiB, kHour).status(); });
  EXPECT_TRUE(absl::IsCancelled(status)) << status;
}

}  // namespace
}  // namespace lgpu
