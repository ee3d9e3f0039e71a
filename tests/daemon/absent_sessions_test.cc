// Sessions whose connection is lost and whose process lives with memory that it charged.
#include <gmock/gmock.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <filesystem>
#include <optional>
#include <thread>

#include "proto/wire/pages.h"
#include "tests/daemon/daemon_fixture.h"
#include "tests/support/child_program.h"

namespace lgpu::daemon {
namespace {

using testing::Eventually;
using ::testing::HasSubstr;

constexpr std::uint32_t kAttacker = 61301;
constexpr int kPlaces = 8;
constexpr int kPlacesOfOne = kPlaces / 2;

/// A child that maps the pages that it is sent, until it is killed.
class PageKeeper {
 public:
  PageKeeper() {
    std::array<int, 2> ends{};
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends.data()), 0);
    pid_ = ::fork();
    if (pid_ == 0) {
      ::close(ends[1]);
      Keep(GeneratedChannel(UniqueFd(ends[0])));
    }
    ::close(ends[0]);
    channel_ = GeneratedChannel(UniqueFd(ends[1]));
  }
  ~PageKeeper() { Kill(); }
  PageKeeper(const PageKeeper&) = delete;
  PageKeeper& operator=(const PageKeeper&) = delete;

  pid_t pid() const { return pid_; }
  void Map(const UniqueFd& page) {
    const int fds[] = {page.get()};
    EXPECT_TRUE(channel_.Send(Word(), fds).ok());
    EXPECT_TRUE(channel_.Receive().ok());
  }
  void Kill() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    ::waitpid(std::exchange(pid_, 0), nullptr, 0);
  }

 private:
  static v1::Frame Word() {
    v1::Frame frame;
    frame.mutable_attested();
    return frame;
  }
  [[noreturn]] static void Keep(GeneratedChannel channel) {
    while (true) {
      absl::StatusOr<GeneratedFrame> received = channel.Receive();
      if (!received.ok()) ::_exit(0);
      for (const UniqueFd& fd : received->fds) {
        if (::mmap(nullptr, 4096, PROT_READ, MAP_SHARED, fd.get(), 0) == MAP_FAILED) ::_exit(1);
      }
      channel.Send(Word()).IgnoreError();
    }
  }

  pid_t pid_ = 0;
  GeneratedChannel channel_;
};

class AbsentSessionsTest : public DaemonFixture {
 protected:
  void SetUp() override {
    Start();
    control_ = ConnectAs(Attacker());
    v1::CreateLeaseRequest request;
    request.set_lasting(true);
    AddDevice(request, 64);
    grpc::ClientContext context;
    ASSERT_TRUE(control_->CreateLease(&context, request, &lease_).ok());
  }

  void Start() {
    Config config;
    config.max_sessions = kPlaces;
    StartDaemon(config);
  }
  void Restart() {
    control_.reset();
    stub_.reset();
    daemon_.reset();
    registry_.reset();
    Start();
    control_ = ConnectAs(Attacker());
  }

  PeerCredentials Attacker() const { return {.uid = kAttacker, .gid = kAttacker, .pid = keeper_.pid()}; }
  std::unique_ptr<v1::Control::Stub> ConnectAs(const PeerCredentials& peer) {
    std::array<int, 2> ends{};
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends.data()), 0);
    daemon_->ServeControl(UniqueFd(ends[0]), peer);
    return v1::Control::NewStub(grpc::CreateInsecureChannelFromFd("lgpu", ends[1]));
  }

  /// The answer to a Hello of the attacker's process, as a new session or to resume `resumed`.
  GeneratedFrame Greet(TestSession& session, const v1::Welcome* resumed = nullptr) {
    std::array<int, 2> ends{};
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends.data()), 0);
    daemon_->ServeSession(UniqueFd(ends[0]), Attacker());
    session.channel = GeneratedChannel(UniqueFd(ends[1]));
    v1::Frame hello;
    hello.mutable_hello()->set_protocol_version(GeneratedChannel::kProtocolVersion);
    hello.mutable_hello()->set_oldest_version(GeneratedChannel::kChargeVersion);
    if (resumed != nullptr) {
      hello.mutable_hello()->mutable_resume()->set_session_id(resumed->session_id());
      hello.mutable_hello()->mutable_resume()->set_session_token(resumed->session_token());
    }
    session.channel.Send(hello).IgnoreError();
    return session.Receive();
  }

  /// A session of the attacker's process becomes absent: it maps its page, charges a byte, and closes the
  /// socket. The reason where lgpud gives it no session.
  std::optional<v1::Goodbye> LeaveOneAbsent() {
    TestSession session;
    const GeneratedFrame answer = Greet(session);
    if (answer.frame.has_goodbye()) return answer.frame.goodbye();
    EXPECT_TRUE(answer.frame.has_welcome()) << answer.frame.DebugString();
    keeper_.Map(answer.fds.at(1));
    welcome_ = answer.frame.welcome();
    v1::Frame attach;
    attach.mutable_attach()->set_request_id(1);
    attach.mutable_attach()->set_lease(lease_.id());
    session.Send(attach);
    EXPECT_EQ(session.Receive().frame.attached().code(), 0);
    v1::Frame charge;
    charge.mutable_charge()->set_request_id(2);
    charge.mutable_charge()->set_card_uuid(lease_.devices(0).card_uuid());
    charge.mutable_charge()->set_bytes(1);
    session.Send(charge);
    EXPECT_EQ(session.Receive().frame.charged().code(), 0);
    const int before = CountIn(v1::SessionStats::STATE_ABSENT);
    session = TestSession();
    EXPECT_TRUE(Eventually([&] { return CountIn(v1::SessionStats::STATE_ABSENT) > before; }));
    return std::nullopt;
  }
  /// The attacker makes sessions absent until lgpud refuses.
  void TakeTheWholeShare() {
    for (int i = 0; i < kPlacesOfOne; ++i) {
      const std::optional<v1::Goodbye> refused = LeaveOneAbsent();
      ASSERT_FALSE(refused) << "session " << i << ": " << refused->message();
    }
    ExpectRefused();
  }
  void ExpectRefused() {
    const std::optional<v1::Goodbye> refused = LeaveOneAbsent();
    ASSERT_TRUE(refused);
    EXPECT_EQ(refused->code(), static_cast<int>(absl::StatusCode::kResourceExhausted));
    EXPECT_THAT(refused->message(),
                HasSubstr("your programs have 4 sessions, which is your share of the 8 of this lgpud"));
  }

  int CountIn(v1::SessionStats::State state) {
    int count = 0;
    const v1::StatsSnapshot stats = Stats();
    for (const v1::LeaseStats& lease : stats.leases()) {
      for (const v1::SessionStats& session : lease.sessions()) count += session.state() == state;
    }
    return count;
  }
  /// Pages of sessions that this process has open: the daemon's, and none of the clients'.
  static int OpenPages() {
    int count = 0;
    for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
      std::error_code error;
      const std::string name = std::filesystem::read_symlink(entry.path(), error).string();
      count += name.find("memfd:lgpu-client") != std::string::npos ||
               name.find("memfd:lgpu-stats") != std::string::npos;
    }
    return count;
  }

  PageKeeper keeper_;
  std::unique_ptr<v1::Control::Stub> control_;  // the attacker's
  v1::Lease lease_;
  v1::Welcome welcome_;  // of the last session
};

