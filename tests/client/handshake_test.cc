// The handshake of a session, answer by answer, and the times of its attempts.

#include "client/link/handshake.h"

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "client/link/attempts.h"

namespace lgpu::link {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;
using Kind = Reply::Kind;

constexpr char kToken[] = "0123456789abcdef0123456789abcdef";
constexpr bool kNew = false, kResumes = true;

/// The daemon's end of a handshake: it reads a frame for each answer.
class HandshakeTest : public ::testing::Test {
 protected:
  HandshakeTest() {
    int pair[2];
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
    client_ = wire::FrameChannel(UniqueFd(pair[0]));
    daemon_ = wire::FrameChannel(UniqueFd(pair[1]));
  }
  ~HandshakeTest() override {
    if (thread_.joinable()) thread_.join();
  }

  void Daemon(std::function<void(wire::FrameChannel&)> script) {
    thread_ = std::thread([this, script = std::move(script)] {
      script(daemon_);
      daemon_ = {};
    });
  }
  /// A daemon that takes Hello and answers with `frame`, with or without two pages.
  void AnswerHello(wire::Frame frame, bool with_pages = true) {
    Daemon([this, frame = std::move(frame), with_pages](wire::FrameChannel& channel) {
      ASSERT_TRUE(channel.Receive(heard_, Soon()).ok());
      SendWithPages(channel, frame, with_pages);
    });
  }
  static void SendWithPages(wire::FrameChannel& channel, const wire::Frame& frame, bool with_pages) {
    auto stats = SharedPages::CreateStatsPage(MapWithLibc);
    auto page = SharedPages::CreateClientPage(MapWithLibc);
    ASSERT_TRUE(stats.ok() && page.ok());
    (*stats)->epoch = 2;
    const std::vector<int> fds =
        with_pages ? std::vector<int>{stats->fd(), page->fd()} : std::vector<int>{stats->fd()};
    EXPECT_TRUE(channel.Send(frame, fds, Soon()).ok());
  }
  static wire::Welcome Welcome() {
    wire::Welcome welcome;
    welcome.protocol_version = wire::Protocol::kProtocolVersion;
    welcome.session_id = 7;
    welcome.session_token.bytes = kToken;
    return welcome;
  }
  static Clock::time_point Soon() { return Clock::now() + std::chrono::seconds(20); }
  Reply Greet(bool resumes, Clock::time_point deadline = Soon()) {
    return handshake_.Greet(HelloOf("test", 3), resumes, member_, deadline);
  }
  /// A client that has greeted an earlier daemon.
  void HasMet() {
    member_.session_id = 7;
    member_.token = kToken;
  }

