// A client attests by hand to a daemon that was started again: the truth, lies, and half of the truth.

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "absl/strings/str_cat.h"
#include "proto/mapped_region.h"
#include "proto/wire/pages.h"
#include "tests/e2e/harness.h"

namespace lgpu::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

class ResumeTest : public E2eTest {
 protected:
  /// Says Hello in the name of an earlier session; the daemon's answer.
  static absl::StatusOr<GeneratedFrame> Resume(GeneratedChannel& channel, std::uint64_t session,
                                               const std::string& token) {
    v1::Frame hello;
    hello.mutable_hello()->set_protocol_version(GeneratedChannel::kProtocolVersion);
    hello.mutable_hello()->set_oldest_version(GeneratedChannel::kOldestVersion);
    hello.mutable_hello()->mutable_resume()->set_session_id(session);
    hello.mutable_hello()->mutable_resume()->set_session_token(token);
    const auto deadline = std::chrono::steady_clock::now() + ChildProgram::kPatience;
    if (absl::Status sent = channel.Send(hello, {}, deadline); !sent.ok()) return sent;
    return channel.Receive(deadline);
  }
};

TEST_F(ResumeTest, AClientThatLiesIsRefusedAndHarmsNoOtherSession) {
  StartInDirectory();
  auto honest = StartClient();
  ASSERT_THAT(Ask(*honest, "open c"), StartsWith("ok "));
  ASSERT_THAT(Alloc(*honest, "a", 100), StartsWith("ok "));
  auto opened = RawSession::Open(daemon_->dir());
  ASSERT_TRUE(opened.ok());
  RawSession session = *std::move(opened);
  // A process that does not map its page has given up its session.
  void* const page = ::mmap(nullptr, 4096, PROT_READ, MAP_SHARED, session.client_page.get(), 0);
  ASSERT_NE(page, MAP_FAILED);
  control_->SetSessionToken(session.token);
  const auto lease = control_->CreateLease(OneDevice(64 * kMiB));
  ASSERT_TRUE(lease.ok()) << lease.status();
  const std::uint64_t device = lease->devices(0).id();
  const auto grown = session.Grow(1, device, 8 * kMiB);
  ASSERT_TRUE(grown.ok()) << grown.status();
  ASSERT_EQ(grown->chunks.size(), 4u);
  Restart();
  ASSERT_TRUE(Eventually([&] { return IsBack(honest->pid()); }));

  struct Lie {
    const char* what;
    std::uint64_t session;
    std::string token;
    std::uint64_t device;
    std::vector<v1::Chunk> chunks;
    std::vector<int> fds;
  };
  const auto fd = [&](std::size_t i) { return grown->fds[i].get(); };
  std::string other_token = session.token;
  other_token[0] ^= 1;
  v1::Chunk larger = grown->chunks[0];
  larger.set_bytes(4 * kMiB);
  v1::Chunk foreign = grown->chunks[0];
  foreign.set_id(1);  // the honest one's
  v1::Chunk unknown = grown->chunks[0];
  unknown.set_id(1'000'000);
  UniqueFd read_only(::open(absl::StrCat("/proc/self/fd/", fd(0)).c_str(), O_RDONLY | O_CLOEXEC));
  const std::vector<Lie> lies = {
      {"a wrong secret", session.id, other_token, device, {}, {}},
      {"another session's id", session.id + 1, session.token, device, {}, {}},
      {"a chunk of another one", session.id, session.token, device, {foreign}, {fd(0)}},
      {"a chunk that nobody has", session.id, session.token, device, {unknown}, {fd(0)}},
      {"more bytes", session.id, session.token, device, {larger}, {fd(0)}},
      {"another device", session.id, session.token, device + 7, {grown->chunks[0]}, {fd(0)}},
      {"the descriptor of another chunk", session.id, session.token, device, {grown->chunks[0]}, {fd(1)}},
      {"no descriptor", session.id, session.token, device, {grown->chunks[0]}, {}},
      {"no chunk at all", session.id, session.token, device, {grown->chunks[0]}, {STDERR_FILENO}},
      {"one that cannot be written",
       session.id,
       session.token,
       device,
       {grown->chunks[0]},
       {read_only.get()}},
      {"a chunk twice",
       session.id,
       session.token,
       device,
       {grown->chunks[2], grown->chunks[2]},
       {fd(2), fd(2)}},
  };
  for (const Lie& lie : lies) {
    SCOPED_TRACE(lie.what);
    auto channel = GeneratedChannel::Connect(daemon_->dir() + "/session.sock");
    ASSERT_TRUE(channel.ok());
    auto answer = Resume(*channel, lie.session, lie.token);
    ASSERT_TRUE(answer.ok()) << answer.status();
    if (answer->frame.has_welcome()) {
      v1::Frame attest;
      attest.mutable_attest()->set_device_id(lie.device);
      for (const v1::Chunk& chunk : lie.chunks) *attest.mutable_attest()->add_chunks() = chunk;
      ASSERT_TRUE(channel->Send(attest, lie.fds, session.Patience()).ok());
      answer = channel->Receive(session.Patience());
      ASSERT_TRUE(answer.ok()) << answer.status();
    }
    EXPECT_TRUE(answer->frame.has_goodbye()) << answer->frame.ShortDebugString();
    ASSERT_TRUE(Eventually([&] { return IsInState(::getpid(), v1::SessionStats::STATE_ABSENT); }));
    // The honest one may give back spare memory meanwhile.
    EXPECT_EQ(SessionOf(::getpid())->held_bytes(), 8 * kMiB);
    EXPECT_GE(SessionOf(honest->pid())->held_bytes(), 100 * kMiB);
  }
  EXPECT_EQ(Ask(*honest, "read a"), absl::StrCat("ok ", 100 * kMiB / 4 * 1.0));
  EXPECT_EQ(Ask(*honest, "work c 3"), "ok");

  // The truth, but for one chunk: that one is taken away.
  auto channel = GeneratedChannel::Connect(daemon_->dir() + "/session.sock");
  ASSERT_TRUE(channel.ok());
  auto answer = Resume(*channel, session.id, session.token);
  ASSERT_TRUE(answer.ok() && answer->frame.has_welcome());
  EXPECT_TRUE(answer->frame.welcome().resumed());
  v1::Frame attest;
  attest.mutable_attest()->set_device_id(device);
  for (int i = 0; i < 3; ++i) {
    *attest.mutable_attest()->add_chunks() = grown->chunks[static_cast<std::size_t>(i)];
  }
  ASSERT_TRUE(channel->Send(attest, std::vector<int>{fd(0), fd(1), fd(2)}, session.Patience()).ok());
  answer = channel->Receive(session.Patience());
  ASSERT_TRUE(answer.ok() && answer->frame.has_attested());
  EXPECT_TRUE(Eventually([&] { return SessionOf(::getpid())->held_bytes() == 6 * kMiB; }));
  EXPECT_EQ(ChunkBytesHeldBy({::getpid()}), 6 * kMiB) << "it was emptied, although a descriptor was kept";
  ::munmap(page, 4096);
}