TEST_F(AbsentSessionsTest, TheyCountInTheirUsersShareUntilTheirProcessEnds) {
  TakeTheWholeShare();
  EXPECT_EQ(CountIn(v1::SessionStats::STATE_ABSENT), kPlacesOfOne);
  EXPECT_TRUE(Eventually([&] { return OpenPages() == 0; }));
  {
    TestSession other = OpenSession();
    CreateLease(other, 64);
    other.Send(Close());
    EXPECT_TRUE(other.Receive().frame.has_closed());
  }
  keeper_.Kill();
  ASSERT_TRUE(Eventually([&] {
    return CountIn(v1::SessionStats::STATE_ABSENT) == 0 && CountIn(v1::SessionStats::STATE_DRAINING) == 0;
  }));
  PageKeeper next;
  std::vector<TestSession> sessions;
  const PeerCredentials peer{.uid = kAttacker, .gid = kAttacker, .pid = next.pid()};
  const auto connect = [&] {
    std::array<int, 2> ends{};
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends.data()), 0);
    daemon_->ServeSession(UniqueFd(ends[0]), peer);
    TestSession session{.channel = GeneratedChannel(UniqueFd(ends[1])), .token = "", .pages = {}};
    v1::Frame hello;
    hello.mutable_hello()->set_protocol_version(GeneratedChannel::kProtocolVersion);
    hello.mutable_hello()->set_oldest_version(GeneratedChannel::kOldestVersion);
    session.channel.Send(hello).IgnoreError();  // a refused one is closed already
    if (!session.Receive().frame.has_welcome()) return false;
    sessions.push_back(std::move(session));
    return true;
  };
  // The last one's place comes back a moment after the statistics have forgotten it.
  for (int i = 0; i < kPlacesOfOne; ++i) EXPECT_TRUE(Eventually(connect)) << i;
}

TEST_F(AbsentSessionsTest, SessionsOfARemovedLeaseCountWhileTheirProcessKeepsItsCharges) {
  TakeTheWholeShare();
  grpc::ClientContext context;
  std::thread remover([&] {
    v1::RemoveLeaseRequest request;
    request.set_lease(lease_.id());
    v1::RemoveLeaseResponse reply;
    control_->RemoveLease(&context, request, &reply);  // it waits for memory that does not come back
  });
  const bool are_draining =
      Eventually([&] { return CountIn(v1::SessionStats::STATE_DRAINING) == kPlacesOfOne; });
  context.TryCancel();
  remover.join();
  ASSERT_TRUE(are_draining);
  ExpectRefused();
  keeper_.Kill();
  EXPECT_TRUE(Eventually([&] { return Stats().leases_size() == 0; }));
}

TEST_F(AbsentSessionsTest, AfterARestartTheyKeepTheirPlacesAndResumeWithoutAnother) {
  TakeTheWholeShare();
  Restart();
  EXPECT_EQ(CountIn(v1::SessionStats::STATE_ABSENT), kPlacesOfOne);
  ExpectRefused();
  OpenSession();
  TestSession session;
  const v1::Welcome last = welcome_;
  const GeneratedFrame answer = Greet(session, &last);
  ASSERT_TRUE(answer.frame.has_welcome()) << answer.frame.DebugString();
  EXPECT_TRUE(answer.frame.welcome().resumed());
  ExpectRefused();
}

}  // namespace
}  // namespace lgpu::daemon
