// A DaemonConnection while the kernel has no memory for a frame.

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <future>

#include "tests/client/daemon_dialogue.h"

namespace {

std::atomic<int> failures{0};
thread_local bool is_daemon = false;

}  // namespace

// In place of libc's: the client's next `failures` calls have no memory.
extern "C" __attribute__((visibility("default"))) ssize_t sendmsg(int fd, const msghdr* message, int flags) {
  if (!is_daemon && failures > 0 && failures.fetch_sub(1) > 0) {
    errno = ENOBUFS;
    return -1;
  }
  return syscall(SYS_sendmsg, fd, message, flags);
}

namespace lgpu {
namespace {

using ::lgpu::testing::FakeDaemon;
using ::lgpu::testing::FakePeer;
using ::lgpu::testing::GrowAll;
using ::lgpu::testing::kDevice;

TEST(DaemonConnectionSendTest, AnAcknowledgementIsSentWhenThereIsMemoryAgain) {
  std::promise<std::uint64_t> acknowledged;
  FakeDaemon daemon([&](FakePeer& peer) {
    is_daemon = true;
    peer.Greet();
    const std::uint64_t request = peer.Read().grow().request_id();
    failures = 3;  // the client's next frame is the acknowledgement
    peer.Grant({.request = request});
    acknowledged.set_value(peer.Read().ack().grant_id());
    peer.Read();
  });
  auto connection = daemon.Connect();
  ASSERT_TRUE(connection.ok()) << connection.status();
  EXPECT_TRUE(GrowAll(**connection, 2_MiB).ok());
  EXPECT_NE(acknowledged.get_future().get(), 0u);
  EXPECT_LE(failures, 0);
  EXPECT_TRUE((*connection)->status().ok());
}

TEST(DaemonConnectionSendTest, AReturnIsSentWhenThereIsMemoryAgain) {
  FakeDaemon daemon(&testing::ServeAll);
  auto connection = daemon.Connect();
  ASSERT_TRUE(connection.ok()) << connection.status();
  ASSERT_TRUE(GrowAll(**connection, 2_MiB).ok());
  failures = 3;
  const absl::Status returned = (*connection)->Return(kDevice, std::vector{ChunkId{1}});
  EXPECT_TRUE(returned.ok()) << returned;
  failures = 0;
}

// The kernel has no memory for longer than the caller waits.
TEST(DaemonConnectionSendTest, AReturnThatCouldNotBeSentIsSentLater) {
  std::promise<std::uint64_t> returned;
  FakeDaemon daemon([&](FakePeer& peer) {
    is_daemon = true;
    peer.Greet();
    peer.Grant({.request = peer.Read().grow().request_id()});
    while (true) {
      const v1::Frame frame = peer.Read();
      if (frame.body_case() == v1::Frame::BODY_NOT_SET) return;
      if (frame.has_return_chunks()) returned.set_value(frame.return_chunks().chunk_ids(0));
    }
  });
  auto connection = daemon.Connect(std::chrono::milliseconds(200));
  ASSERT_TRUE(connection.ok()) << connection.status();
  ASSERT_TRUE(GrowAll(**connection, 2_MiB, std::chrono::minutes(1)).ok());
  failures = 1'000'000;
  EXPECT_FALSE((*connection)->Return(kDevice, std::vector{ChunkId{1}}).ok());
  failures = 0;
  EXPECT_EQ(returned.get_future().get(), 1u);
}

}  // namespace
}  // namespace lgpu
