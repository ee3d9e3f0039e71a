#include "daemon/recovery/reclaimer.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <memory>
#include <thread>

#include "proto/mapped_region.h"
#include "tests/daemon/daemon_parts.h"
#include "tests/daemon/temporary_directory.h"
#include "tests/support/child_program.h"

namespace lgpu::daemon {
namespace {

using std::chrono::milliseconds;
using testing::Eventually;

constexpr std::uint32_t kUid = 61301;

class ReclaimerTest : public ::testing::Test {
 protected:
  void Start(milliseconds grace) {
    reclaimer_ = *Reclaimer::Start(parts_.broker(), parts_.leases(), parts_.sessions(),
                                   {.waker = *PollWaker::Create(), .grace = grace});
  }

  /// A session of the child with a lease of its own, which holds 8 MiB.
  std::shared_ptr<SessionState> StartSession() {
    std::shared_ptr<SessionState> session = parts_.AddSession(kUid, child_.Hold());
    const absl::StatusOr<v1::Lease> lease = parts_.CreateLease({.uid = kUid, .session = session}, "train");
    EXPECT_EQ(lease.status(), absl::OkStatus());
    EXPECT_EQ(parts_.Grow(*session, *lease, 8_MiB), absl::OkStatus());
    EXPECT_EQ(parts_.broker().Held(session->id()), 8_MiB);
    return session;
  }

  /// As the session's thread does when the connection ends without Close.
  void Lose(const std::shared_ptr<SessionState>& session) {
    session->StartDraining();
    parts_.broker().StartDraining(session->id());
    parts_.leases().SessionLost(*session);
    reclaimer_->Adopt(session);
  }

  std::ptrdiff_t Told(v1::Event::Kind kind) {
    const EventLog::Batch told = parts_.events().Read(0, kUid, 64);
    return std::count_if(told.events.begin(), told.events.end(),
                         [&](const v1::Event& event) { return event.kind() == kind; });
  }

  bool IsFree() {
    return parts_.sessions().size() == 0 && parts_.leases().size() == 0 &&
           parts_.FreeOfCard() == DaemonParts::kCard;
  }