// A client that was too slow, or that lost its connection during the handshake, may resume again.
TEST_F(ResumeTest, AClientWithoutAnAnswerMayAttestAgain) {
  StartInDirectory();
  auto opened = RawSession::Open(daemon_->dir());
  ASSERT_TRUE(opened.ok());
  RawSession session = *std::move(opened);
  void* page = ::mmap(nullptr, 4096, PROT_READ, MAP_SHARED, session.client_page.get(), 0);
  ASSERT_NE(page, MAP_FAILED);
  control_->SetSessionToken(session.token);
  const auto lease = control_->CreateLease(OneDevice(64 * kMiB));
  ASSERT_TRUE(lease.ok()) << lease.status();
  const std::uint64_t device = lease->devices(0).id();
  const auto grown = session.Grow(1, device, 4 * kMiB);
  ASSERT_TRUE(grown.ok()) << grown.status();
  Restart();
  for (int i = 0; i < 3; ++i) {
    auto channel = GeneratedChannel::Connect(daemon_->dir() + "/session.sock");
    ASSERT_TRUE(channel.ok());
    auto answer = Resume(*channel, session.id, session.token);
    ASSERT_TRUE(answer.ok() && answer->frame.has_welcome()) << answer.status() << answer->frame.DebugString();
    // The limit is in the page from the first moment.
    auto stats = SharedPages::OpenStatsPage(MapWithBoost, std::move(answer->fds[0]));
    ASSERT_TRUE(stats.ok()) << stats.status().message;
    EXPECT_EQ((*stats)->devices[0].id.load(), device);
    EXPECT_EQ((*stats)->devices[0].limit.load(), 64 * kMiB);
    ::munmap(page, 4096);
    page = ::mmap(nullptr, 4096, PROT_READ, MAP_SHARED, answer->fds[1].get(), 0);
    v1::Frame attest;
    attest.mutable_attest()->set_device_id(device);
    std::vector<int> fds;
    for (std::size_t chunk = 0; chunk < grown->chunks.size(); ++chunk) {
      *attest.mutable_attest()->add_chunks() = grown->chunks[chunk];
      fds.push_back(grown->fds[chunk].get());
    }
    ASSERT_TRUE(channel->Send(attest, fds, session.Patience()).ok());
    answer = channel->Receive(session.Patience());
    ASSERT_TRUE(answer.ok() && answer->frame.has_attested()) << answer.status();
    ASSERT_TRUE(Eventually([&] { return IsBack(::getpid()); }));
    EXPECT_EQ(HeldBytes(), 4 * kMiB);
    channel = absl::UnavailableError("closed");
    ASSERT_TRUE(Eventually([&] { return IsInState(::getpid(), v1::SessionStats::STATE_ABSENT); }));
    EXPECT_EQ(HeldBytes(), 4 * kMiB);
  }
  ::munmap(page, 4096);
}

