#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <functional>
#include <random>

#include "absl/strings/str_cat.h"
#include "tests/e2e/harness.h"
#include "tests/support/test_seed.h"

namespace lgpu::testing {
namespace {

using ::testing::AnyOf;
using ::testing::Eq;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

constexpr std::uint64_t k2MiB = 2 * kMiB;

/// A chunk's memory, mapped by hand.
class Mapping {
 public:
  Mapping(int fd, std::size_t bytes, int protection = PROT_READ | PROT_WRITE) : bytes_(bytes) {
    void* const address = ::mmap(nullptr, bytes, protection, MAP_SHARED, fd, 0);
    data_ = address == MAP_FAILED ? nullptr : static_cast<unsigned char*>(address);
  }
  ~Mapping() {
    if (data_ != nullptr) ::munmap(data_, bytes_);
  }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  unsigned char* data() const { return data_; }

 private:
  std::size_t bytes_;
  unsigned char* data_;
};

/// How a forked child ends that touches this byte: its signal, or 0.
int SignalOfTouching(const unsigned char* byte) {
  const pid_t child = ::fork();
  if (child == 0) {
    ::signal(SIGBUS, SIG_DFL);
    [[maybe_unused]] const unsigned char value = *const_cast<const volatile unsigned char*>(byte);
    ::_exit(0);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFSIGNALED(status) ? WTERMSIG(status) : 0;
}

class ProtocolTest : public E2eTest {
 protected:
  /// A raw session with a lease of one device.
  struct Leased {
    RawSession session;
    v1::Lease lease;
    std::uint64_t device() const { return lease.devices(0).id(); }
  };
  Leased OpenLeased(std::uint64_t limit, bool preallocate = false) {
    Leased leased;
    absl::StatusOr<RawSession> session = RawSession::Open(daemon_->dir());
    EXPECT_TRUE(session.ok()) << session.status();
    if (!session.ok()) return leased;
    leased.session = *std::move(session);
    control_->SetSessionToken(leased.session.token);
    absl::StatusOr<v1::Lease> lease = control_->CreateLease(OneDevice(limit, preallocate));
    control_->SetSessionToken("");
    EXPECT_TRUE(lease.ok()) << lease.status();
    if (lease.ok()) leased.lease = *std::move(lease);
    return leased;
  }

  /// The daemon's answer to bytes on a new connection: the code of a Goodbye, or -1 for an end without one.
  int FateOf(const std::function<void(int socket)>& send) {
    absl::StatusOr<GeneratedChannel> channel = GeneratedChannel::Connect(daemon_->dir() + "/session.sock");
    EXPECT_TRUE(channel.ok()) << channel.status();
    send(channel->fd());
    return FateOf(*channel);
  }
  static int FateOf(GeneratedChannel& channel) {
    while (true) {
      absl::StatusOr<GeneratedFrame> frame =
          channel.Receive(std::chrono::steady_clock::now() + ChildProgram::kPatience);
      if (!frame.ok()) {
        EXPECT_EQ(frame.status().code(), absl::StatusCode::kUnavailable) << frame.status();
        return -1;
      }
      if (frame->frame.has_goodbye()) return frame->frame.goodbye().code();
    }
  }

  /// The daemon serves another client as before.
  void ExpectOthersAreServed() {
    auto client = StartClient();
    ASSERT_THAT(Ask(*client, "open c"), StartsWith("ok "));
    EXPECT_EQ(Ask(*client, "work c"), "ok");
    EXPECT_EQ(Ask(*client, "close c"), "ok");
  }
};

const int kBroken = static_cast<int>(absl::StatusCode::kInvalidArgument);

std::string Hello(std::uint32_t oldest = 1, std::uint32_t newest = 1) {
  v1::Frame frame;
  frame.mutable_hello()->set_protocol_version(newest);
  frame.mutable_hello()->set_oldest_version(oldest);
  return frame.SerializeAsString();
}

void SendBytes(int socket, const std::string& bytes) {
  // The socket itself may refuse a long packet; the tests check the daemon's reaction.
  [[maybe_unused]] const ssize_t sent = ::send(socket, bytes.data(), bytes.size(), MSG_NOSIGNAL);
}

void SendWithFd(int socket, const std::string& bytes, int fd) {
  iovec data{const_cast<char*>(bytes.data()), bytes.size()};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  cmsghdr* const header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof(int));
  std::memcpy(CMSG_DATA(header), &fd, sizeof(int));
  ASSERT_GT(::sendmsg(socket, &message, MSG_NOSIGNAL), 0);
}

class ProtocolModesTest : public ProtocolTest, public ::testing::WithParamInterface<bool> {};

TEST_P(ProtocolModesTest, AClientThatKeepsReturnedChunksCannotExceedItsLimit) {
  StartDaemon();
  constexpr std::uint64_t kLimit = 16 * kMiB;
  Leased liar = OpenLeased(kLimit, GetParam());
  ASSERT_TRUE(liar.session.channel);
  auto grown = liar.session.Grow(1, liar.device(), kLimit);
  ASSERT_TRUE(grown.ok()) << grown.status();
  EXPECT_EQ(liar.session.Grow(2, liar.device(), k2MiB).status().code(), absl::StatusCode::kResourceExhausted);
  ASSERT_EQ(ChunkBytesOpen(::getpid()), kLimit);

  // It says that it gives the first chunk back, and keeps descriptor and mapping.
  const Mapping kept(grown->fds[0].get(), grown->chunks[0].bytes());
  ASSERT_NE(kept.data(), nullptr);
  kept.data()[0] = 7;
  v1::Frame give_back;
  give_back.mutable_return_chunks()->set_request_id(3);
  give_back.mutable_return_chunks()->set_device_id(liar.device());
  give_back.mutable_return_chunks()->add_chunk_ids(grown->chunks[0].id());
  const auto returned = liar.session.Ask(give_back);
  ASSERT_TRUE(returned.ok()) << returned.status();
  ASSERT_EQ(returned->frame.returned().code(), 0) << returned->frame.ShortDebugString();
  EXPECT_EQ(SignalOfTouching(kept.data()), SIGBUS);
  // The file cannot be made long again, and there is no memory behind it.
  EXPECT_NE(::ftruncate(grown->fds[0].get(), static_cast<off_t>(k2MiB)), 0);
  EXPECT_EQ(ChunkBytesOpen(::getpid()), kLimit - grown->chunks[0].bytes());

  // It gets as many bytes as it returned, and a chunk cannot be returned twice.
  auto again = liar.session.Grow(4, liar.device(), grown->chunks[0].bytes());
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(ChunkBytesOpen(::getpid()), kLimit);
  give_back.mutable_return_chunks()->set_request_id(5);
  const auto twice = liar.session.Ask(give_back);
  ASSERT_TRUE(twice.ok()) << twice.status();
  EXPECT_NE(twice->frame.returned().code(), 0);
  EXPECT_EQ(liar.session.Grow(6, liar.device(), k2MiB).status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(HeldBytes(), kLimit);
}

INSTANTIATE_TEST_SUITE_P(, ProtocolModesTest, ::testing::Bool(),
                         [](const auto& mode) { return mode.param ? "Preallocate" : "Growth"; });

TEST_F(ProtocolTest, ReturningAnotherSessionsChunkIsRefusedAndChangesNothing) {
  StartDaemon();
  Leased one = OpenLeased(16 * kMiB);
  Leased two = OpenLeased(16 * kMiB);
  const auto grown = one.session.Grow(1, one.device(), k2MiB);
  ASSERT_TRUE(grown.ok()) << grown.status();
  for (const std::uint64_t id : {grown->chunks[0].id(), std::uint64_t{0}, ~std::uint64_t{0}}) {
    v1::Frame theft;
    theft.mutable_return_chunks()->set_request_id(id + 1 == 0 ? 9 : id + 1);
    theft.mutable_return_chunks()->set_device_id(two.device());
    theft.mutable_return_chunks()->add_chunk_ids(id);
    const auto answer = two.session.Ask(theft);
    ASSERT_TRUE(answer.ok()) << answer.status();
    EXPECT_NE(answer->frame.returned().code(), 0) << id;
  }
  EXPECT_EQ(HeldBytes(), k2MiB);
  const Mapping alive(grown->fds[0].get(), k2MiB);
  EXPECT_EQ(SignalOfTouching(alive.data()), 0);
}

TEST_F(ProtocolTest, WrongSizesAndDevicesAreAnsweredAndTheSessionGoesOn) {
  StartDaemon();
  Leased client = OpenLeased(16 * kMiB);
  Leased other = OpenLeased(16 * kMiB);
  std::uint64_t request = 0;
  const auto refusal = [&](std::uint64_t device, std::uint64_t at_least, std::uint64_t wanted) {
    v1::Frame grow;
    grow.mutable_grow()->set_request_id(++request);
    grow.mutable_grow()->set_device_id(device);
    grow.mutable_grow()->set_at_least_bytes(at_least);
    grow.mutable_grow()->set_wanted_bytes(wanted);
    const auto answer = client.session.Ask(grow);
    EXPECT_TRUE(answer.ok()) << answer.status();
    if (!answer.ok()) return absl::StatusCode::kUnknown;
    EXPECT_TRUE(answer->frame.has_grow_refused()) << answer->frame.ShortDebugString();
    EXPECT_EQ(answer->frame.grow_refused().request_id(), request);
    EXPECT_THAT(answer->frame.grow_refused().message(), Not(::testing::IsEmpty()));
    return static_cast<absl::StatusCode>(answer->frame.grow_refused().code());
  };
  constexpr std::uint64_t kHuge = ~std::uint64_t{0};
  EXPECT_EQ(refusal(client.device(), 0, 0), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(refusal(client.device(), kHuge, kHuge),
              AnyOf(absl::StatusCode::kInvalidArgument, absl::StatusCode::kResourceExhausted));
  EXPECT_THAT(refusal(client.device(), kHuge - k2MiB + 1, kHuge - k2MiB + 1),
              AnyOf(absl::StatusCode::kInvalidArgument, absl::StatusCode::kResourceExhausted));
  EXPECT_EQ(refusal(client.device(), 18 * kMiB, 18 * kMiB), absl::StatusCode::kResourceExhausted);
  for (const std::uint64_t device : {std::uint64_t{0}, kHuge, other.device()}) {
    EXPECT_EQ(refusal(device, k2MiB, k2MiB), absl::StatusCode::kNotFound) << device;
  }
  EXPECT_TRUE(client.session.Grow(++request, client.device(), 16 * kMiB).ok());
  EXPECT_EQ(HeldBytes(), 16 * kMiB);
}

TEST_F(ProtocolTest, WrongLeaseRequestsAreAnsweredWithTheRightCodes) {
  StartDaemon();
  const auto code_of = [&](const v1::CreateLeaseRequest& request) {
    return control_->CreateLease(request).status().code();
  };
  const auto lasting = [](std::uint64_t limit) { return OneDevice(limit, false, /*lasting=*/true); };
  EXPECT_EQ(code_of(OneDevice(kMiB)), absl::StatusCode::kFailedPrecondition) << "no session, not lasting";
  EXPECT_EQ(code_of(lasting(~std::uint64_t{0})), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code_of(lasting(std::uint64_t{1} << 63)), absl::StatusCode::kInvalidArgument);
  v1::CreateLeaseRequest request = lasting(k2MiB);
  request.clear_devices();
  EXPECT_EQ(code_of(request), absl::StatusCode::kInvalidArgument);
  request = lasting(k2MiB);
  request.mutable_devices(0)->set_card_uuid("GPU-none");
  EXPECT_EQ(code_of(request), absl::StatusCode::kNotFound);
  request = lasting(k2MiB);
  request.mutable_devices(0)->set_guarantee_bytes(4 * kMiB);
  EXPECT_EQ(code_of(request), absl::StatusCode::kInvalidArgument);
  request = lasting(k2MiB);
  for (int i = 0; i < 64; ++i) *request.add_devices() = request.devices(0);
  EXPECT_EQ(code_of(request), absl::StatusCode::kInvalidArgument);
  request = lasting(k2MiB);
  request.set_name(std::string(10'000, 'x'));
  EXPECT_EQ(code_of(request), absl::StatusCode::kInvalidArgument);

  control_->SetSessionToken(std::string(32, '\xff'));
  EXPECT_THAT(control_->CreateLease(OneDevice(k2MiB)).status().code(),
              AnyOf(absl::StatusCode::kUnauthenticated, absl::StatusCode::kPermissionDenied,
                    absl::StatusCode::kFailedPrecondition, absl::StatusCode::kNotFound));
  control_->SetSessionToken("");
  EXPECT_EQ(control_->GetLease("none").status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(control_->RemoveLease("none").code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(Stats().leases_size(), 0);
}

TEST_F(ProtocolTest, BrokenFirstFramesEndTheConnectionAndNothingElse) {
  StartDaemon();
  const auto fate = [&](const std::string& bytes) {
    return FateOf([&](int socket) { SendBytes(socket, bytes); });
  };
  EXPECT_EQ(fate("\xff\xff\xff\xff"), kBroken);
  EXPECT_EQ(fate(Hello().substr(0, 1)), kBroken) << "a frame that was cut off";
  EXPECT_EQ(fate(std::string(65 * 1024, 'x')), kBroken);
  EXPECT_EQ(fate(std::string(150 * 1024, '\0')), kBroken);
  v1::Frame frame;
  frame.mutable_grow()->set_request_id(1);
  EXPECT_EQ(fate(frame.SerializeAsString()), kBroken) << "Grow before Hello";
  frame.mutable_welcome()->set_session_id(1);
  EXPECT_EQ(fate(frame.SerializeAsString()), kBroken) << "a frame of the daemon";
  EXPECT_EQ(fate(Hello(7, 9)), static_cast<int>(absl::StatusCode::kFailedPrecondition));
  EXPECT_EQ(FateOf([](int socket) { ::shutdown(socket, SHUT_RDWR); }), -1);
  ExpectOthersAreServed();
}

TEST_F(ProtocolTest, FramesOutOfOrderEndTheSession) {
  StartDaemon();
  const auto fate = [&](const std::vector<v1::Frame>& frames) {
    absl::StatusOr<RawSession> session = RawSession::Open(daemon_->dir());
    EXPECT_TRUE(session.ok()) << session.status();
    for (const v1::Frame& frame : frames) SendBytes(session->channel.fd(), frame.SerializeAsString());
    return FateOf(session->channel);
  };
  v1::Frame hello;
  hello.mutable_hello()->set_protocol_version(1);
  v1::Frame ack;
  ack.mutable_ack()->set_grant_id(12345);
  v1::Frame zero;
  zero.mutable_grow();
  EXPECT_EQ(fate({hello}), kBroken) << "a second Hello";
  EXPECT_EQ(fate({ack}), kBroken) << "an Ack of nothing";
  EXPECT_EQ(fate({zero}), kBroken) << "a request id of zero";
  v1::Frame wrong;
  wrong.mutable_close()->set_request_id(1);
  wrong.set_acknowledges(12345);
  EXPECT_EQ(fate({wrong}), kBroken) << "a frame that acknowledges nothing";
  v1::Frame unknown;
  unknown.GetReflection()->MutableUnknownFields(&unknown)->AddVarint(4000, 1);
  EXPECT_EQ(fate({unknown}), kBroken) << "a body that nobody knows";
  ExpectOthersAreServed();
}

TEST_F(ProtocolTest, AnyFrameMayAcknowledgeAGrant) {
  StartDaemon();
  Leased client = OpenLeased(16 * kMiB);
  v1::Frame frame;
  for (std::uint64_t request = 1; request <= 5; ++request) {
    frame.mutable_grow()->set_request_id(request);
    frame.mutable_grow()->set_device_id(client.device());
    frame.mutable_grow()->set_at_least_bytes(2 * kMiB);
    const absl::StatusOr<GeneratedFrame> answer = client.session.Ask(frame);
    ASSERT_TRUE(answer.ok() && answer->frame.has_grant()) << answer.status();
    frame.set_acknowledges(answer->frame.grant().grant_id());
  }
  frame.mutable_close()->set_request_id(6);
  const absl::StatusOr<GeneratedFrame> answer = client.session.Ask(frame);
  ASSERT_TRUE(answer.ok() && answer->frame.has_closed()) << answer.status();
  ExpectOthersAreServed();
}

TEST_F(ProtocolTest, UnrequestedDescriptorsEndTheSessionAndAreClosed) {
  StartDaemon();
  ASSERT_TRUE(EverythingIsBack());
  int pipe[2];
  ASSERT_EQ(::pipe2(pipe, O_CLOEXEC | O_NONBLOCK), 0);
  UniqueFd read_end(pipe[0]);
  UniqueFd write_end(pipe[1]);
  EXPECT_EQ(FateOf([&](int socket) { SendWithFd(socket, Hello(), write_end.get()); }), kBroken);
  absl::StatusOr<RawSession> session = RawSession::Open(daemon_->dir());
  ASSERT_TRUE(session.ok());
  v1::Frame ack;
  ack.mutable_ack()->set_grant_id(1);
  SendWithFd(session->channel.fd(), ack.SerializeAsString(), write_end.get());
  EXPECT_EQ(FateOf(session->channel), kBroken);
  write_end.Reset();
  // End of file: the daemon has no copy of the other end.
  char byte = 0;
  EXPECT_TRUE(Eventually([&] { return ::read(read_end.get(), &byte, 1) == 0; }));
  ExpectOthersAreServed();
}

TEST_F(ProtocolTest, GarbageInTheClientPageHarmsNoOtherSession) {
  StartDaemon();
  Leased client = OpenLeased(16 * kMiB);
  constexpr std::size_t kPageBytes = 532'672;
  const std::uint32_t seed = TestSeed();
  std::mt19937_64 random(seed);
  {
    const Mapping page(client.session.client_page.get(), kPageBytes);
    ASSERT_NE(page.data(), nullptr);
    for (int round = 0; round < 20; ++round) {
      for (std::size_t i = 0; i < kPageBytes; i += 8) {
        const std::uint64_t word = round % 2 == 0 ? random() : ~std::uint64_t{0};
        std::memcpy(page.data() + i, &word, 8);
      }
      ASSERT_TRUE(control_->GetStats().ok());
      ASSERT_TRUE(control_->GetPlacements(client.lease.id()).ok());
    }
  }
  // It can neither be cut shorter under the daemon nor can the daemon's own page be written.
  EXPECT_NE(::ftruncate(client.session.client_page.get(), 0), 0);
  EXPECT_NE(::ftruncate(client.session.stats_page.get(), 0), 0);
  const Mapping forbidden(client.session.stats_page.get(), 4096);
  EXPECT_EQ(forbidden.data(), nullptr);
  EXPECT_TRUE(client.session.Grow(1, client.device(), k2MiB).ok()) << "the session itself goes on";
  ExpectOthersAreServed();
}

TEST_F(ProtocolTest, TwentyClientsThatNeverReadDoNotStopTheNextOne) {
  StartDaemon({.simulate = "2GiB", .open_files = 1024});
  std::vector<Leased> silent;
  for (int i = 0; i < 20; ++i) {
    silent.push_back(OpenLeased(32 * kMiB));
    ASSERT_TRUE(silent.back().session.channel);
    for (std::uint64_t request = 1; request <= 4; ++request) {
      v1::Frame grow;
      grow.mutable_grow()->set_request_id(request);
      grow.mutable_grow()->set_device_id(silent.back().device());
      grow.mutable_grow()->set_at_least_bytes(8 * kMiB);
      grow.mutable_grow()->set_wanted_bytes(8 * kMiB);
      ASSERT_TRUE(silent.back().session.channel.Send(grow, {}, silent.back().session.Patience()).ok());
    }
  }
  auto client = StartClient();
  ASSERT_THAT(Ask(*client, absl::StrCat("open c limit=", 64 * kMiB)), StartsWith("ok "));
  EXPECT_THAT(Ask(*client, absl::StrCat("alloc c t ", 48 * kMiB)), StartsWith("ok "));
  EXPECT_EQ(Ask(*client, "work c"), "ok");
  EXPECT_EQ(Ask(*client, "close c"), "ok");
}

}  // namespace
}  // namespace lgpu::testing
