// Sessions of many threads at once against the daemon's own parts without gRPC, so that ThreadSanitizer sees
// every lock that orders them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "allocator/broker/broker.h"
#include "allocator/device/simulated/simulated_backend.h"
#include "daemon/leases/lease_table.h"
#include "daemon/recovery/journal.h"
#include "daemon/recovery/reclaimer.h"
#include "daemon/server/config.h"
#include "daemon/server/event_log.h"
#include "daemon/sessions/descriptor_budget.h"
#include "daemon/sessions/session_server.h"
#include "daemon/sessions/session_state.h"
#include "tests/daemon/temporary_directory.h"
#include "tests/support/broker_testing.h"
#include "tests/support/generated_channel.h"

namespace lgpu::daemon {
namespace {

using Clock = std::chrono::steady_clock;

class SessionThreadsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    backend_ = MakeSimulatedBackend({.devices = {SimulatedDevice(0, 64_MiB, "threads")}, .sparse = true});
    journal_ = std::move(Journal::Open(directory_.path(), kBoot)->journal);
    const auto waker = *PollWaker::Create();
    Broker::Options options = AllCardsOf(*backend_);
    options.unconfirmed_waker = waker;
    const auto tick_waker = std::make_shared<ThreadWaker>();
    options.tick_waker = tick_waker;
    broker_ = *Broker::Create(*backend_, *journal_, options);
    ticker_ = *BrokerTicker::Start(*broker_, tick_waker);
    config_.state_dir = directory_.path();
    leases_ = std::make_unique<LeaseTable>(
        config_,
        LeaseTable::Parts{
            .broker = *broker_, .sessions = sessions_, .events = events_, .journal = journal_.get()});
    reclaimer_ = *Reclaimer::Start(*broker_, *leases_, sessions_,
                                   {.waker = waker, .grace = std::chrono::milliseconds(10)});
    server_ = std::make_unique<SessionServer>(SessionServices{.broker = *broker_,
                                                              .leases = *leases_,
                                                              .sessions = sessions_,
                                                              .events = events_,
                                                              .budget = budget_,
                                                              .reclaimer = *reclaimer_,
                                                              .log_limit = log_limit_});
  }

  JournalState Reopen() { return Journal::Open(directory_.path(), kBoot)->state; }
  GeneratedChannel Connect() {
    int ends[2];
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
    server_->Serve(UniqueFd(ends[0]), *GetPeerCredentials(ends[1]));
    return GeneratedChannel(UniqueFd(ends[1]));
  }

  static constexpr char kBoot[] = "01234567-89ab-cdef-0123-456789abcdef";
  static constexpr int kThreads = 6;
  static constexpr int kRounds = 25;

  // The next answer. Other sessions may ask for idle memory meanwhile: there is none. After Close no Trimmed
  // is expected.
  static v1::Frame Next(GeneratedChannel& channel, bool closing = false) {
    for (;;) {
      absl::StatusOr<GeneratedFrame> received = channel.Receive();
      EXPECT_TRUE(received.ok()) << received.status();
      if (!received.ok() || !received->frame.has_trim()) return received.ok() ? received->frame : v1::Frame();
      v1::Frame trimmed;
      trimmed.mutable_trimmed()->set_trim_id(received->frame.trim().trim_id());
      if (!closing) {
        EXPECT_TRUE(channel.Send(trimmed).ok());
      }
    }
  }