  wire::FrameChannel client_, daemon_;
  wire::ReceivedFrame heard_;
  Membership member_;
  Handshake handshake_{client_, nullptr};
  std::thread thread_;
};

TEST_F(HandshakeTest, AWelcomeMakesAMember) {
  AnswerHello({.body = Welcome()});
  ASSERT_TRUE(Greet(kNew).ok());
  ASSERT_TRUE(handshake_.TakePages(MapWithLibc, kNew, member_).ok());
  thread_.join();
  EXPECT_EQ(member_.session_id, 7u);
  EXPECT_EQ(member_.token, kToken);
  EXPECT_EQ(member_.version, wire::Protocol::kProtocolVersion);
  EXPECT_EQ(member_.stats->epoch, 2u);
  EXPECT_LT(member_.page.fd(), 0);
  const auto* const hello = heard_.frame.Get<wire::Hello>();
  ASSERT_NE(hello, nullptr);
  EXPECT_EQ(hello->oldest_version, 3u);
  EXPECT_FALSE(hello->command.empty());
  EXPECT_FALSE(hello->resume.has_value());
}

TEST_F(HandshakeTest, AResumedSessionKeepsItsNameAndItsPagesAddresses) {
  wire::ReceivedFrame again, attest;
  Daemon([&](wire::FrameChannel& channel) {
    wire::Welcome welcome = Welcome();
    ASSERT_TRUE(channel.Receive(heard_, Soon()).ok());
    SendWithPages(channel, {.body = welcome}, true);
    ASSERT_TRUE(channel.Receive(again, Soon()).ok());
    welcome.resumed = true;
    SendWithPages(channel, {.body = welcome}, true);
    ASSERT_TRUE(channel.Receive(attest, Soon()).ok());
    EXPECT_TRUE(channel.Send({.body = wire::Attested{}}).ok());
  });
  ASSERT_TRUE(Greet(kNew).ok());
  ASSERT_TRUE(handshake_.TakePages(MapWithLibc, kNew, member_).ok());
  EXPECT_EQ(member_.page->last_use, 0u);
  const StatsPage* const at = member_.stats.get();
  member_.makes_no_use = true;
  ASSERT_TRUE(Greet(kResumes).ok());
  ASSERT_TRUE(handshake_.TakePages(MapWithLibc, kResumes, member_).ok());
  EXPECT_EQ(member_.stats.get(), at);
  EXPECT_EQ(member_.page->last_use, ClientPage::kNoUse);
  EXPECT_TRUE(handshake_.Attest({.device_id = 1, .chunks = {{.id = 3}}}, {}, Soon()).ok());
  thread_.join();
  const auto* const hello = again.frame.Get<wire::Hello>();
  ASSERT_TRUE(hello != nullptr && hello->resume.has_value());
  EXPECT_EQ(hello->resume->session_id, 7u);
  EXPECT_EQ(hello->resume->session_token.bytes, kToken);
  const auto* const page = attest.frame.Get<wire::Attest>();
  ASSERT_TRUE(page != nullptr && page->chunks.size() == 1);
  EXPECT_EQ(page->chunks[0].id, 3u);
}

TEST_F(HandshakeTest, AStrangeWelcomeIsFinal) {
  HasMet();
  wire::Welcome wrong = Welcome();
  wrong.resumed = true;
  wrong.session_token.bytes = "another";
  AnswerHello({.body = wrong});
  const Reply reply = Greet(kResumes);
  EXPECT_EQ(reply.kind, Kind::kStrange);
  EXPECT_FALSE(reply.MayBeAskedAgain());
}

TEST_F(HandshakeTest, ADaemonThatDidNotResumeIsStrange) {
  HasMet();
  AnswerHello({.body = Welcome()});
  EXPECT_EQ(Greet(kResumes).kind, Kind::kStrange);
}

TEST_F(HandshakeTest, AWelcomeWithoutItsPagesIsStrange) {
  AnswerHello({.body = Welcome()}, false);
  EXPECT_EQ(Greet(kNew).kind, Kind::kStrange);
}

TEST_F(HandshakeTest, AVersionThatWasNotOfferedIsRefused) {
  wire::Welcome older = Welcome();
  older.protocol_version = 2;
  AnswerHello({.body = older});
  const Reply reply = Greet(kNew);
  EXPECT_EQ(reply.kind, Kind::kOtherVersion);
  EXPECT_FALSE(reply.MayBeAskedAgain());
}

TEST_F(HandshakeTest, AGoodbyeIsFinalByItsCode) {
  AnswerHello({.body = wire::Goodbye{.code = 7, .message = "not yours"}}, false);
  const Reply reply = Greet(kNew);
  EXPECT_EQ(reply.kind, Kind::kGoodbye);
  EXPECT_EQ(reply.status.message, "not yours");
  EXPECT_FALSE(reply.MayBeAskedAgain());
}

TEST(GoodbyeTest, OnlyUnavailableLetsTheNextDaemonTakeTheSessionUp) {
  EXPECT_TRUE(Passes({.code = 14, .message = "stopping"}));
  EXPECT_FALSE(Passes({.code = 9, .message = "lease a is removed"}));
  EXPECT_FALSE(Passes({.code = 8, .message = "too much"}));
}

TEST_F(HandshakeTest, AGoodbyeBeforeTheHelloIsRead) {
  Daemon([](wire::FrameChannel& channel) {
    EXPECT_TRUE(channel.Send({.body = wire::Goodbye{.code = 14, .message = "full"}}).ok());
  });
  thread_.join();  // the socket is closed: Hello cannot be sent
  const Reply reply = Greet(kNew);
  EXPECT_EQ(reply.kind, Kind::kGoodbye);
  EXPECT_TRUE(reply.MayBeAskedAgain());
}

TEST_F(HandshakeTest, ADaemonThatHangsUpHasDecidedNothing) {
  Daemon([](wire::FrameChannel&) {});
  const Reply reply = Greet(kNew);
  EXPECT_EQ(reply.kind, Kind::kHungUp);
  EXPECT_TRUE(reply.MayBeAskedAgain());
}

TEST_F(HandshakeTest, SilenceEndsAtTheDeadline) {
  const Reply reply = Greet(kNew, Clock::now() + milliseconds(5));
  EXPECT_EQ(reply.kind, Kind::kSilent);
  EXPECT_EQ(reply.status.code, PlainCode::kDeadlineExceeded);
  EXPECT_TRUE(reply.MayBeAskedAgain());
}

TEST_F(HandshakeTest, AWatchEndsTheWait) {
  class StopsAtThirdLook final : public Watch {
   public:
    TimePoint NextLook(TimePoint) override { return Clock::now() + milliseconds(1); }
    bool IsToStop() override { return ++looks_ == 3; }

   private:
    int looks_ = 0;
  };
  StopsAtThirdLook watch;
  Handshake handshake(client_, &watch);
  EXPECT_EQ(handshake.Greet(HelloOf("test", 3), kNew, member_, Soon()).kind, Kind::kStopped);
}

TEST_F(HandshakeTest, ARefusedLeaseIsFinalByItsCode) {
  Daemon([this](wire::FrameChannel& channel) {
    wire::Lease lease;
    lease.name = "a";
    const auto answer = [&](int code, std::optional<wire::Lease> with) {
      ASSERT_TRUE(channel.Receive(heard_, Soon()).ok());
      const wire::Attached attached{.request_id = 1, .code = code, .message = "no", .lease = std::move(with)};
      EXPECT_TRUE(channel.Send({.body = attached}).ok());
    };
    answer(8, {});
    answer(5, {});
    answer(0, lease);
    answer(0, {});
  });
  wire::Lease lease;
  const Reply full = handshake_.Attach(1, "a", lease, Soon());
  EXPECT_EQ(full.kind, Kind::kRefused);
  EXPECT_TRUE(full.MayBeAskedAgain());
  EXPECT_FALSE(handshake_.Attach(1, "a", lease, Soon()).MayBeAskedAgain());
  EXPECT_TRUE(handshake_.Attach(1, "a", lease, Soon()).ok());
  EXPECT_EQ(lease.name, "a");
  EXPECT_EQ(handshake_.Attach(1, "a", lease, Soon()).kind, Kind::kStrange);  // neither a lease nor a refusal
}

TEST(AttemptsTest, PausesGrowFromFiveToTwoHundredMilliseconds) {
  const Clock::time_point start{};
  Attempts attempts;
  EXPECT_FALSE(attempts.next().has_value());
  for (int round = 0; round < 2; ++round) {
    attempts.Start(start);
    EXPECT_EQ(attempts.next(), start);
    for (const int pause : {5, 10, 20, 40, 80, 160, 200, 200}) {
      EXPECT_EQ(attempts.Fail(start), start + milliseconds(pause));
      EXPECT_EQ(attempts.next(), start + milliseconds(pause));
    }
    attempts.Stop();
    EXPECT_FALSE(attempts.next().has_value());
  }
}

}  // namespace
}  // namespace lgpu::link
