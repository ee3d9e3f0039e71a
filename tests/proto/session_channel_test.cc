#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "proto/wire/frame_channel.h"
#include "tests/support/generated_channel.h"
#include "tests/support/open_files_limit.h"
#include "tests/support/test_seed.h"

namespace lgpu {
namespace {

using ::testing::HasSubstr;
using Clock = std::chrono::steady_clock;

GeneratedChannel::Deadline Past() { return Clock::now() - std::chrono::seconds(1); }
GeneratedChannel::Deadline Soon() { return Clock::now() + std::chrono::milliseconds(20); }
GeneratedChannel::Deadline Late() { return Clock::now() + std::chrono::seconds(60); }

v1::Frame GrowFrame(std::uint64_t id) {
  v1::Frame frame;
  frame.mutable_grow()->set_request_id(id);
  frame.mutable_grow()->set_at_least_bytes(2 << 20);
  return frame;
}

// A frame of exactly `bytes` bytes on the wire.
v1::Frame FrameOfSize(std::size_t bytes) {
  v1::Frame frame;
  frame.mutable_goodbye()->set_message(std::string(bytes - 16, 'x'));
  while (frame.ByteSizeLong() < bytes) frame.mutable_goodbye()->mutable_message()->push_back('x');
  EXPECT_EQ(frame.ByteSizeLong(), bytes);
  return frame;
}

UniqueFd Memfd() { return UniqueFd(::memfd_create("test", MFD_CLOEXEC)); }

ino_t Inode(int fd) {
  struct stat info = {};
  EXPECT_EQ(::fstat(fd, &info), 0);
  return info.st_ino;
}

class SessionChannelTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::array<int, 2> ends;
    ASSERT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends.data()), 0);
    left_.emplace(UniqueFd(ends[0]));
    right_.emplace(UniqueFd(ends[1]));
  }

  // Sends a packet as no GeneratedChannel would.
  void SendRaw(std::string_view bytes, std::vector<int> fds = {}) {
    iovec part = {.iov_base = const_cast<char*>(bytes.data()), .iov_len = bytes.size()};
    msghdr message = {};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * 8)] = {};
    if (!fds.empty()) {
      auto* header = reinterpret_cast<cmsghdr*>(control);
      *header = {
          .cmsg_len = CMSG_LEN(fds.size() * sizeof(int)), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS};
      std::memcpy(CMSG_DATA(header), fds.data(), fds.size() * sizeof(int));
      message.msg_control = control;
      message.msg_controllen = CMSG_SPACE(fds.size() * sizeof(int));
    }
    ASSERT_EQ(::sendmsg(left_->fd(), &message, MSG_NOSIGNAL), static_cast<ssize_t>(bytes.size()));
  }

  // Sends `bytes` with the write end of a pipe and closes that here; afterwards PipeIsClosed says whether the
  // receiver closed its copy too.
  void SendRawWithPipe(std::string_view bytes) {
    std::array<int, 2> ends;
    ASSERT_EQ(::pipe2(ends.data(), O_CLOEXEC | O_NONBLOCK), 0);
    pipe_ = UniqueFd(ends[0]);
    const UniqueFd writer(ends[1]);
    SendRaw(bytes, {writer.get()});
  }
  bool PipeIsClosed() const {
    char byte;
    return ::read(pipe_.get(), &byte, 1) == 0;
  }

  std::optional<GeneratedChannel> left_;
  std::optional<GeneratedChannel> right_;
  UniqueFd pipe_;
};