  // Connects, makes a lease, takes memory and ends: by Close, by returning first, or without a word.
  void LiveOnce(int round) {
    GeneratedChannel channel = Connect();
    const v1::Lease lease = Enter(channel);
    ASSERT_EQ(lease.devices_size(), 1);
    v1::Frame grow;
    grow.mutable_grow()->set_request_id(1);
    grow.mutable_grow()->set_device_id(lease.devices(0).id());
    grow.mutable_grow()->set_at_least_bytes((16_MiB).count());
    grow.mutable_grow()->set_wanted_bytes((16_MiB).count());
    grow.mutable_grow()->set_timeout_ms(60'000);
    ASSERT_TRUE(channel.Send(grow).ok());
    v1::Frame back;
    back.mutable_return_chunks()->set_request_id(2);
    back.mutable_return_chunks()->set_device_id(lease.devices(0).id());
    for (bool more = true; more;) {
      const v1::Frame page = Next(channel);
      ASSERT_TRUE(page.has_grant()) << page.DebugString();
      for (const v1::Chunk& chunk : page.grant().chunks()) {
        back.mutable_return_chunks()->add_chunk_ids(chunk.id());
      }
      v1::Frame ack;
      ack.mutable_ack()->set_grant_id(page.grant().grant_id());
      ASSERT_TRUE(channel.Send(ack).ok());
      more = page.grant().more();
    }
    granted_.fetch_add(1);
    if (round % 3 == 0) return;  // lost
    if (round % 3 == 1) {
      ASSERT_TRUE(channel.Send(back).ok());
      ASSERT_TRUE(Next(channel).has_returned());
    }
    v1::Frame close;
    close.mutable_close()->set_request_id(3);
    ASSERT_TRUE(channel.Send(close).ok());
    ASSERT_EQ(Next(channel, /*closing=*/true).closed().request_id(), 3u);
  }

  // The token of its session.
  static std::string SayHello(GeneratedChannel& channel) {
    v1::Frame hello;
    hello.mutable_hello()->set_protocol_version(GeneratedChannel::kProtocolVersion);
    hello.mutable_hello()->set_oldest_version(GeneratedChannel::kOldestVersion);
    EXPECT_TRUE(channel.Send(hello).ok());
    const absl::StatusOr<GeneratedFrame> welcome = channel.Receive();
    EXPECT_TRUE(welcome.ok() && welcome->frame.has_welcome());
    return welcome.ok() ? welcome->frame.welcome().session_token() : "";
  }

  v1::Lease Enter(GeneratedChannel& channel) {
    v1::CreateLeaseRequest request;
    request.add_devices()->set_memory_limit_bytes((32_MiB).count());
    const absl::StatusOr<v1::Lease> lease =
        leases_->Create({.uid = 0, .session = sessions_.FindToken(SayHello(channel))}, request,
                        Clock::now() + std::chrono::seconds(1));
    EXPECT_TRUE(lease.ok()) << lease.status();
    return lease.ok() ? *lease : v1::Lease();
  }

  Config config_;
  const TemporaryDirectory directory_;
  std::unique_ptr<Journal> journal_;
  std::unique_ptr<DeviceBackend> backend_;
  std::unique_ptr<Broker> broker_;
  std::unique_ptr<BrokerTicker> ticker_;
  SessionDirectory sessions_{4096};  // lost sessions count until they are reclaimed
  EventLog events_{64};
  LogLimit log_limit_;
  DescriptorBudget budget_{64};
  std::atomic<int> granted_ = 0;
  std::unique_ptr<LeaseTable> leases_;
  std::unique_ptr<Reclaimer> reclaimer_;
  std::unique_ptr<SessionServer> server_;
};

TEST_F(SessionThreadsTest, SessionsComeWaitAndGoSideBySide) {
  std::atomic<bool> over = false;
  std::thread observer([&] {
    while (!over) {
      leases_->List({.uid = 0, .session = nullptr});
      EXPECT_TRUE(broker_->CheckInvariants().ok());
      std::this_thread::yield();
    }
  });
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([this, i] {
      for (int round = 0; round < kRounds && !HasFatalFailure(); ++round) LiveOnce(i + round);
    });
  }
  for (std::thread& thread : threads) thread.join();
  over = true;
  observer.join();
  EXPECT_EQ(granted_, kThreads * kRounds);
  server_->Stop();
  reclaimer_->Stop();
  EXPECT_TRUE(broker_->CheckInvariants().ok());
  EXPECT_EQ(broker_->Cards().front().view.held, Bytes());
  EXPECT_EQ(sessions_.size(), 0u);
}