  const TemporaryDirectory directory_;
  DaemonParts parts_{directory_.path()};
  IdleChild child_;
  std::unique_ptr<Reclaimer> reclaimer_;
};

TEST_F(ReclaimerTest, ASessionWhoseProcessIsGoneIsFreeWithoutTheGrace) {
  Start(std::chrono::hours(1));
  const std::shared_ptr<SessionState> session = StartSession();
  Lose(session);
  child_.Kill();
  EXPECT_TRUE(Eventually([&] { return IsFree(); }));
  EXPECT_EQ(parts_.leases().lost_sessions(), 1u);
  EXPECT_EQ(parts_.leases().end_counts().by_exit, 1u);
}

TEST_F(ReclaimerTest, AWordWrittenAfterTheLossChangesNothing) {
  Start(std::chrono::hours(1));
  const std::shared_ptr<SessionState> session = StartSession();
  Lose(session);
  auto page = SharedPages::OpenClientPage(MapWithBoost, UniqueFd(::dup(session->client_page().fd())));
  ASSERT_TRUE(page.ok());
  (*page)->exiting = 1;
  child_.Kill();
  EXPECT_TRUE(Eventually([&] { return IsFree(); }));
  EXPECT_EQ(parts_.leases().lost_sessions(), 1u);
  EXPECT_EQ(Told(v1::Event::KIND_SESSION_GONE), 1) << "as it was told when it was lost";
  EXPECT_EQ(Told(v1::Event::KIND_SESSION_CLOSED), 0);
}

TEST_F(ReclaimerTest, ASessionWhoseProcessLivesIsFreeAfterTheGrace) {
  Start(milliseconds(50));
  Lose(StartSession());
  EXPECT_TRUE(Eventually([&] { return IsFree(); }));
}

TEST_F(ReclaimerTest, ASessionInItsGraceKeepsItsMemoryWhileTheDaemonStops) {
  Start(std::chrono::hours(1));
  const std::shared_ptr<SessionState> session = StartSession();
  Lose(session);
  std::thread stopping([this] { reclaimer_->Stop(); });
  std::this_thread::sleep_for(milliseconds(100));
  EXPECT_EQ(parts_.broker().Held(session->id()), 8_MiB);
  EXPECT_EQ(parts_.sessions().size(), 1u);
  child_.Kill();
  stopping.join();
  EXPECT_TRUE(IsFree());
}

TEST_F(ReclaimerTest, AStopWaitsNoLongerThanTheGrace) {
  constexpr milliseconds kGrace(200);
  Start(kGrace);
  const auto lost_at = std::chrono::steady_clock::now();
  Lose(StartSession());
  reclaimer_->Stop();
  EXPECT_GE(std::chrono::steady_clock::now() - lost_at, kGrace);
  EXPECT_TRUE(IsFree());
}

TEST_F(ReclaimerTest, AWatchedSessionIsWokenWhenItsProcessEnds) {
  Start(std::chrono::hours(1));
  const std::shared_ptr<SessionState> session = StartSession();
  reclaimer_->Watch(session);
  pollfd woken{.fd = static_cast<const PollWaker&>(*session->waker()).fd(), .events = POLLIN, .revents = 0};
  EXPECT_EQ(::poll(&woken, 1, 50), 0) << "its process lives";
  child_.Kill();
  EXPECT_EQ(::poll(&woken, 1, 10'000), 1);
  EXPECT_EQ(parts_.broker().Held(session->id()), 8_MiB) << "its own thread ends it";
}

TEST_F(ReclaimerTest, AnUnwatchedSessionIsNotWoken) {
  Start(std::chrono::hours(1));
  const std::shared_ptr<SessionState> session = StartSession();
  reclaimer_->Watch(session);
  reclaimer_->Unwatch(*session);
  child_.Kill();
  pollfd woken{.fd = static_cast<const PollWaker&>(*session->waker()).fd(), .events = POLLIN, .revents = 0};
  EXPECT_EQ(::poll(&woken, 1, 100), 0);
}

TEST_F(ReclaimerTest, ALostProgramsPreallocatedMemoryIsFreeButForWhatItHolds) {
  Start(std::chrono::hours(1));
  const std::shared_ptr<SessionState> session = parts_.AddSession(kUid, child_.Hold());
  const absl::StatusOr<v1::Lease> lease = parts_.CreateLease({.uid = kUid, .session = session}, "strict",
                                                             48_MiB, v1::LogicalDeviceSpec::MODE_PREALLOCATE);
  ASSERT_EQ(lease.status(), absl::OkStatus());
  ASSERT_EQ(parts_.Grow(*session, *lease, 8_MiB), absl::OkStatus());
  Lose(session);
  EXPECT_EQ(parts_.FreeOfCard(), DaemonParts::kCard - 8_MiB) << "the process lives";
  absl::StatusOr<v1::Lease> next;
  std::thread creating([&] {
    next = parts_.CreateLease({.uid = kUid, .session = nullptr}, "next", DaemonParts::kCard,
                              v1::LogicalDeviceSpec::MODE_PREALLOCATE);
  });
  EXPECT_TRUE(Eventually([&] { return parts_.broker().Cards()[0].queue.size() == 1; }));
  child_.Kill();
  creating.join();
  EXPECT_EQ(next.status(), absl::OkStatus());
  EXPECT_TRUE(Eventually([&] { return parts_.sessions().size() == 0; }));
  EXPECT_EQ(parts_.leases().end_counts().by_exit, 1u);
}

TEST_F(ReclaimerTest, ALeaseWaitsForACapThatALostProgramFills) {
  Start(std::chrono::hours(1));
  LeasePolicy policy;
  policy.user_caps = {{.name = "*", .guarantee = 48_MiB, .key = "caps.users.\"*\""}};
  parts_.leases().SetPolicy(policy);
  const std::shared_ptr<SessionState> session = parts_.AddSession(kUid, child_.Hold());
  const auto create = [&](const Caller& caller, const std::string& name, Bytes limit) {
    return parts_.CreateLease(caller, name, limit, v1::LogicalDeviceSpec::MODE_PREALLOCATE);
  };
  const absl::StatusOr<v1::Lease> lease = create({.uid = kUid, .session = session}, "strict", 48_MiB);
  ASSERT_EQ(lease.status(), absl::OkStatus());
  EXPECT_TRUE(absl::IsResourceExhausted(create({.uid = kUid, .session = nullptr}, "both", 2_MiB).status()))
      << "no lease ends";
  ASSERT_EQ(parts_.Grow(*session, *lease, 8_MiB), absl::OkStatus());
  Lose(session);
  EXPECT_TRUE(absl::IsInvalidArgument(create({.uid = kUid, .session = nullptr}, "more", 50_MiB).status()))
      << "it never fits";
  std::atomic<bool> asked = false;
  std::thread killing([&] {
    EXPECT_TRUE(Eventually([&] { return asked.load(); }));
    child_.Kill();
  });
  asked = true;
  EXPECT_EQ(create({.uid = kUid, .session = nullptr}, "next", 48_MiB).status(), absl::OkStatus());
  killing.join();
}

TEST_F(ReclaimerTest, AnotherProgramsLeaseKeepsItsPreallocatedMemory) {
  Start(std::chrono::hours(1));
  const std::shared_ptr<SessionState> session = parts_.AddSession(kUid, child_.Hold());
  IdleChild other;
  const std::shared_ptr<SessionState> stays = parts_.AddSession(kUid, other.Hold(), 2);
  const absl::StatusOr<v1::Lease> lease = parts_.CreateLease({.uid = kUid, .session = session}, "strict",
                                                             48_MiB, v1::LogicalDeviceSpec::MODE_PREALLOCATE);
  ASSERT_EQ(lease.status(), absl::OkStatus());
  ASSERT_EQ(parts_.leases().Attach({.uid = kUid, .session = stays}, "strict").status(), absl::OkStatus());
  ASSERT_EQ(parts_.Grow(*session, *lease, 8_MiB), absl::OkStatus());
  Lose(session);
  EXPECT_EQ(parts_.FreeOfCard(), DaemonParts::kCard - 48_MiB);
  child_.Kill();
  EXPECT_TRUE(Eventually([&] { return parts_.sessions().size() == 1; }));
  EXPECT_EQ(parts_.Grow(*stays, *lease, 48_MiB), absl::OkStatus());
}

TEST_F(ReclaimerTest, ExportedMemoryIsHeldWhileAnotherProgramOfTheLeaseHasItOpen) {
  Start(milliseconds(10));
  const std::shared_ptr<SessionState> session = parts_.AddSession(kUid, child_.Hold());
  IdleChild other;
  const std::shared_ptr<SessionState> imports = parts_.AddSession(kUid, other.Hold(), 2);
  ASSERT_TRUE(parts_.CreateLease({.uid = kUid, .session = session}, "train").ok());
  ASSERT_TRUE(parts_.leases().Attach({.uid = kUid, .session = imports}, "train").ok());
  parts_.broker().ShareAllowances(session->id(), std::make_shared<NoAllowances>());
  const auto now = std::chrono::steady_clock::now();
  const Broker::Answer charged =
      parts_.broker().ChargeCard({.session = session->id(),
                                  .card_uuid = parts_.broker().Cards()[0].card.device.uuid,
                                  .bytes = 8_MiB,
                                  .what = "cuMemAlloc_v2",
                                  .asked_at = now,
                                  .deadline = now});
  ASSERT_TRUE(charged.status.ok() && !charged.wait) << charged.status;
  auto own = SharedPages::OpenClientPage(MapWithBoost, UniqueFd(::dup(session->client_page().fd())));
  auto others = SharedPages::OpenClientPage(MapWithBoost, UniqueFd(::dup(imports->client_page().fd())));
  ASSERT_TRUE(own.ok() && others.ok());
  (*own)->charges.cards[0].exported = (4_MiB).count();
  (*others)->imports = 1;
  Lose(session);
  child_.Kill();
  EXPECT_TRUE(Eventually([&] { return parts_.FreeOfCard() == DaemonParts::kCard - 4_MiB; }))
      << "what the program had for itself alone is free";
  EXPECT_EQ(parts_.sessions().size(), 2u);
  (*others)->imports = 0;
  EXPECT_TRUE(Eventually([&] { return parts_.FreeOfCard() == DaemonParts::kCard; }));
  EXPECT_TRUE(Eventually([&] { return parts_.sessions().size() == 1; }));
}

TEST_F(ReclaimerTest, AnAbsentSessionEndsWithItsProcess) {
  Start(std::chrono::hours(1));
  const std::shared_ptr<SessionState> session = StartSession();
  session->SetAbsent(session->lease());
  reclaimer_->Watch(session);
  child_.Kill();
  EXPECT_TRUE(Eventually([&] { return IsFree(); }));
  EXPECT_EQ(parts_.leases().lost_sessions(), 1u);
}

TEST_F(ReclaimerTest, AnAbsentSessionThatIsBackIsNotEnded) {
  Start(milliseconds(0));
  const std::shared_ptr<SessionState> session = StartSession();
  session->SetAbsent(session->lease());
  ASSERT_TRUE(session->LeaveAbsent());
  reclaimer_->EndAbsent(session, /*is_gone=*/true);
  std::this_thread::sleep_for(milliseconds(50));
  EXPECT_EQ(parts_.broker().Held(session->id()), 8_MiB);
  EXPECT_EQ(parts_.leases().lost_sessions(), 0u);
}

}  // namespace
}  // namespace lgpu::daemon