TEST_F(SessionChannelTest, FramesArriveInOrderWithTheirDescriptors) {
  const std::array<UniqueFd, 2> files = {Memfd(), Memfd()};
  ASSERT_TRUE(left_->Send(GrowFrame(1), std::array<int, 2>{files[0].get(), files[1].get()}).ok());
  ASSERT_TRUE(left_->Send(GrowFrame(2)).ok());
  auto first = right_->Receive(Late());
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_EQ(first->frame.grow().request_id(), 1u);
  ASSERT_EQ(first->fds.size(), 2u);
  for (std::size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(Inode(first->fds[i].get()), Inode(files[i].get()));
    EXPECT_EQ(::fcntl(first->fds[i].get(), F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
  }
  auto second = right_->Receive();
  ASSERT_TRUE(second.ok());
  EXPECT_EQ(second->frame.grow().request_id(), 2u);
  EXPECT_TRUE(second->fds.empty());
}

TEST_F(SessionChannelTest, AFrameChannelReplacesTheContentOfReceivesArgument) {
  wire::FrameChannel right(UniqueFd(::dup(right_->fd())));
  const UniqueFd file = Memfd();
  ASSERT_TRUE(left_->Send(GrowFrame(1), std::array<int, 1>{file.get()}).ok());
  v1::Frame ack;
  ack.mutable_ack()->set_grant_id(9);
  ASSERT_TRUE(left_->Send(ack).ok());
  wire::ReceivedFrame received;
  ASSERT_TRUE(right.Receive(received).ok());
  const int first_fd = received.fds.at(0).get();
  ASSERT_TRUE(right.Receive(received).ok());
  ASSERT_NE(received.frame.Get<wire::Ack>(), nullptr);
  EXPECT_EQ(received.frame.Get<wire::Ack>()->grant_id, 9u);
  EXPECT_TRUE(received.fds.empty());
  EXPECT_EQ(::fcntl(first_fd, F_GETFD), -1);
}

TEST_F(SessionChannelTest, TheLargestFrameArrivesAndOneByteMoreIsRefused) {
  const v1::Frame largest = FrameOfSize(GeneratedChannel::kMaxFrameBytes);
  ASSERT_TRUE(left_->Send(largest).ok());
  const absl::Status refused = left_->Send(FrameOfSize(GeneratedChannel::kMaxFrameBytes + 1));
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("65537 bytes"));
  auto received = right_->Receive();
  ASSERT_TRUE(received.ok());
  EXPECT_EQ(received->frame.goodbye().message(), largest.goodbye().message());
  EXPECT_EQ(right_->Receive(Past()).status().code(), absl::StatusCode::kDeadlineExceeded);
}

TEST_F(SessionChannelTest, AFullReturnRequestFitsIntoOneFrame) {
  v1::Frame frame;
  frame.mutable_return_chunks()->set_request_id(~std::uint64_t{0});
  frame.mutable_return_chunks()->set_device_id(~std::uint64_t{0});
  for (std::size_t i = 0; i < GeneratedChannel::kMaxReturnChunks; ++i) {
    frame.mutable_return_chunks()->add_chunk_ids(~std::uint64_t{0} - i);
  }
  EXPECT_TRUE(left_->Send(frame).ok()) << frame.ByteSizeLong();
}

TEST_F(SessionChannelTest, AsManyDescriptorsAsTheKernelTakesAndNoMore) {
  const UniqueFd file = Memfd();
  std::vector<int> fds(GeneratedChannel::kMaxFdsPerFrame, file.get());
  ASSERT_TRUE(left_->Send(GrowFrame(1), fds).ok());
  fds.push_back(file.get());
  EXPECT_EQ(left_->Send(GrowFrame(2), fds).code(), absl::StatusCode::kResourceExhausted);
  auto received = right_->Receive();
  ASSERT_TRUE(received.ok()) << received.status();
  EXPECT_EQ(received->fds.size(), GeneratedChannel::kMaxFdsPerFrame);
  EXPECT_EQ(Inode(received->fds.back().get()), Inode(file.get()));
  EXPECT_EQ(right_->Receive(Past()).status().code(), absl::StatusCode::kDeadlineExceeded);
}

TEST_F(SessionChannelTest, AMessageThatIsNoFrameIsNotSent) {
  EXPECT_EQ(left_->Send(v1::Frame()).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(left_->Send(GrowFrame(1), std::array<int, 1>{-1}).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(right_->Receive(Past()).status().code(), absl::StatusCode::kDeadlineExceeded);
}

TEST_F(SessionChannelTest, OversizedPacketIsAnErrorAndItsDescriptorsAreClosed) {
  SendRawWithPipe(std::string(GeneratedChannel::kMaxFrameBytes + 1, '\n'));
  const absl::Status status = right_->Receive().status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("longer than a frame"));
  EXPECT_TRUE(PipeIsClosed());
}

TEST_F(SessionChannelTest, GarbageIsAnErrorAndItsDescriptorsAreClosed) {
  SendRawWithPipe("\xff\xff\xff\xff");
  wire::FrameChannel right(UniqueFd(::dup(right_->fd())));
  wire::ReceivedFrame received{{}, {.body = wire::Ack{.grant_id = 9}}};
  const PlainStatus status = right.Receive(received);
  EXPECT_EQ(status.code, PlainCode::kInvalidArgument);
  EXPECT_THAT(status.message, HasSubstr("no frame"));
  EXPECT_EQ(received.frame.Get<wire::Ack>(), nullptr);
  EXPECT_TRUE(received.fds.empty());
  EXPECT_TRUE(PipeIsClosed());
}

TEST_F(SessionChannelTest, EmptyPacketReadsAsTheEndAndItsDescriptorsAreClosed) {
  SendRawWithPipe("");
  EXPECT_EQ(right_->Receive().status().code(), absl::StatusCode::kUnavailable);
  EXPECT_TRUE(PipeIsClosed());
}

TEST_F(SessionChannelTest, TruncatedFramesAreFramesOrErrors) {
  v1::Frame frame;
  frame.mutable_grant()->set_grant_id(7);
  for (std::uint64_t i = 1; i < 20; ++i) frame.mutable_grant()->add_chunks()->set_id(i);
  const std::string whole = frame.SerializeAsString();
  int errors = 0;
  for (std::size_t length = 1; length < whole.size(); ++length) {
    SendRaw(std::string_view(whole).substr(0, length));
    const absl::Status status = right_->Receive().status();
    errors += status.ok() ? 0 : 1;
    EXPECT_TRUE(status.ok() || absl::IsInvalidArgument(status)) << length << ": " << status;
  }
  // The length of the body stands in front of it, so no part of the frame is one.
  EXPECT_EQ(errors, static_cast<int>(whole.size()) - 1);
}

TEST_F(SessionChannelTest, RandomPacketsAreFramesOrErrors) {
  wire::FrameChannel right(UniqueFd(::dup(right_->fd())));
  wire::ReceivedFrame received;
  const std::uint32_t seed = TestSeed();
  std::mt19937_64 random(seed);
  const std::string valid = GrowFrame(1234).SerializeAsString();
  for (int i = 0; i < 2000; ++i) {
    std::string packet = valid;
    if (i % 2 == 0) packet.resize(1 + random() % 200);
    for (std::uint64_t changes = 1 + random() % 8; changes > 0; --changes) {
      packet[random() % packet.size()] = static_cast<char>(random());
    }
    SendRaw(packet);
    const PlainStatus status = right.Receive(received);
    ASSERT_TRUE(status.ok() || status.code == PlainCode::kInvalidArgument) << status.message;
  }
}

TEST_F(SessionChannelTest, DescriptorsThatDoNotFitIntoTheProcessAreCutOff) {
  const UniqueFd file = Memfd();
  ASSERT_TRUE(left_->Send(GrowFrame(1), std::vector<int>(8, file.get())).ok());
  const int first_free = UniqueFd(::fcntl(file.get(), F_DUPFD_CLOEXEC, 0)).get();
  absl::StatusOr<GeneratedFrame> received;
  {
    // Room for three of the eight, if there is no gap among the open ones; the kernel cuts off the rest.
    const OpenFilesLimit limit(static_cast<rlim_t>(first_free) + 3);
    received = right_->Receive();
  }
  ASSERT_TRUE(received.ok()) << received.status();
  EXPECT_TRUE(received->frame.has_grow());
  EXPECT_TRUE(received->fds_cut);
  EXPECT_TRUE(received->fds.empty());
  EXPECT_EQ(UniqueFd(::fcntl(file.get(), F_DUPFD_CLOEXEC, 0)).get(), first_free);
}

TEST_F(SessionChannelTest, APeerThatIsGoneIsUnavailable) {
  right_.reset();
  EXPECT_EQ(left_->Send(GrowFrame(1)).code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(left_->Receive().status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(left_->Receive(Late()).status().code(), absl::StatusCode::kUnavailable);
}

TEST_F(SessionChannelTest, APeerThatLeftFramesUnreadIsUnavailable) {
  ASSERT_TRUE(left_->Send(GrowFrame(1)).ok());
  right_.reset();
  EXPECT_EQ(left_->Receive().status().code(), absl::StatusCode::kUnavailable);
}

TEST_F(SessionChannelTest, ALastFrameArrivesAlthoughEarlierFramesAreUnread) {
  for (std::uint64_t i = 0; i < 5; ++i) ASSERT_TRUE(left_->Send(GrowFrame(i)).ok());
  SendRaw("no frame");
  ASSERT_TRUE(right_->SendLast(GrowFrame(77), GeneratedChannel::kAtOnce).ok());
  EXPECT_TRUE(absl::IsUnavailable(left_->Send(GrowFrame(6))));
  right_.reset();
  const absl::StatusOr<GeneratedFrame> last = left_->Receive();
  ASSERT_TRUE(last.ok()) << last.status();
  EXPECT_EQ(last->frame.grow().request_id(), 77u);
  EXPECT_TRUE(absl::IsUnavailable(left_->Receive().status()));
}

TEST_F(SessionChannelTest, FramesSentBeforeThePeersEndAreRead) {
  ASSERT_TRUE(left_->Send(GrowFrame(1)).ok());
  ASSERT_TRUE(left_->Send(GrowFrame(2)).ok());
  left_.reset();
  EXPECT_EQ(right_->Receive()->frame.grow().request_id(), 1u);
  EXPECT_EQ(right_->Receive()->frame.grow().request_id(), 2u);
  EXPECT_EQ(right_->Receive().status().code(), absl::StatusCode::kUnavailable);
}

TEST_F(SessionChannelTest, ADeadlineEndsAReceive) {
  EXPECT_EQ(right_->Receive(Past()).status().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(right_->Receive(Soon()).status().code(), absl::StatusCode::kDeadlineExceeded);
  ASSERT_TRUE(left_->Send(GrowFrame(5), {}, Past()).ok());
  EXPECT_EQ(right_->Receive(Past())->frame.grow().request_id(), 5u);
}

TEST_F(SessionChannelTest, APeerThatDoesNotReadEndsASendAtItsDeadlineAndLosesNothing) {
  std::uint64_t sent = 0;
  absl::Status status;
  while ((status = left_->Send(GrowFrame(sent + 1), {}, Past())).ok()) ++sent;
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded) << status;
  EXPECT_EQ(left_->Send(GrowFrame(sent + 1), {}, Soon()).code(), absl::StatusCode::kDeadlineExceeded);
  ASSERT_GT(sent, 10u);
  for (std::uint64_t id = 1; id <= sent; ++id) {
    ASSERT_EQ(right_->Receive(Past())->frame.grow().request_id(), id);
  }
  EXPECT_EQ(right_->Receive(Past()).status().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_TRUE(left_->Send(GrowFrame(1), {}, Past()).ok());
}

TEST_F(SessionChannelTest, ShutdownWakesAReceiveOfAnotherThread) {
  absl::Status status;
  std::thread receiver([this, &status] { status = right_->Receive().status(); });
  right_->Shutdown();
  receiver.join();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_TRUE(*right_);
  EXPECT_EQ(left_->Send(GrowFrame(1)).code(), absl::StatusCode::kUnavailable);
}

TEST_F(SessionChannelTest, ANonBlockingSocketWaitsAllTheSame) {
  ASSERT_EQ(::fcntl(right_->fd(), F_SETFL, O_NONBLOCK), 0);
  std::thread sender([this] { EXPECT_TRUE(left_->Send(GrowFrame(1)).ok()); });
  auto received = right_->Receive();
  sender.join();
  EXPECT_TRUE(received.ok()) << received.status();
}

TEST_F(SessionChannelTest, OneThreadSendsWhileAnotherReceives) {
  constexpr std::uint64_t kFrames = 3000;
  const UniqueFd file = Memfd();
  const auto send = [&file](GeneratedChannel& channel) {
    for (std::uint64_t id = 1; id <= kFrames; ++id) {
      const std::array<int, 1> fds = {file.get()};
      ASSERT_TRUE(
          channel.Send(GrowFrame(id), id % 3 == 0 ? std::span<const int>(fds) : std::span<const int>()).ok());
    }
  };
  const auto receive = [](GeneratedChannel& channel) {
    for (std::uint64_t id = 1; id <= kFrames; ++id) {
      const absl::StatusOr<GeneratedFrame> received = channel.Receive(id % 2 == 0 ? Late() : std::nullopt);
      ASSERT_TRUE(received.ok()) << received.status();
      ASSERT_EQ(received->frame.grow().request_id(), id);
      ASSERT_EQ(received->fds.size(), id % 3 == 0 ? 1u : 0u);
    }
  };
  std::vector<std::thread> threads;
  for (GeneratedChannel* channel : {&*left_, &*right_}) {
    threads.emplace_back([&send, channel] { send(*channel); });
    threads.emplace_back([&receive, channel] { receive(*channel); });
  }
  for (std::thread& thread : threads) thread.join();
}

// The limit counts the descriptors of one user, and does not count those of root.
TEST_F(SessionChannelTest, TooManyDescriptorsInFlightAreSentLater) {
  constexpr uid_t kNobodyElse = 64217;
  const UniqueFd file = Memfd();
  const std::vector<int> fds(100, file.get());
  absl::Status status;
  int sent = 0;
  bool is_other_user = true;
  std::thread sender([&] {
    // By system call: the library's function would change every thread of the process.
    is_other_user = ::geteuid() != 0 || ::syscall(SYS_setresuid, -1, kNobodyElse, -1) == 0;
    if (!is_other_user) return;
    const OpenFilesLimit limit(150);
    while (sent < 10 && (status = left_->Send(GrowFrame(1), fds)).ok()) ++sent;
    if (absl::IsAborted(status)) {
      while (right_->Receive(Past()).ok()) {
      }
      // Other processes of the user may have as many in flight just now.
      absl::Status later;
      const GeneratedChannel::Deadline end = Late();
      while (absl::IsAborted(later = left_->Send(GrowFrame(1), fds)) && Clock::now() < *end) {
        std::this_thread::yield();
      }
      EXPECT_TRUE(later.ok()) << later;
    }
  });
  sender.join();
  if (!is_other_user) {
    GTEST_SKIP() << "root is not counted, and this sandbox does not let a thread change its user";
  }
  EXPECT_EQ(status.code(), absl::StatusCode::kAborted) << status << " after " << sent;
}

TEST_F(SessionChannelTest, ThePeersCredentialsAreTheKernels) {
  auto peer = GetPeerCredentials(left_->fd());
  ASSERT_TRUE(peer.ok());
  EXPECT_EQ(peer->uid, ::geteuid());
  EXPECT_EQ(peer->gid, ::getegid());
  EXPECT_EQ(peer->pid, ::getpid());
  EXPECT_FALSE(GetPeerCredentials(Memfd().get()).ok());
}

}  // namespace
}  // namespace lgpu