// A request that removes a lease is answered or repeated; no session that resumes later may have the lease.
TEST_F(ResumeTest, ALeaseThatIsRemovedStaysRemovedWhenItsDaemonDiesMeanwhile) {
  StartInDirectory();
  auto opened = RawSession::Open(daemon_->dir());
  ASSERT_TRUE(opened.ok());
  const RawSession session = *std::move(opened);
  void* const page = ::mmap(nullptr, 4096, PROT_READ, MAP_SHARED, session.client_page.get(), 0);
  ASSERT_NE(page, MAP_FAILED);
  control_->SetSessionToken(session.token);
  v1::CreateLeaseRequest request = OneDevice(64 * kMiB, /*preallocate=*/false, /*lasting=*/true);
  request.set_name("removed");
  ASSERT_TRUE(control_->CreateLease(request).ok());
  Restart();  // its session is absent
  KillDaemonWhileItRemoves("removed");
  StartInDirectory();
  EXPECT_FALSE(control_->GetLease("removed").ok());
  auto channel = GeneratedChannel::Connect(daemon_->dir() + "/session.sock");
  ASSERT_TRUE(channel.ok());
  const auto answer = Resume(*channel, session.id, session.token);
  ASSERT_TRUE(answer.ok()) << answer.status();
  ASSERT_TRUE(answer->frame.has_goodbye()) << answer->frame.ShortDebugString();
  EXPECT_THAT(answer->frame.goodbye().message(), HasSubstr("was removed"));
  EXPECT_TRUE(Eventually([&] { return !SessionOf(::getpid()); }));
  ::munmap(page, 4096);
}

TEST_F(ResumeTest, ADaemonThatMayNotOpenEnoughFilesDoesNotServe) {
  StartInDirectory();
  std::vector<RawSession> sessions;
  std::vector<void*> pages;  // without them the sessions would be given up after a while
  for (int i = 0; i < 40; ++i) {
    auto opened = RawSession::Open(daemon_->dir());
    ASSERT_TRUE(opened.ok());
    pages.push_back(::mmap(nullptr, 4096, PROT_READ, MAP_SHARED, opened->client_page.get(), 0));
    ASSERT_NE(pages.back(), MAP_FAILED);
    control_->SetSessionToken(opened->token);
    const auto lease = control_->CreateLease(OneDevice(2 * kMiB));
    ASSERT_TRUE(lease.ok()) << lease.status();
    ASSERT_TRUE(opened->Grow(1, lease->devices(0).id(), 2 * kMiB).ok());
    sessions.push_back(*std::move(opened));
  }
  KillDaemon();
  DaemonProcess::Options options = InDirectory();
  options.open_files = 64;
  const auto daemon = DaemonProcess::Start(options);
  ASSERT_FALSE(daemon.ok());
  EXPECT_THAT(std::string(daemon.status().message()), HasSubstr("LimitNOFILE="));
  StartInDirectory();
  EXPECT_EQ(HeldBytes(), 80 * kMiB);
  sessions.clear();
  for (void* const page : pages) ::munmap(page, 4096);
}

}  // namespace
}  // namespace lgpu::testing
