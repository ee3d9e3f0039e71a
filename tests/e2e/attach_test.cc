// Programs that attach to a lease over the session socket alone.

#include <unistd.h>

#include "absl/strings/str_cat.h"
#include "tests/e2e/harness.h"

namespace lgpu::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

class AttachTest : public E2eTest {
 protected:
  /// A program of client/session (tests/e2e/session_client.cc).
  std::unique_ptr<ChildProgram> StartSessionClient() {
    auto client = ChildProgram::Start({.argv = {DaemonProcess::ProgramPath(LGPU_SESSION_CLIENT)},
                                       .environment = {{"LGPU_ENDPOINT", daemon_->dir()}}});
    EXPECT_TRUE(client.ok()) << client.status();
    return *std::move(client);
  }
  /// Runs a verb of lgpu and gives its output without the last line break.
  std::string Lgpu(std::vector<std::string> words) {
    words.insert(words.begin(), DaemonProcess::LgpuPath());
    const auto result = RunProgram({.argv = words, .environment = {{"LGPU_ENDPOINT", daemon_->dir()}}});
    EXPECT_TRUE(result.ok() && result->code == 0) << (result.ok() ? result->err : result.status().ToString());
    return result->out.substr(0, result->out.find('\n'));
  }
  v1::LeaseStats LeaseOf(const std::string& id) {
    const v1::StatsSnapshot stats = Stats();
    for (const v1::LeaseStats& lease : stats.leases()) {
      if (lease.id() == id) return lease;
    }
    ADD_FAILURE() << "no lease " << id;
    return {};
  }
  static v1::Frame AttachFrame(const std::string& lease, std::uint64_t request = 1) {
    v1::Frame frame;
    frame.mutable_attach()->set_request_id(request);
    frame.mutable_attach()->set_lease(lease);
    return frame;
  }
  RawSession OpenRaw() {
    absl::StatusOr<RawSession> session = RawSession::Open(daemon_->dir());
    EXPECT_TRUE(session.ok()) << session.status();
    return *std::move(session);
  }
  static v1::Attached AskAttach(RawSession& session, const std::string& lease) {
    const absl::StatusOr<GeneratedFrame> answer = session.Ask(AttachFrame(lease));
    EXPECT_TRUE(answer.ok() && answer->frame.has_attached()) << answer.status();
    return answer.ok() ? answer->frame.attached() : v1::Attached();
  }
  /// The code of the Goodbye that these frames bring; -1: the session ends without one.
  static int FateOf(RawSession& session, const std::vector<v1::Frame>& frames) {
    // A session that has ended takes no further frame.
    for (const v1::Frame& frame : frames) session.channel.Send(frame, {}, session.Patience()).IgnoreError();
    while (true) {
      const absl::StatusOr<GeneratedFrame> frame = session.channel.Receive(session.Patience());
      if (!frame.ok()) return -1;
      if (frame->frame.has_goodbye()) return frame->frame.goodbye().code();
    }
  }
};

const int kBroken = static_cast<int>(absl::StatusCode::kInvalidArgument);

TEST_F(AttachTest, AProgramWithoutGrpcAttachesAllocatesAndReturnsEverything) {
  StartDaemon({.simulate = "256MiB"});
  const std::string lease = Lgpu({"create", "-m", "64MiB", "--name", "job"});
  auto client = StartSessionClient();
  ASSERT_EQ(Ask(*client, "attach job"), "ok");
  EXPECT_EQ(LeaseOf(lease).sessions_size(), 1);
  ASSERT_EQ(Ask(*client, "alloc a 24"), "ok");
  ASSERT_EQ(Ask(*client, "alloc b 8"), "ok");
  EXPECT_EQ(Ask(*client, "sum a"), "ok 24");
  EXPECT_EQ(Ask(*client, "sum b"), "ok 8");
  const v1::LogicalDeviceStats device = LeaseOf(lease).devices(0);
  EXPECT_EQ(device.used_bytes(), 32 * kMiB);
  EXPECT_GE(device.held_bytes(), 32 * kMiB);
  EXPECT_THAT(Ask(*client, "alloc c 40"),
              AllOf(StartsWith("error RESOURCE_EXHAUSTED"), HasSubstr("64.00MiB")));
  EXPECT_THAT(Ask(*client, "resize"), AllOf(StartsWith("error UNIMPLEMENTED"), HasSubstr("lgpu resize")));
  EXPECT_EQ(Ask(*client, "free a"), "ok");
  EXPECT_EQ(Ask(*client, "used"), absl::StrCat("ok ", 8 * kMiB));
  EXPECT_THAT(Ask(*client, "trim"), StartsWith("ok "));
  EXPECT_EQ(Ask(*client, "held"), absl::StrCat("ok ", 8 * kMiB));
  EXPECT_EQ(Ask(*client, "close"), "ok");
  EXPECT_EQ(LeaseOf(lease).devices(0).held_bytes(), 0u);
  EXPECT_EQ(LeaseOf(lease).sessions_size(), 0);
  Lgpu({"rm", "job"});
}