// Without the session's record before its grants, the next daemon could not tell the owner of the memory.
TEST_F(SessionThreadsTest, GrantsDuringAttachAreInTheJournal) {
  v1::CreateLeaseRequest request;
  request.set_lasting(true);
  for (int i = 0; i < 64; ++i) request.add_devices()->set_memory_limit_bytes((2_MiB).count());
  const absl::StatusOr<v1::Lease> lease =
      leases_->Create({.uid = 0, .session = nullptr}, request, Clock::now() + std::chrono::seconds(1));
  ASSERT_TRUE(lease.ok()) << lease.status();
  for (int round = 0; round < 80; ++round) {
    GeneratedChannel channel = Connect();
    const std::string token = SayHello(channel);
    v1::Frame grow;
    grow.mutable_grow()->set_device_id(lease->devices(0).id());
    grow.mutable_grow()->set_at_least_bytes((2_MiB).count());
    constexpr int kAsks = 100;
    for (int i = 1; i <= kAsks; ++i) {
      grow.mutable_grow()->set_request_id(static_cast<std::uint64_t>(i));
      ASSERT_TRUE(channel.Send(grow).ok());
    }
    EXPECT_TRUE(leases_->Attach({.uid = 0, .session = sessions_.FindToken(token)}, lease->id()).ok());
    grow.mutable_grow()->set_request_id(kAsks + 1);
    ASSERT_TRUE(channel.Send(grow).ok());
    v1::Frame answer = Next(channel);
    while (answer.has_grow_refused()) answer = Next(channel);
    EXPECT_TRUE(answer.has_grant()) << answer.DebugString();
    channel = GeneratedChannel();
    while (sessions_.size() > 0) std::this_thread::yield();
  }
  server_->Stop();
  reclaimer_->Stop();
}

// The answer was lost, say, or the program starts again with the same id.
TEST_F(SessionThreadsTest, ARequestThatComesAgainDoesNotEndItsLeaseWhenTheDiskIsFull) {
  GeneratedChannel channel = Connect();
  v1::CreateLeaseRequest request;
  request.set_lasting(true);
  request.set_request_id("once");
  request.add_devices()->set_memory_limit_bytes((2_MiB).count());
  const Caller program{.uid = 0, .session = sessions_.FindToken(SayHello(channel))};
  const absl::StatusOr<v1::Lease> lease = leases_->Create(program, request, Clock::now());
  ASSERT_TRUE(lease.ok()) << lease.status();
  ASSERT_TRUE(std::filesystem::create_directory(directory_.path() + "/leases.new"));
  const absl::Status again = leases_->Create({.uid = 0, .session = nullptr}, request, Clock::now()).status();
  EXPECT_TRUE(absl::IsUnavailable(again)) << again;
  EXPECT_TRUE(leases_->Get(program, lease->id()).ok());
  v1::Frame grow;
  grow.mutable_grow()->set_request_id(1);
  grow.mutable_grow()->set_device_id(lease->devices(0).id());
  grow.mutable_grow()->set_at_least_bytes((2_MiB).count());
  ASSERT_TRUE(channel.Send(grow).ok());
  EXPECT_TRUE(Next(channel).has_grant());
  // A new lease that cannot be kept is not made, and its request gets the error; nor is one of an ended
  // session.
  GeneratedChannel other = Connect();
  request.set_request_id("another");
  const std::string token = SayHello(other);
  EXPECT_TRUE(absl::IsUnavailable(
      leases_->Create({.uid = 0, .session = sessions_.FindToken(token)}, request, Clock::now()).status()));
  const v1::Frame end = Next(other);
  EXPECT_EQ(end.goodbye().code(), static_cast<int>(absl::StatusCode::kFailedPrecondition));
  EXPECT_THAT(end.goodbye().message(), ::testing::HasSubstr("could not be kept"));
  request.set_request_id("a third");
  GeneratedChannel ended = Connect();
  const Caller gone{.uid = 0, .session = sessions_.FindToken(SayHello(ended))};
  gone.session->RequestEnd(absl::AbortedError("gone"));
  EXPECT_TRUE(absl::IsFailedPrecondition(leases_->Create(gone, request, Clock::now()).status()));
  while (leases_->size() > 1) std::this_thread::yield();
  server_->Stop();
  reclaimer_->Stop();
  EXPECT_EQ(Reopen().leases().size(), 1u);
}

