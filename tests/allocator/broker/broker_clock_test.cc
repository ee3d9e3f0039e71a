// What time alone brings about, and that a request that waited has its answer once, by its waker.

#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <optional>
#include <string>

#include "allocator/broker/broker.h"
#include "lgpu/refusal.h"
#include "tests/support/broker_testing.h"
#include "tests/support/counting_backend.h"

namespace lgpu {
namespace {

using std::chrono::hours;
using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::CountingBackend;
using Reclaiming = CountingBackend::Reclaiming;
using Time = Broker::TimePoint;

/// A broker of one card of 64 MiB whose clock the test sets.
class BrokerClockTest : public ::testing::Test {
 protected:
  void SetUp() override {
    Broker::Options options = AllCardsOf(backend_);
    options.clock = [this] { return now_; };
    options.tick_waker = tick_;
    broker_ = *Broker::Create(backend_, log_, options);
    card_ = broker_->Cards().front().id;
  }
  void TearDown() override { EXPECT_EQ(broker_->CheckInvariants(), absl::OkStatus()); }

  Broker::DeviceSpec Spec(std::uint64_t lease, Bytes limit, bool preallocate = false) const {
    return {.card = card_,
            .limit = limit,
            .preallocate = preallocate,
            .lease = LeaseKey{lease},
            .device_name = "/device:GPU:0",
            .lease_name = "lease-" + std::to_string(lease),
            .owner = "user-" + std::to_string(lease)};
  }
  // A program of a lease of its own.
  LogicalId Program(std::uint64_t id, Bytes limit = 64_MiB, bool preallocate = false) {
    const LogicalId device = *broker_->AddDevice(Spec(id, limit, preallocate));
    broker_->AddSession(SessionId{id}, {.pid = static_cast<std::int64_t>(id), .waker = waker_});
    broker_->AttachSession(SessionId{id}, LeaseKey{id});
    return device;
  }
  Broker::Answer Grow(std::uint64_t id, LogicalId device, Bytes bytes, milliseconds timeout = {}) {
    return broker_->Grow({.session = SessionId{id},
                          .device = device,
                          .at_least = bytes,
                          .wanted = bytes,
                          .asked_at = now_,
                          .deadline = now_ + timeout});
  }