TEST_F(AttachTest, IdleMemoryOfAProgramWithoutGrpcServesAnotherProgram) {
  StartDaemon({.simulate = "64MiB"});
  const std::string lease = Lgpu({"create", "-m", "48MiB"});
  auto idle = StartSessionClient();
  ASSERT_EQ(Ask(*idle, "attach " + lease), "ok");
  ASSERT_EQ(Ask(*idle, "alloc a 4"), "ok");
  ASSERT_EQ(Ask(*idle, "alloc b 40"), "ok");
  ASSERT_EQ(Ask(*idle, "free b"), "ok");
  auto other = StartClient();
  ASSERT_THAT(Ask(*other, absl::StrCat("open c timeout=50000 limit=", 56 * kMiB)), StartsWith("ok "));
  EXPECT_THAT(Alloc(*other, "t", 56), StartsWith("ok"));
  EXPECT_EQ(Ask(*idle, "sum a"), "ok 4") << "of the 8 MiB that the other program left";
  EXPECT_EQ(Ask(*other, "drop c"), "ok");
  EXPECT_EQ(Ask(*idle, "close"), "ok");
  Lgpu({"rm", lease});
}

TEST_F(AttachTest, AProgramWithoutGrpcOutlivesItsDaemon) {
  StartInDirectory();
  const std::string lease = Lgpu({"create", "-m", "64MiB"});
  auto client = StartSessionClient();
  ASSERT_EQ(Ask(*client, "attach " + lease), "ok");
  ASSERT_EQ(Ask(*client, "alloc a 16"), "ok");
  KillDaemon();
  EXPECT_EQ(Ask(*client, "sum a"), "ok 16");
  EXPECT_THAT(Ask(*client, "alloc b 32"), StartsWith("error UNAVAILABLE"));
  StartInDirectory();
  ASSERT_TRUE(Eventually([&] { return IsBack(client->pid()); }));
  EXPECT_EQ(Ask(*client, "alloc b 32"), "ok");
  EXPECT_EQ(Ask(*client, "sum a"), "ok 16");
  EXPECT_EQ(Ask(*client, "sum b"), "ok 32");
  EXPECT_TRUE(LedgerIsTrue({client->pid()}));
  EXPECT_EQ(Ask(*client, "close"), "ok");
  EXPECT_EQ(LeaseOf(lease).devices(0).held_bytes(), 0u);
  Lgpu({"rm", lease});
}

TEST_F(AttachTest, ALeaseThatIsNotThereIsNotFoundAsOverGrpc) {
  StartDaemon();
  RawSession session = OpenRaw();
  const v1::Attached attached = AskAttach(session, "no-such-lease");
  control_->SetSessionToken(session.token);
  const absl::Status as_before = control_->AttachLease("no-such-lease").status();
  control_->SetSessionToken("");
  EXPECT_EQ(attached.code(), static_cast<int>(absl::StatusCode::kNotFound));
  EXPECT_EQ(attached.code(), static_cast<int>(as_before.code()));
  EXPECT_EQ(attached.message(), std::string(as_before.message()));
  EXPECT_FALSE(attached.has_lease());
  EXPECT_NE(AskAttach(session, "").code(), 0);
  EXPECT_NE(AskAttach(session, std::string(5000, 'x')).code(), 0);
  auto client = StartSessionClient();
  EXPECT_THAT(Ask(*client, "attach no-such-lease"),
              AllOf(StartsWith("error NOT_FOUND"), HasSubstr("no-such-lease")));
}

TEST_F(AttachTest, NamesThatNoLeaseCanHaveLeaveTheSessionAsItIs) {
  StartDaemon({.simulate = "64MiB"});
  const std::string lease = Lgpu({"create", "-m", "32MiB"});
  auto client = StartSessionClient();
  // The daemon shows 80 bytes of a name; the 80th is the first half of a letter here.
  EXPECT_THAT(Ask(*client, "attach " + std::string(79, 'a') + "\xc3\xa9"), StartsWith("error NOT_FOUND"));
  EXPECT_THAT(Ask(*client, "attach \xff\xfe"), StartsWith("error INVALID_ARGUMENT"));
  EXPECT_EQ(Ask(*client, "attach " + lease), "ok");
  EXPECT_EQ(Ask(*client, "close"), "ok");
  Lgpu({"rm", lease});
}

