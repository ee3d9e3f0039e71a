// A DaemonConnection's frames to the next daemon, case by case.

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "client/session/daemon_connection.h"
#include "proto/mapped_region.h"
#include "tests/client/fake_daemon.h"
#include "tests/support/child_program.h"

namespace lgpu {
namespace {

using ::lgpu::testing::Eventually;
using ::lgpu::testing::FakeDaemon;
using ::lgpu::testing::FakePeer;
using ::lgpu::testing::TempDir;

constexpr std::uint64_t kDeviceId = 1;
constexpr ChunkId kStays{11};
constexpr ChunkId kReturned{12};

/// The socket where the next daemon is.
class NextDaemon {
 public:
  explicit NextDaemon(const std::string& path)
      : socket_(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0)) {
    sockaddr_un address = {};
    address.sun_family = AF_UNIX;
    std::strncpy(address.sun_path, path.c_str(), sizeof(address.sun_path) - 1);
    EXPECT_EQ(::bind(socket_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
    EXPECT_EQ(::listen(socket_.get(), 1), 0);
  }
  FakePeer Accept() { return FakePeer(UniqueFd(::accept4(socket_.get(), nullptr, nullptr, SOCK_CLOEXEC))); }

 private:
  UniqueFd socket_;
};

class TwoChunks final : public DaemonConnection::Holder {
 public:
  absl::StatusOr<std::vector<DaemonConnection::HeldChunk>> Held() override {
    const Bytes size(std::uint64_t{2} << 20);
    return std::vector<DaemonConnection::HeldChunk>{{kDeviceId, {kStays, size}, nullptr},
                                                    {kDeviceId, {kReturned, size}, nullptr}};
  }
};

v1::Frame Resumed() {
  v1::Frame welcome = FakePeer::WelcomeFrame();
  welcome.mutable_welcome()->set_resumed(true);
  return welcome;
}

/// Knows the session that greets.
void WelcomeBack(FakePeer& peer) {
  const v1::Frame hello = peer.Read();
  ASSERT_TRUE(hello.has_hello() && hello.hello().has_resume()) << hello.DebugString();
  absl::StatusOr<SharedPage<StatsPage>> stats = SharedPages::CreateStatsPage(MapWithBoost);
  absl::StatusOr<SharedPage<const ClientPage>> page = SharedPages::CreateClientPage(MapWithBoost);
  ASSERT_TRUE(stats.ok() && page.ok());
  peer.Send(Resumed(), {stats->fd(), page->fd()});
}

/// Takes up the session that greets, which holds nothing.
void TakeUp(FakePeer& peer) {
  WelcomeBack(peer);
  const v1::Frame frame = peer.Read();
  ASSERT_TRUE(frame.has_attest()) << frame.DebugString();
  EXPECT_EQ(frame.attest().chunks_size(), 0);
  v1::Frame attested;
  attested.mutable_attested();
  peer.Send(attested);
}

void DieOfClose(FakePeer& peer) {
  peer.Greet();
  EXPECT_TRUE(peer.Read().has_close());
}

/// One Close waits a second for the next daemon; a daemon that is slow to take the session up needs another.
bool CloseRepeatedly(DaemonConnection& connection) {
  return Eventually([&connection] { return connection.Close().ok(); }, std::chrono::seconds(60));
}

v1::Frame GoodbyeOf(absl::StatusCode code, const std::string& message) {
  v1::Frame goodbye;
  goodbye.mutable_goodbye()->set_code(static_cast<int>(code));
  goodbye.mutable_goodbye()->set_message(message);
  return goodbye;
}

class DaemonConnectionResumeTest : public ::testing::Test {
 protected:
  /// A session whose daemon runs `script`, and is gone then.
  std::unique_ptr<DaemonConnection> Open(std::function<void(FakePeer&)> script) {
    first_.emplace(std::move(script));
    absl::StatusOr<std::unique_ptr<DaemonConnection>> connection = first_->Connect(path_);
    EXPECT_TRUE(connection.ok()) << connection.status();
    return *std::move(connection);
  }
  /// A session whose daemon goes after the greeting.
  std::unique_ptr<DaemonConnection> OpenAndLose() {
    std::unique_ptr<DaemonConnection> connection = Open([](FakePeer& peer) { peer.Greet(); });
    first_->Join();
    return connection;
  }

  const TempDir directory_;
  const std::string path_ = directory_.path() + "/session.sock";

 private:
  std::optional<FakeDaemon> first_;
};

// The chunk has been attested, and the connection is not back yet for the thread that returns the chunk.
TEST_F(DaemonConnectionResumeTest, AReturnDuringAttestationReachesTheNextDaemon) {
  NextDaemon next(path_);
  const std::unique_ptr<DaemonConnection> connection = OpenAndLose();
  TwoChunks chunks;
  connection->AddHolder(chunks);

  FakePeer peer = next.Accept();
  WelcomeBack(peer);
  v1::Frame frame = peer.Read();
  ASSERT_TRUE(frame.has_attest()) << frame.DebugString();
  ASSERT_EQ(frame.attest().chunks_size(), 2);

  const std::vector<ChunkId> returned = {kReturned};
  connection->StartReturn(returned);
  EXPECT_TRUE(connection->Return(kDeviceId, returned).ok());

  v1::Frame attested;
  attested.mutable_attested();
  peer.Send(attested);
  frame = peer.Read();
  ASSERT_TRUE(frame.has_return_chunks()) << frame.DebugString();
  ASSERT_EQ(frame.return_chunks().chunk_ids_size(), 1);
  EXPECT_EQ(frame.return_chunks().chunk_ids(0), kReturned.value);
  EXPECT_EQ(frame.return_chunks().device_id(), kDeviceId);
  connection->RemoveHolder(chunks);
}

// Chunks returned while no daemon is there are returned by being left out of the attestation.
TEST_F(DaemonConnectionResumeTest, ChunksReturnedWithoutADaemonAreNotAttested) {
  const std::unique_ptr<DaemonConnection> connection = OpenAndLose();
  TwoChunks chunks;
  connection->AddHolder(chunks);
  ASSERT_TRUE(Eventually([&] { return !connection->status().ok(); }));
  const std::vector<ChunkId> returned = {kReturned};
  connection->StartReturn(returned);
  EXPECT_TRUE(connection->Return(kDeviceId, returned).ok());

  NextDaemon next(path_);
  FakePeer peer = next.Accept();
  WelcomeBack(peer);
  const v1::Frame frame = peer.Read();
  ASSERT_TRUE(frame.has_attest()) << frame.DebugString();
  ASSERT_EQ(frame.attest().chunks_size(), 1);
  EXPECT_EQ(frame.attest().chunks(0).id(), kStays.value);
  connection->RemoveHolder(chunks);
}

/// Its second chunk is on its way back, and leaves when it is told to: the call of the last Held that has it
/// ends after the chunk's Return.
class ChunkThatLeaves final : public DaemonConnection::Holder {
 public:
  absl::StatusOr<std::vector<DaemonConnection::HeldChunk>> Held() override {
    const std::vector<ChunkId> leaves = {kReturned};
    EXPECT_TRUE(!leaves_ || connection_.Return(kDeviceId, leaves).ok());
    return TwoChunks().Held();
  }
  explicit ChunkThatLeaves(DaemonConnection& connection) : connection_(connection) {}
  void Leave() { leaves_ = true; }

 private:
  DaemonConnection& connection_;
  std::atomic<bool> leaves_{false};
};

// One daemon has the chunk back, since it was not attested; to the next it must not be attested either.
TEST_F(DaemonConnectionResumeTest, AChunkWhoseReturnEndsDuringAttestationIsNotAttestedToTheDaemonAfter) {
  NextDaemon next(path_);
  const std::unique_ptr<DaemonConnection> connection = OpenAndLose();
  ChunkThatLeaves chunks(*connection);
  connection->AddHolder(chunks);
  connection->StartReturn(std::vector<ChunkId>{kReturned});
  const auto is_left_out = [&](FakePeer& peer) {
    WelcomeBack(peer);
    const v1::Frame frame = peer.Read();
    ASSERT_TRUE(frame.has_attest()) << frame.DebugString();
    ASSERT_EQ(frame.attest().chunks_size(), 1);
    EXPECT_EQ(frame.attest().chunks(0).id(), kStays.value);
  };
  {
    FakePeer second = next.Accept();
    is_left_out(second);
    v1::Frame attested;
    attested.mutable_attested();
    second.Send(attested);
    ASSERT_TRUE(Eventually([&] { return connection->status().ok(); }));
    chunks.Leave();
  }
  FakePeer third = next.Accept();
  is_left_out(third);
  connection->RemoveHolder(chunks);
}

// The next daemon is of a later version, or knows nothing of this session: its answer is final.
TEST_F(DaemonConnectionResumeTest, AFinalAnswerIsNotAskedForAgain) {
  NextDaemon next(path_);
  const std::unique_ptr<DaemonConnection> connection = OpenAndLose();
  FakePeer peer = next.Accept();
  const v1::Frame hello = peer.Read();
  ASSERT_TRUE(hello.has_hello());
  EXPECT_EQ(hello.hello().protocol_version(), GeneratedChannel::kProtocolVersion);
  EXPECT_EQ(hello.hello().oldest_version(), GeneratedChannel::kOldestVersion);
  peer.Send(GoodbyeOf(absl::StatusCode::kFailedPrecondition,
                      "the client speaks versions 1 to 2, this daemon 3 to 5"));
  auto call =
      connection->Grow(kDeviceId, {.at_least = 2_MiB, .wanted = 2_MiB, .timeout = std::chrono::hours(1)});
  const absl::Status status = call.ok() ? call->Next().status() : call.status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
  EXPECT_NE(std::string(status.message()).find("this daemon 3 to 5"), std::string::npos) << status;
}

// A Goodbye ends the session with its reason for every code, also for CANCELLED.
TEST_F(DaemonConnectionResumeTest, ADaemonThatTakesNoSessionUpEndsIt) {
  NextDaemon next(path_);
  const std::unique_ptr<DaemonConnection> connection = Open([](FakePeer& peer) { peer.Greet(); });
  FakePeer peer = next.Accept();
  EXPECT_TRUE(peer.Read().hello().has_resume());
  absl::StatusOr<SharedPage<StatsPage>> stats = SharedPages::CreateStatsPage(MapWithBoost);
  absl::StatusOr<SharedPage<const ClientPage>> page = SharedPages::CreateClientPage(MapWithBoost);
  ASSERT_TRUE(stats.ok() && page.ok());
  peer.Send(FakePeer::WelcomeFrame(), {stats->fd(), page->fd()});
  EXPECT_TRUE(Eventually([&] { return connection->IsOver(); }));
  EXPECT_TRUE(absl::IsFailedPrecondition(connection->status())) << connection->status();
  EXPECT_NE(connection->status().message().find("open a new Context"), std::string::npos);
}

TEST_F(DaemonConnectionResumeTest, ACancelledSessionIsNoHangUp) {
  NextDaemon next(path_);
  const std::unique_ptr<DaemonConnection> connection = OpenAndLose();
  FakePeer peer = next.Accept();
  EXPECT_TRUE(peer.Read().has_hello());
  peer.Send(GoodbyeOf(absl::StatusCode::kCancelled, "somebody cancelled it"));
  ASSERT_TRUE(Eventually([&] { return connection->IsOver(); }));
  EXPECT_EQ(connection->status().message(), "somebody cancelled it");
}

// A lease that was removed: no call waits for the next daemon.
TEST_F(DaemonConnectionResumeTest, AGoodbyeOfTheDaemonEndsTheSession) {
  const std::unique_ptr<DaemonConnection> connection = Open([](FakePeer& peer) {
    peer.Greet();
    peer.Send(GoodbyeOf(absl::StatusCode::kFailedPrecondition, "lease job is removed"));
  });
  ASSERT_TRUE(Eventually([&] { return connection->IsOver(); }));
  EXPECT_FALSE(connection->IsLost(0));
  const std::string why(connection->status().message());
  EXPECT_NE(why.find("lease job is removed"), std::string::npos) << why;
  EXPECT_NE(why.find("no more is granted"), std::string::npos) << why;
}

TEST_F(DaemonConnectionResumeTest, AnUnheardCloseIsSentToTheNextDaemon) {
  const std::unique_ptr<DaemonConnection> connection = OpenAndLose();
  const absl::Status closed = connection->Close();
  EXPECT_TRUE(absl::IsUnavailable(closed)) << closed;

  NextDaemon next(path_);
  FakePeer peer = next.Accept();
  TakeUp(peer);
  const v1::Frame close = peer.Read();
  ASSERT_TRUE(close.has_close()) << close.DebugString();
  peer.Closed(close.close().request_id());
  const absl::Status again = connection->Close();
  EXPECT_TRUE(again.ok()) << again;
}

// To the next daemon it would be a broken protocol, which ends the session.
TEST_F(DaemonConnectionResumeTest, AHookThatOutlivesItsDaemonIsNotAnswered) {
  const std::unique_ptr<DaemonConnection> connection = Open([](FakePeer& peer) {
    peer.Greet();
    v1::Frame frame;
    frame.mutable_release()->set_release_id(9);
    peer.Send(frame);
  });
  std::vector<DaemonConnection::ReleaseOfDaemon> releases;
  ASSERT_TRUE(Eventually([&] {
    releases = connection->TakeReleases();
    return !releases.empty();
  }));

  NextDaemon next(path_);
  FakePeer peer = next.Accept();
  TakeUp(peer);
  ASSERT_TRUE(Eventually([&] { return connection->status().ok(); }));
  connection->AnswerRelease(releases[0], absl::OkStatus());
  std::thread closing([&connection] { EXPECT_TRUE(connection->Close().ok()); });
  const v1::Frame next_frame = peer.Read();
  EXPECT_TRUE(next_frame.has_close()) << next_frame.DebugString();
  if (next_frame.has_close()) peer.Closed(next_frame.close().request_id());
  closing.join();
}

// The daemon dies with the Close that it has read.
TEST_F(DaemonConnectionResumeTest, ASuspensionThatOutlivesItsDaemonIsKnownToBeUnheard) {
  const std::unique_ptr<DaemonConnection> connection = Open([](FakePeer& peer) {
    peer.Greet();
    v1::Frame frame;
    frame.mutable_suspend()->set_order_id(9);
    peer.Send(frame);
  });
  std::vector<DaemonConnection::SuspendOfDaemon> orders;
  ASSERT_TRUE(Eventually([&] {
    orders = connection->TakeSuspends();
    return !orders.empty();
  }));

  NextDaemon next(path_);
  FakePeer peer = next.Accept();
  TakeUp(peer);
  ASSERT_TRUE(Eventually([&] { return connection->status().ok(); }));
  EXPECT_NE(orders[0].generation, connection->generation());
  EXPECT_FALSE(connection->AnswerSuspend(orders[0], {.status = absl::OkStatus()}).ok());
  std::thread closing([&connection] { EXPECT_TRUE(connection->Close().ok()); });
  const v1::Frame next_frame = peer.Read();
  EXPECT_TRUE(next_frame.has_close()) << next_frame.DebugString();
  if (next_frame.has_close()) peer.Closed(next_frame.close().request_id());
  closing.join();
}

TEST_F(DaemonConnectionResumeTest, AnInterruptedCloseIsSentAgain) {
  NextDaemon next(path_);
  const std::unique_ptr<DaemonConnection> connection = Open(DieOfClose);
  std::thread second([&next] {
    FakePeer peer = next.Accept();
    TakeUp(peer);
    const v1::Frame close = peer.Read();
    EXPECT_TRUE(close.has_close()) << close.DebugString();
    peer.Closed(close.close().request_id());
  });
  EXPECT_TRUE(CloseRepeatedly(*connection));
  second.join();
}

// The daemon before had ended it, and could not say so any more.
TEST_F(DaemonConnectionResumeTest, ASessionUnknownToTheNextDaemonHasEnded) {
  NextDaemon next(path_);
  const std::unique_ptr<DaemonConnection> connection = Open(DieOfClose);
  std::thread second([&next] {
    FakePeer peer = next.Accept();
    EXPECT_TRUE(peer.Read().has_hello());
    peer.Send(GoodbyeOf(absl::StatusCode::kFailedPrecondition, "you have no such session at this lgpud"));
  });
  EXPECT_TRUE(CloseRepeatedly(*connection));
  second.join();
}

// The next daemon knows no session without a lease.
TEST_F(DaemonConnectionResumeTest, AttachingWhileTheDaemonIsStartedAgainIsUnavailable) {
  NextDaemon next(path_);
  const std::unique_ptr<DaemonConnection> connection = OpenAndLose();
  {
    FakePeer peer = next.Accept();
    EXPECT_TRUE(peer.Read().has_hello());
    peer.Send(GoodbyeOf(absl::StatusCode::kFailedPrecondition, "you have no such session at this lgpud"));
  }
  ASSERT_TRUE(Eventually([&] { return connection->IsOver(); }));
  const absl::Status status = connection->Attach("job").status();
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_NE(status.message().find("started again while the program attached to lease \"job\"; try again"),
            std::string::npos)
      << status;
}

// The socket of a daemon that is being killed takes a connection when the session has broken already.
TEST_F(DaemonConnectionResumeTest, AConnectionClosedWithoutAFrameGivesNoNewReason) {
  NextDaemon next(path_);
  const std::unique_ptr<DaemonConnection> connection = OpenAndLose();
  next.Accept();
  {
    FakePeer peer = next.Accept();
    EXPECT_TRUE(peer.Read().has_hello());
  }
  {
    FakePeer peer = next.Accept();
    WelcomeBack(peer);
    EXPECT_TRUE(peer.Read().has_attest());
  }
  FakePeer peer = next.Accept();  // the fourth attempt: the third one has failed by then
  const std::string why(connection->status().message());
  EXPECT_NE(why.find("is gone (it closed the session without a reason"), std::string::npos) << why;
  TakeUp(peer);
  EXPECT_TRUE(Eventually([&] { return connection->status().ok(); }));
  EXPECT_EQ(connection->generation(), 1u);
}

TEST_F(DaemonConnectionResumeTest, ADaemonThatRefusesForNowGivesItsReason) {
  NextDaemon next(path_);
  const std::unique_ptr<DaemonConnection> connection = OpenAndLose();
  {
    FakePeer peer = next.Accept();
    EXPECT_TRUE(peer.Read().has_hello());
    peer.Send(GoodbyeOf(absl::StatusCode::kUnavailable, "GPU 1 of the lease is not there"));
  }
  FakePeer peer = next.Accept();
  const std::string why(connection->status().message());
  EXPECT_NE(why.find("cannot be joined again now: GPU 1 of the lease is not there"), std::string::npos)
      << why;
  TakeUp(peer);
  EXPECT_TRUE(Eventually([&] { return connection->status().ok(); }));
}

// As between bind() and chmod() of a daemon that starts.
TEST_F(DaemonConnectionResumeTest, ASocketThatIsNotOpenYetIsTriedAgain) {
  NextDaemon next(path_);
  ASSERT_EQ(::chmod(directory_.path().c_str(), 0711), 0);
  ASSERT_EQ(::chmod(path_.c_str(), 0), 0);
  // Nothing is closed to root.
  const uid_t user = ::geteuid();
  ASSERT_EQ(user == 0 ? ::seteuid(65534) : 0, 0);
  const std::unique_ptr<DaemonConnection> connection = OpenAndLose();
  const auto says_why = [&] {
    return std::string(connection->status().message()).find("cannot be joined again now") !=
           std::string::npos;
  };
  EXPECT_TRUE(Eventually(says_why));
  EXPECT_TRUE(absl::IsUnavailable(connection->status())) << connection->status();
  ASSERT_EQ(::seteuid(user), 0);
  ASSERT_EQ(::chmod(path_.c_str(), 0777), 0);
  FakePeer peer = next.Accept();
  TakeUp(peer);
  EXPECT_TRUE(Eventually([&] { return connection->status().ok(); }));
  EXPECT_EQ(connection->generation(), 1u);
}

}  // namespace
}  // namespace lgpu
