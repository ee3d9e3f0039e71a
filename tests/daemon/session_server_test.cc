#include <fcntl.h>
#include <gmock/gmock.h>
#include <sys/resource.h>
#include <unistd.h>

#include <functional>

#include "daemon/sessions/session.h"
#include "tests/daemon/daemon_fixture.h"
#include "tests/support/open_files_limit.h"

namespace lgpu::daemon {
namespace {

class SessionServerTest : public DaemonFixture {
 protected:
  // Sends `frame` and expects to be thrown out, while another session goes on.
  void ExpectGoodbye(TestSession& session, const v1::Frame& frame, std::span<const int> fds = {}) {
    session.Send(frame, fds);
    const GeneratedFrame answer = session.Receive();
    EXPECT_TRUE(answer.frame.has_goodbye()) << answer.frame.DebugString();
    EXPECT_EQ(answer.frame.goodbye().code(), static_cast<int>(absl::StatusCode::kInvalidArgument));
    EXPECT_FALSE(answer.frame.goodbye().message().empty());
    OpenSession();
  }
};

TEST_F(SessionServerTest, AGrantBringsItsDescriptorsAndCloseGivesAllBack) {
  TestSession session = OpenSession();
  EXPECT_EQ(session.pages.size(), 2u);
  EXPECT_EQ(session.token.size(), 32u);
  const v1::Lease lease = CreateLease(session, 64);
  session.Send(Grow(1, lease, 5 * kMiB));
  const GeneratedFrame granted = session.Receive();
  ASSERT_TRUE(granted.frame.has_grant()) << granted.frame.DebugString();
  EXPECT_EQ(granted.frame.grant().chunks_size(), 3);
  EXPECT_EQ(granted.fds.size(), 3u);
  EXPECT_EQ(HeldBytes(), 6 * kMiB);
  session.Send(Ack(granted.frame.grant()));
  session.Send(Close());
  EXPECT_EQ(session.Receive().frame.closed().request_id(), 77u);
  const v1::StatsSnapshot stats = Stats();
  EXPECT_EQ(stats.cards(0).held_bytes(), 0u);
  EXPECT_EQ(stats.leases_size(), 0);
}

TEST_F(SessionServerTest, AReturnedChunkIsFreeAndTheOtherChunksStayHeld) {
  TestSession session = OpenSession();
  const v1::Lease lease = CreateLease(session, 64);
  session.Send(Grow(1, lease, 4 * kMiB));
  const GeneratedFrame granted = session.Receive();
  session.Send(Ack(granted.frame.grant()));
  v1::Frame give_back;
  v1::ReturnRequest& request = *give_back.mutable_return_chunks();
  request.set_device_id(lease.devices(0).id());
  request.add_chunk_ids(granted.frame.grant().chunks(0).id());
  session.Send(give_back);
  EXPECT_EQ(session.Receive().frame.returned().code(), 0);
  EXPECT_EQ(HeldBytes(), 2 * kMiB);
  session.Send(give_back);
  EXPECT_EQ(session.Receive().frame.returned().code(), static_cast<int>(absl::StatusCode::kInvalidArgument));
  EXPECT_EQ(HeldBytes(), 2 * kMiB);
}

TEST_F(SessionServerTest, AReturnIsServedWhileAGrowOfTheSameSessionWaits) {
  TestSession session = OpenSession();
  TestSession other = OpenSession();
  const v1::Lease lease = CreateLease(session, 256);
  const v1::Lease second = CreateLease(other, 256);
  other.Send(Grow(1, second, 2 * kMiB));
  other.Send(Ack(other.Receive().frame.grant()));
  session.Send(Grow(1, lease, 200 * kMiB));
  std::vector<std::uint64_t> chunks;
  for (bool more = true; more;) {
    const GeneratedFrame page = session.Receive();
    for (const v1::Chunk& chunk : page.frame.grant().chunks()) chunks.push_back(chunk.id());
    session.Send(Ack(page.frame.grant()));
    more = page.frame.grant().more();
  }
  session.Send(Grow(2, lease, 56 * kMiB, 3'600'000));
  v1::Frame give_back;
  give_back.mutable_return_chunks()->set_device_id(lease.devices(0).id());
  for (const std::uint64_t chunk : chunks) give_back.mutable_return_chunks()->add_chunk_ids(chunk);
  session.Send(give_back);
  EXPECT_EQ(session.Receive().frame.returned().code(), 0);
  const GeneratedFrame granted = session.Receive();
  ASSERT_TRUE(granted.frame.has_grant()) << granted.frame.DebugString();
  EXPECT_EQ(granted.frame.grant().request_id(), 2u);
}

TEST_F(SessionServerTest, AWithdrawnGrowIsAnsweredAndFreesTheQueue) {
  TestSession session = OpenSession();
  TestSession other = OpenSession();
  TestSession holder = OpenSession();
  const v1::Lease lease = CreateLease(session, 256);
  const v1::Lease second = CreateLease(other, 256);
  const v1::Lease third = CreateLease(holder, 256);
  holder.Send(Grow(1, third, 128 * kMiB));
  holder.Send(Ack(holder.Receive().frame.grant()));
  session.Send(Grow(5, lease, 200 * kMiB, 3'600'000));
  while (Stats().cards(0).waiting_requests() == 0) {
  }
  const auto withdraw = [&](std::uint64_t request) {
    v1::Frame frame;
    frame.mutable_withdraw()->set_request_id(request);
    session.Send(frame);
  };
  withdraw(4);  // is not there: nothing happens
  withdraw(5);
  const v1::GrowRefused refused = session.Receive().frame.grow_refused();
  EXPECT_EQ(refused.request_id(), 5u);
  EXPECT_EQ(refused.code(), static_cast<int>(absl::StatusCode::kCancelled));
  withdraw(5);
  EXPECT_EQ(Stats().cards(0).waiting_requests(), 0u);
  other.Send(Grow(1, second, 100 * kMiB));
  EXPECT_TRUE(other.Receive().frame.has_grant());
  session.Send(Grow(6, lease, 2 * kMiB));
  EXPECT_TRUE(session.Receive().frame.has_grant());
}

TEST_F(SessionServerTest, ALostSessionGivesItsMemoryBack) {
  {
    TestSession session = OpenSession();
    const v1::Lease lease = CreateLease(session, 64);
    session.Send(Grow(1, lease, 4 * kMiB));
    session.Receive();
    EXPECT_EQ(HeldBytes(), 4 * kMiB);
  }
  // This process lives on, so it takes the grace; the stream says when.
  grpc::ClientContext context;
  v1::WatchEventsRequest request;
  const auto stream = stub_->WatchEvents(&context, request);
  v1::Event event;
  std::vector<v1::Event::Kind> kinds;
  while (stream->Read(&event) && event.kind() != v1::Event::KIND_LEASE_REMOVED) kinds.push_back(event.kind());
  EXPECT_EQ(kinds.back(), v1::Event::KIND_SESSION_GONE);
  EXPECT_EQ(kinds[kinds.size() - 2], v1::Event::KIND_SESSION_LOST);
  EXPECT_EQ(HeldBytes(), 0u);
  context.TryCancel();
}

TEST_F(SessionServerTest, ProtocolErrorsCostOnlyTheirSender) {
  TestSession empty = OpenSession();
  v1::Frame welcome;
  welcome.mutable_welcome();
  ExpectGoodbye(empty, welcome);
  TestSession twice = OpenSession();
  v1::Frame hello;
  hello.mutable_hello()->set_protocol_version(1);
  ExpectGoodbye(twice, hello);
  TestSession unknown_ack = OpenSession();
  v1::Grant grant;
  grant.set_grant_id(5);
  ExpectGoodbye(unknown_ack, Ack(grant));
  TestSession with_fd = OpenSession();
  const UniqueFd null(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  const int fds[] = {null.get()};
  ExpectGoodbye(with_fd, Close(), fds);
  TestSession garbage = OpenSession();
  ASSERT_GT(::send(garbage.channel.fd(), "\xff\xff\xff", 3, 0), 0);
  EXPECT_TRUE(garbage.Receive().frame.has_goodbye());
}

TEST_F(SessionServerTest, TheFirstFrameIsHelloOfAKnownVersion) {
  TestSession session{.channel = ConnectSession(), .token = "", .pages = {}};
  session.Send(Close());
  EXPECT_TRUE(session.Receive().frame.has_goodbye());
  TestSession old{.channel = ConnectSession(), .token = "", .pages = {}};
  v1::Frame hello;
  hello.mutable_hello()->set_protocol_version(99);
  hello.mutable_hello()->set_oldest_version(98);
  old.Send(hello);
  EXPECT_EQ(old.Receive().frame.goodbye().code(), static_cast<int>(absl::StatusCode::kFailedPrecondition));
}

TEST_F(SessionServerTest, SizesAndDevicesThatCannotBeAreRefused) {
  TestSession session = OpenSession();
  TestSession other = OpenSession();
  const v1::Lease lease = CreateLease(session, 64);
  const v1::Lease foreign = CreateLease(other, 64);
  const std::vector<std::pair<v1::Frame, absl::StatusCode>> cases = {
      {Grow(1, lease, 0), absl::StatusCode::kInvalidArgument},
      {Grow(2, lease, ~std::uint64_t{0}), absl::StatusCode::kResourceExhausted},
      {Grow(3, lease, std::uint64_t{1} << 63), absl::StatusCode::kResourceExhausted},
      {Grow(4, foreign, kMiB), absl::StatusCode::kNotFound}};
  for (const auto& [frame, code] : cases) {
    session.Send(frame);
    const GeneratedFrame answer = session.Receive();
    EXPECT_EQ(answer.frame.grow_refused().code(), static_cast<int>(code)) << answer.frame.DebugString();
  }
  EXPECT_EQ(HeldBytes(), 0u);
}

TEST_F(SessionServerTest, StopDoesNotWaitForAClientThatDoesNotRead) {
  TestSession session = OpenSession();
  const v1::Lease lease = CreateLease(session, 64);
  v1::Frame wrong;
  wrong.mutable_return_chunks()->set_device_id(lease.devices(0).id());
  absl::Status sent;
  while (sent.ok()) {  // until the daemon's thread is stuck in its answers
    sent = session.channel.Send(wrong, {}, std::chrono::steady_clock::now() + std::chrono::milliseconds(200));
  }
  ASSERT_TRUE(absl::IsDeadlineExceeded(sent)) << sent;
  const auto start = std::chrono::steady_clock::now();
  daemon_->Stop();
  EXPECT_LT(std::chrono::steady_clock::now() - start, Session::kSendTimeout - std::chrono::seconds(1));
}

// Clients that never read do not keep other clients from being served.
class UnreadSessionsTest : public SessionServerTest {
 protected:
  const OpenFilesLimit files_{1024};
};

TEST_F(UnreadSessionsTest, TwentySessionsThatNeverReadLeaveAnotherServed) {
  std::vector<TestSession> silent;
  for (int i = 0; i < 20; ++i) {
    silent.push_back(OpenSession());
    const v1::Lease lease = CreateLease(silent.back(), 64);
    for (std::uint64_t request = 1; request <= 4; ++request) {
      silent.back().Send(Grow(request, lease, 2 * kMiB));
    }
  }
  TestSession session = OpenSession();
  const v1::Lease lease = CreateLease(session, 64);
  session.Send(Grow(1, lease, 20 * kMiB));
  int chunks = 0;
  for (bool more = true; more;) {
    const GeneratedFrame page = session.Receive();
    ASSERT_TRUE(page.frame.has_grant()) << page.frame.DebugString();
    chunks += page.frame.grant().chunks_size();
    session.Send(Ack(page.frame.grant()));
    more = page.frame.grant().more();
  }
  EXPECT_EQ(chunks, 10);
}

class FewSessionsTest : public DaemonFixture {
 protected:
  void SetUp() override {
    Config config;
    config.max_sessions = 8;
    StartDaemon(config);
  }
};

// A connection that says nothing counts as a session: it cannot be used to get more than a share.
TEST_F(FewSessionsTest, ConnectionsWithoutAHelloLeaveSessionsToOtherUsers) {
  std::vector<GeneratedChannel> silent;
  for (int i = 0; i < 5; ++i) {
    int ends[2];
    ASSERT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
    daemon_->ServeSession(UniqueFd(ends[0]), {.uid = 12345, .gid = 12345, .pid = ::getpid()});
    silent.emplace_back(UniqueFd(ends[1]));
  }
  absl::StatusOr<GeneratedFrame> answer =
      silent.back().Receive(std::chrono::steady_clock::now() + std::chrono::seconds(30));
  ASSERT_TRUE(answer.ok()) << answer.status();
  EXPECT_EQ(answer->frame.goodbye().code(), static_cast<int>(absl::StatusCode::kResourceExhausted));
  EXPECT_THAT(answer->frame.goodbye().message(),
              ::testing::HasSubstr("your programs have 4 connections, which is your share of the 8"));
  OpenSession();
  // A place is free again when its connection is closed.
  silent.clear();
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  bool served = false;
  while (!served && std::chrono::steady_clock::now() < end) {
    int ends[2];
    ASSERT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
    daemon_->ServeSession(UniqueFd(ends[0]), {.uid = 12345, .gid = 12345, .pid = ::getpid()});
    GeneratedChannel again{UniqueFd(ends[1])};
    served = absl::IsDeadlineExceeded(
        again.Receive(std::chrono::steady_clock::now() + std::chrono::milliseconds(10)).status());
  }
  EXPECT_TRUE(served);
}

}  // namespace
}  // namespace lgpu::daemon
