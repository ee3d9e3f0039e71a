// A lease has ended, and its programs still drain: which memory of its devices the card has at once, and
// which requests wait for the rest.

#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <memory>
#include <string>

#include "allocator/broker/broker.h"
#include "lgpu/refusal.h"
#include "tests/support/broker_testing.h"
#include "tests/support/child_program.h"
#include "tests/support/counting_backend.h"

namespace lgpu {
namespace {

using testing::CountingBackend;
using Reclaiming = CountingBackend::Reclaiming;
using Clock = std::chrono::steady_clock;

constexpr SessionId kProgram{1};

/// A broker of one card of 64 MiB, whose clock stands still.
class EndedDevicesTest : public ::testing::Test {
 protected:
  void SetUp() override {
    Broker::Options options = AllCardsOf(backend_);
    options.clock = [this] { return now_; };
    broker_ = *Broker::Create(backend_, log_, options);
    card_ = broker_->Cards().front().id;
  }
  void TearDown() override { EXPECT_EQ(broker_->CheckInvariants(), absl::OkStatus()); }

  Broker::Answer Preallocate(std::uint64_t lease, Bytes limit, Clock::time_point deadline) {
    return broker_->AddDevice({.card = card_,
                               .limit = limit,
                               .preallocate = true,
                               .lease = LeaseKey{lease},
                               .device_name = "/device:GPU:0",
                               .lease_name = "lease-" + std::to_string(lease),
                               .owner = "kim"},
                              {.deadline = deadline});
  }
  /// A lease of the program, with `limit` preallocated, of which it holds `held`.
  LogicalId StartProgram(Bytes limit, Bytes held) {
    const LogicalId device = Preallocate(1, limit, now_).device;
    broker_->AddSession(kProgram, {.pid = 1});
    broker_->AttachSession(kProgram, LeaseKey{1});
    const Broker::Answer answer = broker_->Grow({.session = kProgram,
                                                 .device = device,
                                                 .at_least = held,
                                                 .wanted = held,
                                                 .asked_at = now_,
                                                 .deadline = now_});
    EXPECT_EQ(answer.status, absl::OkStatus());
    EXPECT_EQ(broker_->Held(kProgram), held);
    return device;
  }
  Ledger::CardView Card() const { return broker_->Cards().front().view; }

  CountingBackend backend_{{64_MiB}, 2_MiB};
  NoGrantLog log_;
  const Clock::time_point now_ = Clock::now();
  const Clock::time_point later_ = now_ + std::chrono::hours(1);
  std::unique_ptr<Broker> broker_;
  CardId card_;
};

TEST_F(EndedDevicesTest, MemoryThatNoProgramHadIsFreeAtOnce) {
  const LogicalId device = StartProgram(48_MiB, 8_MiB);
  broker_->StartDraining(kProgram);
  EXPECT_EQ(Card().free(), 16_MiB) << "the lease may have other programs";
  broker_->RemoveDevice(device);
  EXPECT_EQ(Card().free(), 56_MiB);
  EXPECT_EQ(backend_.InUse(0), 8_MiB);
  const std::optional<Broker::DeviceInfo> left = broker_->Find(device);
  ASSERT_TRUE(left.has_value());
  EXPECT_EQ(left->held, 8_MiB);
  EXPECT_EQ(left->leaving, 8_MiB);
  EXPECT_EQ(left->missing, Bytes()) << "nothing is made again for it";
  broker_->RemoveDevice(device);  // as the lease does with its last session
  EXPECT_EQ(broker_->FinishDraining({kProgram}), std::vector{kProgram});
  EXPECT_FALSE(broker_->Find(device).has_value());
  EXPECT_EQ(Card().free(), 64_MiB);
  EXPECT_EQ(backend_.Handles(), 0u);
  broker_->RemoveDevice(device);
}

TEST_F(EndedDevicesTest, ARequestThatFitsWithMemoryOnItsWayBackWaitsForIt) {
  const LogicalId device = StartProgram(48_MiB, 8_MiB);
  broker_->StartDraining(kProgram);
  broker_->RemoveDevice(device);
  const Broker::Answer waits = Preallocate(2, 64_MiB, later_);
  ASSERT_TRUE(waits.wait.has_value()) << waits.status;
  EXPECT_EQ(broker_->Cards().front().queue.size(), 1u);
  EXPECT_EQ(broker_->FinishDraining({kProgram}), std::vector{kProgram});
  const std::optional<Broker::Answer> next = broker_->TakeAnswer(*waits.wait);
  ASSERT_TRUE(next.has_value());
  ASSERT_EQ(next->status, absl::OkStatus());
  EXPECT_EQ(broker_->Find(next->device)->held, 64_MiB);
}

TEST_F(EndedDevicesTest, ARequestThatDoesNotFitWithMemoryOnItsWayBackIsRefusedAtOnce) {
  ASSERT_EQ(Preallocate(3, 16_MiB, now_).status, absl::OkStatus());
  const LogicalId device = StartProgram(48_MiB, 8_MiB);
  broker_->StartDraining(kProgram);
  broker_->RemoveDevice(device);
  const Broker::Answer refused = Preallocate(2, 50_MiB, later_);
  const std::optional<Refusal> refusal = GetRefusal(refused.status);
  ASSERT_TRUE(refusal.has_value()) << refused.status;
  EXPECT_EQ(refusal->reason, RefusalReason::kCard);
  EXPECT_EQ(refusal->card_free, 40_MiB);
  EXPECT_EQ(refusal->coming_back, 8_MiB);
  EXPECT_EQ(broker_->FinishDraining({kProgram}), std::vector{kProgram});
}

TEST_F(EndedDevicesTest, MemoryThatComesBackToALeaseThatGoesOnIsNotWaitedFor) {
  const LogicalId device = StartProgram(48_MiB, 8_MiB);
  broker_->StartDraining(kProgram);
  EXPECT_FALSE(Preallocate(2, 24_MiB, later_).status.ok());
  EXPECT_EQ(broker_->FinishDraining({kProgram}), std::vector{kProgram});
  EXPECT_EQ(broker_->Find(device)->held, 48_MiB);
}

// Another program takes as much of the card at once, so the card's report says nothing.
TEST_F(EndedDevicesTest, ARealCardIsNotAskedForMemoryThatNoProgramHad) {
  backend_.BecomeReal();
  broker_ = *Broker::Create(backend_, log_, AllCardsOf(backend_));
  card_ = broker_->Cards().front().id;
  const LogicalId device = StartProgram(48_MiB, 8_MiB);
  backend_.SetReclaiming(0, Reclaiming::kTaken);
  broker_->StartDraining(kProgram);
  broker_->RemoveDevice(device);
  EXPECT_EQ(broker_->Find(device)->held, 8_MiB);
  EXPECT_TRUE(broker_->RetryUnconfirmed());
  EXPECT_TRUE(broker_->FinishDraining({kProgram}).empty()) << "the program may keep its own";
  EXPECT_EQ(broker_->Held(kProgram), 8_MiB);
}

}  // namespace
}  // namespace lgpu