TEST_F(AttachTest, LeasesOfOtherUsersAreNotFound) {
  if (::getuid() != 0) GTEST_SKIP() << "only root can be two users";
  StartDaemon({.open_to_everybody = true});
  const std::string lease = Lgpu({"create", "-m", "64MiB", "--name", "mine"});
  auto client = StartSessionClient();
  ASSERT_EQ(Ask(*client, "setuid 65534"), "ok");
  EXPECT_THAT(Ask(*client, "attach " + lease), StartsWith("error NOT_FOUND"));
  EXPECT_THAT(Ask(*client, "attach mine"), StartsWith("error NOT_FOUND"));
  EXPECT_EQ(LeaseOf(lease).sessions_size(), 0);
  Lgpu({"rm", lease});
}

TEST_F(AttachTest, AttachingAgainGivesTheSameLeaseAndNoOther) {
  StartDaemon();
  const std::string first = Lgpu({"create", "-m", "64MiB"});
  const std::string second = Lgpu({"create", "-m", "32MiB"});
  {
    RawSession session = OpenRaw();
    EXPECT_FALSE(session.Grow(1, 1, 2 * kMiB).ok()) << "before there is a lease";
    const v1::Attached attached = AskAttach(session, first);
    ASSERT_EQ(attached.code(), 0) << attached.message();
    EXPECT_EQ(attached.lease().id(), first);
    ASSERT_EQ(attached.lease().devices_size(), 1);
    EXPECT_EQ(attached.lease().devices(0).memory_limit_bytes(), 64 * kMiB);
    EXPECT_EQ(AskAttach(session, first).lease().SerializeAsString(), attached.lease().SerializeAsString());
    EXPECT_EQ(AskAttach(session, second).code(), static_cast<int>(absl::StatusCode::kFailedPrecondition));
    EXPECT_TRUE(session.Grow(2, attached.lease().devices(0).id(), 2 * kMiB).ok()) << "the session goes on";
    EXPECT_EQ(LeaseOf(first).sessions_size(), 1);
    EXPECT_EQ(LeaseOf(second).sessions_size(), 0);
  }
  EXPECT_TRUE(Eventually([&] { return LeaseOf(first).sessions_size() == 0; }));
  Lgpu({"rm", first});
  Lgpu({"rm", second});
}

TEST_F(AttachTest, AttachAtTheWrongTimeEndsTheSession) {
  StartDaemon();
  const std::string lease = Lgpu({"create", "-m", "64MiB"});
  RawSession unknown{.channel = *GeneratedChannel::Connect(daemon_->dir() + "/session.sock"),
                     .token = {},
                     .stats_page = {},
                     .client_page = {}};
  EXPECT_EQ(FateOf(unknown, {AttachFrame(lease)}), kBroken) << "before Hello";
  RawSession without_request = OpenRaw();
  EXPECT_EQ(FateOf(without_request, {AttachFrame(lease, 0)}), kBroken) << "without a request_id";
  RawSession closing = OpenRaw();
  v1::Frame close;
  close.mutable_close()->set_request_id(1);
  const int after_close = FateOf(closing, {close, AttachFrame(lease, 2)});
  EXPECT_TRUE(after_close == kBroken || after_close == -1) << "after Close: " << after_close;
  RawSession with_answer = OpenRaw();
  v1::Frame attached;
  attached.mutable_attached()->set_request_id(1);
  EXPECT_EQ(FateOf(with_answer, {attached}), kBroken) << "Attached is the daemon's to send";
  RawSession with_descriptor = OpenRaw();
  const int fd = 0;
  ASSERT_TRUE(with_descriptor.channel.Send(AttachFrame(lease), {&fd, 1}, with_descriptor.Patience()).ok());
  EXPECT_EQ(FateOf(with_descriptor, {}), kBroken) << "with a descriptor";
  EXPECT_EQ(LeaseOf(lease).sessions_size(), 0);
  Lgpu({"rm", lease});
}

TEST_F(AttachTest, ARemovedLeaseIsNotFound) {
  StartDaemon();
  const std::string lease = Lgpu({"create", "-m", "64MiB"});
  Lgpu({"rm", lease});
  auto client = StartSessionClient();
  EXPECT_THAT(Ask(*client, "attach " + lease), StartsWith("error NOT_FOUND"));
}

}  // namespace
}  // namespace lgpu::testing