TEST_F(SessionThreadsTest, ARestoredLeaseThatWasRemovedAndHasNoSessionEnds) {
  v1::JournalLease record;
  record.set_lasting(true);
  for (const bool removed : {false, true}) {
    record.set_key(record.key() + 1);
    record.set_id(removed ? "removed" : "stays");
    record.set_removed(removed);
    ASSERT_TRUE(leases_->Restore(record).ok());
  }
  leases_->EndUnused();
  EXPECT_EQ(leases_->size(), 1u);
  EXPECT_TRUE(leases_->Get({.uid = 0, .session = nullptr}, "stays").ok());
  EXPECT_EQ(Reopen().leases().size(), 1u);
}

// A child may have its socket, which stays open then.
TEST_F(SessionThreadsTest, AProcessThatDiesWhileItIsGreetedIsNoticed) {
  constexpr SessionId kOther{999};
  const auto other_waker = *PollWaker::Create();
  ASSERT_TRUE(budget_.TryTake(kOther, other_waker, budget_.limit()));
  const pid_t process = ::fork();
  if (process == 0) {
    for (;;) ::pause();
  }
  int ends[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
  GeneratedChannel channel{UniqueFd(ends[1])};
  PeerCredentials credentials = *GetPeerCredentials(ends[1]);
  credentials.pid = process;
  server_->Serve(UniqueFd(ends[0]), credentials);
  v1::Frame hello;
  hello.mutable_hello()->set_protocol_version(GeneratedChannel::kProtocolVersion);
  hello.mutable_hello()->set_oldest_version(GeneratedChannel::kOldestVersion);
  ASSERT_TRUE(channel.Send(hello).ok());
  while (!budget_.contended()) std::this_thread::yield();
  ASSERT_EQ(::kill(process, SIGKILL), 0);
  ASSERT_EQ(::waitpid(process, nullptr, 0), process);
  // Time for the news to come while it is greeted; where that is slower, there is less to be seen.
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  budget_.GiveBack(budget_.limit());
  EXPECT_TRUE(channel.Receive(Clock::now() + std::chrono::seconds(10))->frame.has_welcome());
  const absl::Status end = channel.Receive(Clock::now() + std::chrono::seconds(10)).status();
  EXPECT_TRUE(absl::IsUnavailable(end)) << end;
  server_->Stop();
}

// The client is stopped, for example in a debugger. Descriptors that it has read cost no other session
// anything.
TEST_F(SessionThreadsTest, AClientThatReadAndOnlyDoesNotAcknowledgeIsNotCutOff) {
  GeneratedChannel channel = Connect();
  const v1::Lease lease = Enter(channel);
  v1::Frame grow;
  grow.mutable_grow()->set_request_id(1);
  grow.mutable_grow()->set_device_id(lease.devices(0).id());
  grow.mutable_grow()->set_at_least_bytes((2_MiB).count());
  ASSERT_TRUE(channel.Send(grow).ok());
  const absl::StatusOr<GeneratedFrame> page = channel.Receive();
  ASSERT_TRUE(page.ok() && page->frame.has_grant());
  const auto waker = *PollWaker::Create();
  ASSERT_TRUE(budget_.TryTake(SessionId{998}, waker, budget_.limit() - 1));
  while (!budget_.TryTake(SessionId{999}, waker, 1)) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  v1::Frame back;
  back.set_acknowledges(page->frame.grant().grant_id());
  back.mutable_return_chunks()->set_request_id(2);
  back.mutable_return_chunks()->set_device_id(lease.devices(0).id());
  back.mutable_return_chunks()->add_chunk_ids(page->frame.grant().chunks(0).id());
  EXPECT_TRUE(channel.Send(back).ok());
  const absl::StatusOr<GeneratedFrame> reply = channel.Receive();
  ASSERT_TRUE(reply.ok()) << reply.status();
  EXPECT_TRUE(reply->frame.has_returned() && reply->frame.returned().code() == 0)
      << reply->frame.DebugString();
  budget_.GiveBack(budget_.limit());
  server_->Stop();
}

}  // namespace
}  // namespace lgpu::daemon