  CountingBackend backend_{{64_MiB}, 2_MiB};
  NoGrantLog log_;
  Time now_{hours(1)};
  const std::shared_ptr<FlagWaker> tick_ = std::make_shared<FlagWaker>();
  const std::shared_ptr<FlagWaker> waker_ = std::make_shared<FlagWaker>();
  std::unique_ptr<Broker> broker_;
  CardId card_;
};

TEST_F(BrokerClockTest, NothingIsDueWhileNoRequestWaits) {
  EXPECT_EQ(broker_->Tick(), std::nullopt);
  const LogicalId device = Program(1);
  ASSERT_TRUE(Grow(1, device, 64_MiB).status.ok());
  EXPECT_EQ(broker_->Tick(), std::nullopt);
  EXPECT_FALSE(tick_->woken());
}

TEST_F(BrokerClockTest, ARequestIsRefusedAtItsDeadlineByTheTickAlone) {
  const LogicalId one = Program(1);
  const LogicalId two = Program(2);
  ASSERT_TRUE(Grow(1, one, 64_MiB).status.ok());
  const Broker::Answer waits = Grow(2, two, 2_MiB, milliseconds(1500));
  ASSERT_TRUE(waits.wait.has_value());
  EXPECT_TRUE(tick_->woken()) << "the tick was due never, and is due now";
  const Time deadline = now_ + milliseconds(1500);
  for (std::optional<Time> tick = broker_->Tick(); now_ < deadline; tick = broker_->Tick()) {
    ASSERT_TRUE(tick.has_value() && *tick > now_ && *tick <= deadline);
    if (*tick == deadline) break;
    now_ = *tick;
  }
  now_ = deadline;
  EXPECT_FALSE(broker_->TakeAnswer(*waits.wait).has_value()) << "time is the tick's alone";
  EXPECT_FALSE(waker_->woken());
  EXPECT_EQ(broker_->Tick(), std::nullopt);
  EXPECT_TRUE(waker_->woken());
  const std::optional<Broker::Answer> refused = broker_->TakeAnswer(*waits.wait);
  ASSERT_TRUE(refused.has_value());
  EXPECT_EQ(GetRefusal(refused->status).value_or(Refusal()).reason, RefusalReason::kCard);
  EXPECT_TRUE(absl::IsFailedPrecondition(broker_->TakeAnswer(*waits.wait)->status)) << "once";
}

TEST_F(BrokerClockTest, TheTickIsWokenOnlyForAnEarlierTime) {
  const LogicalId one = Program(1);
  const LogicalId two = Program(2);
  ASSERT_TRUE(Grow(1, one, 64_MiB).status.ok());
  ASSERT_TRUE(Grow(2, two, 2_MiB, milliseconds(200)).wait.has_value());
  broker_->Tick();
  tick_->Clear();
  ASSERT_TRUE(Grow(2, two, 2_MiB, milliseconds(220)).wait.has_value());
  EXPECT_FALSE(tick_->woken());
  ASSERT_TRUE(Grow(2, two, 2_MiB, milliseconds(90)).wait.has_value());
  EXPECT_TRUE(tick_->woken());
  EXPECT_EQ(broker_->Tick(), now_ + milliseconds(90));
  broker_->ReturnAll(SessionId{2});
}

TEST_F(BrokerClockTest, ANewSizeWaitsForTheDevicesOwnMemoryAndIsUndoneAtItsDeadline) {
  const LogicalId device = Program(1, 32_MiB, /*preallocate=*/true);
  backend_.SetReclaiming(0, Reclaiming::kPinned);
  ASSERT_TRUE(broker_->ResizeDevice(device, 16_MiB, Bytes()).ok());
  EXPECT_GT(broker_->Find(device)->leaving, Bytes());
  for (const bool is_back : {false, true}) {
    waker_->Clear();
    const Broker::Answer waits =
        broker_->ResizeDevice(device, 40_MiB, Bytes(), {.deadline = now_ + seconds(2), .waker = waker_});
    ASSERT_TRUE(waits.wait.has_value()) << waits.status;
    if (is_back) {
      backend_.SetReclaiming(0, Reclaiming::kAtOnce);
      EXPECT_TRUE(broker_->RetryUnconfirmed());
    } else {
      EXPECT_EQ(broker_->Tick(), now_ + seconds(2));
      now_ += seconds(2);
      broker_->Tick();
    }
    EXPECT_TRUE(waker_->woken());
    const std::optional<Broker::Answer> answer = broker_->TakeAnswer(*waits.wait);
    ASSERT_TRUE(answer.has_value());
    EXPECT_EQ(answer->status.code(), is_back ? absl::StatusCode::kOk : absl::StatusCode::kUnavailable);
    EXPECT_EQ(broker_->Find(device)->limit, is_back ? 40_MiB : 16_MiB);
  }
  EXPECT_EQ(broker_->Find(device)->held, 40_MiB);
}

TEST_F(BrokerClockTest, ARefusedSizeServesNoRequestThatWaits) {
  const LogicalId device = Program(1, 32_MiB, /*preallocate=*/true);
  ASSERT_TRUE(Grow(1, device, 16_MiB).status.ok());
  backend_.SetReclaiming(0, Reclaiming::kPinned);
  ASSERT_TRUE(broker_->ResizeDevice(device, 16_MiB, Bytes()).ok());  // 16 MiB leave
  broker_->AddSession(SessionId{9}, {.pid = 9, .waker = waker_});
  broker_->AttachSession(SessionId{9}, LeaseKey{1});
  ASSERT_TRUE(Grow(9, device, 8_MiB, hours(1)).wait.has_value());
  EXPECT_TRUE(absl::IsUnavailable(broker_->ResizeDevice(device, 40_MiB, Bytes())));
  EXPECT_EQ(broker_->Find(device)->limit, 16_MiB);
  EXPECT_LE(broker_->Held(SessionId{1}) + broker_->Held(SessionId{9}), 16_MiB);
  EXPECT_EQ(broker_->Find(device)->held - broker_->Find(device)->leaving, 16_MiB);
  broker_->ReturnAll(SessionId{9});
}

TEST_F(BrokerClockTest, WhatTheBackendHadTooLittleForIsMadeAtALaterTick) {
  const LogicalId leaving = Program(1);
  ASSERT_TRUE(Grow(1, leaving, 32_MiB).status.ok());
  backend_.SetReclaiming(0, Reclaiming::kPinned);
  broker_->ReturnAll(SessionId{1});
  backend_.FailCreateAfter(0);
  const Broker::Answer waits = broker_->AddDevice(Spec(2, 32_MiB, /*preallocate=*/true),
                                                  {.deadline = now_ + hours(1), .waker = waker_});
  ASSERT_TRUE(waits.wait.has_value()) << waits.status;
  waker_->Clear();
  EXPECT_EQ(broker_->Tick(), now_ + milliseconds(20));
  now_ += milliseconds(20);
  broker_->Tick();
  EXPECT_TRUE(waker_->woken());
  backend_.FailCreateAfter(0);
  EXPECT_FALSE(broker_->TakeAnswer(*waits.wait).has_value()) << "the backend has too little still";
  now_ += milliseconds(20);
  broker_->Tick();
  const std::optional<Broker::Answer> made = broker_->TakeAnswer(*waits.wait);
  ASSERT_TRUE(made.has_value());
  EXPECT_TRUE(made->status.ok()) << made->status;
  EXPECT_EQ(broker_->Find(made->device)->held, 32_MiB);
  backend_.SetReclaiming(0, Reclaiming::kAtOnce);
  EXPECT_TRUE(broker_->RetryUnconfirmed());
}

TEST_F(BrokerClockTest, ABrokerThatStopsRefusesTheGuaranteesThatWaitForIt) {
  const LogicalId one = Program(1);
  ASSERT_TRUE(Grow(1, one, 64_MiB).status.ok());
  broker_->StartDraining(SessionId{1});
  const Broker::Answer waits =
      broker_->AddDevice(Spec(2, 32_MiB, true), {.deadline = now_ + hours(1), .waker = waker_});
  ASSERT_TRUE(waits.wait.has_value()) << waits.status;
  broker_->StopWaiting();
  EXPECT_TRUE(waker_->woken());
  EXPECT_TRUE(absl::IsResourceExhausted(broker_->TakeAnswer(*waits.wait)->status));
  EXPECT_TRUE(absl::IsResourceExhausted(
      broker_->AddDevice(Spec(3, 32_MiB, true), {.deadline = now_ + hours(1)}).status));
  broker_->FinishDraining({SessionId{1}});
}

}  // namespace
}  // namespace lgpu
