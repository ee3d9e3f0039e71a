// Calls of the backend and of the log that fail.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdio>
#include <memory>

#include "allocator/broker/broker.h"
#include "lgpu/refusal.h"
#include "tests/allocator/broker/broker_rig.h"
#include "tests/allocator/broker/recording_log.h"
#include "tests/support/broker_testing.h"
#include "tests/support/counting_backend.h"
#include "tests/support/failing_backend.h"

namespace lgpu {
namespace {

using ::testing::ElementsAre;
using Clock = std::chrono::steady_clock;

TEST(BrokerTest, AnExhaustedBackendIsAskedNowAndThenOnly) {
  Rig rig(kMiB * 64, {.code = absl::StatusCode::kResourceExhausted, .cleanup_fails = false});
  const SessionId dying = rig.Session(1);
  const SessionId living = rig.Session(2);
  const LogicalId device = *rig.Device(kMiB * 64);
  ASSERT_TRUE(rig.Grow(dying, device, kMiB * 8).status.ok());
  rig.broker().StartDraining(dying);
  rig.faults().FailFrom(1);
  const Clock::time_point start = Clock::now();
  Broker::Answer answer = rig.Grow(living, device, kMiB * 8, std::chrono::hours(1));
  for (int i = 0; i < 1000 && answer.wait; ++i) answer = AskAgain(rig.broker(), *answer.wait);
  ASSERT_TRUE(answer.wait.has_value()) << answer.status;
  const auto looks = (Clock::now() - start) / std::chrono::milliseconds(20);
  EXPECT_LE(rig.faults().calls(), static_cast<std::uint64_t>(looks) + 1);
  rig.faults().Heal();
  EXPECT_THAT(rig.broker().FinishDraining({dying}), ElementsAre(dying));
  EXPECT_TRUE(rig.Finish(answer).status.ok());
}

TEST(BrokerTest, AGrantThatCannotBeLoggedIsTakenBack) {
  testing::CountingBackend backend({kMiB * 64}, kMiB * 2);
  RecordingLog log;
  const std::unique_ptr<Broker> broker = *Broker::Create(backend, log, AllCardsOf(backend));
  const LogicalId device =
      *broker->AddDevice({.card = broker->Cards().front().id, .limit = kMiB * 64, .lease = kLease});
  broker->AddSession(SessionId{1}, {.pid = 1});
  broker->AttachSession(SessionId{1}, kLease);
  const auto grow = [&] {
    return broker->Grow({.session = SessionId{1},
                         .device = device,
                         .at_least = kMiB * 4,
                         .wanted = kMiB * 4,
                         .asked_at = Clock::now(),
                         .deadline = Clock::now()});
  };
  log.SetFailing(true);
  EXPECT_TRUE(absl::IsUnavailable(grow().status));
  EXPECT_TRUE(log.granted().empty());
  EXPECT_TRUE(broker->Held(SessionId{1}).is_zero());
  EXPECT_EQ(backend.Handles(), 0u);
  EXPECT_EQ(broker->counters().refusals, 1u);
  log.SetFailing(false);
  EXPECT_TRUE(grow().status.ok());
  EXPECT_EQ(log.granted().size(), 2u);
}

// Everything that a lease goes through; returns whether all of it worked.
bool Scenario(Rig& rig) {
  const SessionId session = rig.Session(1);
  const SessionId lost = rig.Session(2);
  bool ok = true;
  const absl::StatusOr<LogicalId> growing = rig.Device(kMiB * 96);
  const absl::StatusOr<LogicalId> ready = rig.Device(kMiB * 64, kLease, true);
  for (const absl::StatusOr<LogicalId>& device : {growing, ready}) {
    ok = ok && device.ok();
    if (!device.ok()) continue;
    for (const SessionId user : {session, lost}) {
      const Broker::Answer answer = rig.Finish(rig.Grow(user, *device, kMiB * 6));
      ok = ok && answer.status.ok();
      for (const Chunk& chunk : answer.chunks) ok = rig.broker().Export(user, chunk.id).ok() && ok;
      if (!answer.chunks.empty() && user == session) {
        ok = rig.broker().Return(user, *device, Ids(answer.chunks)).ok() && ok;
      }
    }
    EXPECT_TRUE(rig.broker().CheckInvariants().ok()) << rig.broker().CheckInvariants();
  }
  rig.broker().StartDraining(lost);
  rig.broker().ReturnAll(session);
  rig.broker().FinishDraining({lost});
  for (int i = 0; i < 3 && !rig.broker().RetryUnconfirmed(); ++i) {
  }
  for (const absl::StatusOr<LogicalId>& device : {growing, ready}) {
    if (device.ok()) rig.broker().RemoveDevice(*device);
  }
  EXPECT_TRUE(rig.broker().RetryUnconfirmed() || rig.broker().RetryUnconfirmed());
  EXPECT_EQ(rig.broker().Held(session), Bytes());
  EXPECT_EQ(rig.broker().Held(lost), Bytes());
  rig.broker().RemoveSession(session);
  rig.broker().RemoveSession(lost);
  return ok;
}

void Sweep(FailingBackend::Options options) {
  std::uint64_t calls = 0;
  for (std::uint64_t n = 1;; ++n) {
    Rig rig(kMiB * 256, options);
    rig.faults().FailCall(n);
    Scenario(rig);
    const Broker::CardInfo card = rig.Card();
    EXPECT_EQ(card.view.held, Bytes()) << "call " << n;
    EXPECT_EQ(card.view.promised, Bytes()) << "call " << n;
    EXPECT_TRUE(rig.broker().CheckInvariants().ok()) << rig.broker().CheckInvariants();
    if (!rig.faults().has_failed()) {
      calls = rig.faults().calls();
      break;
    }
  }
  std::printf("the sweep saw %llu calls\n", static_cast<unsigned long long>(calls));
  EXPECT_GE(calls, 20u);
}

TEST(BrokerTest, AnyFailedCallLeavesNothingBehind) { Sweep({}); }
TEST(BrokerTest, AnyFailedCallOfAFullMachineLeavesNothingBehind) {
  Sweep({.code = absl::StatusCode::kResourceExhausted, .cleanup_fails = true});
}

}  // namespace
}  // namespace lgpu
