// Turns of requests in a card's queue, through a Broker.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "allocator/broker/broker.h"
#include "lgpu/refusal.h"
#include "tests/allocator/broker/broker_rig.h"
#include "tests/support/broker_testing.h"
#include "tests/support/counting_backend.h"
#include "tests/support/unwrapped.h"

namespace lgpu {
namespace {

using ::testing::HasSubstr;
using Clock = std::chrono::steady_clock;

// A broker with a clock of its own: a holder that does nothing, a hog that waits for the whole card, and a
// program.
class TurnRig {
 public:
  TurnRig() {
    Broker::Options options = AllCardsOf(backend_);
    options.max_drain = std::chrono::seconds(2);
    options.clock = [this] { return now_; };
    broker_ = *Broker::Create(backend_, log_, options);
    for (std::uint64_t i = 1; i <= 3; ++i) {
      broker_->AddSession(SessionId{i}, {.pid = static_cast<std::int64_t>(1000 + i)});
      broker_->AttachSession(SessionId{i}, LeaseKey{i});
      devices_.push_back(*broker_->AddDevice(Spec(i)));
    }
  }
  Broker::DeviceSpec Spec(std::uint64_t i, Bytes guarantee = {}) const {
    return {.card = broker_->Cards().front().id,
            .limit = kMiB * 64,
            .guarantee = guarantee,
            .lease = LeaseKey{i},
            .device_name = "/device:GPU:0",
            .lease_name = "lease-" + std::to_string(i),
            .owner = "user-" + std::to_string(i)};
  }
  Broker::Answer Grow(std::uint64_t i, Bytes bytes, std::chrono::milliseconds timeout) {
    return broker_->Grow({.session = SessionId{i},
                          .device = devices_[i - 1],
                          .at_least = bytes,
                          .wanted = bytes,
                          .asked_at = now_,
                          .deadline = now_ + timeout});
  }
  Broker& broker() { return *broker_; }
  LogicalId device(std::uint64_t i) const { return devices_[i - 1]; }
  Clock::time_point now() const { return now_; }
  void SetTime(Clock::time_point time) { now_ = time; }
  bool HasTurn(std::size_t place) const {
    return broker_->Cards().front().queue.at(place).turn_ends.has_value();
  }

 private:
  Clock::time_point now_{std::chrono::hours(1)};
  testing::CountingBackend backend_{{kMiB * 64}, kMiB * 2};
  NoGrantLog log_;
  std::unique_ptr<Broker> broker_;
  std::vector<LogicalId> devices_;
};

TEST(BrokerTest, ARequestThatFitsIntoFreeMemoryIsServedWhenTheTurnThatHoldsItBackEnds) {
  TurnRig rig;
  ASSERT_TRUE(rig.Grow(1, kMiB * 8, {}).status.ok());
  ASSERT_TRUE(rig.Grow(2, kMiB * 64, std::chrono::hours(24)).wait.has_value());
  const Broker::Answer waits = rig.Grow(3, kMiB * 8, std::chrono::hours(1));
  ASSERT_TRUE(waits.wait.has_value()) << waits.status;
  const auto turn_ends = rig.now() + std::chrono::seconds(2);
  while (rig.now() < turn_ends) {
    EXPECT_FALSE(rig.broker().TakeAnswer(*waits.wait).has_value());
    const auto tick = rig.broker().Tick();
    ASSERT_TRUE(tick.has_value() && *tick > rig.now() && *tick <= turn_ends);
    rig.SetTime(*tick);
  }
  EXPECT_TRUE(AskAgain(rig.broker(), *waits.wait).status.ok());
  EXPECT_EQ(rig.broker().Held(SessionId{3}), kMiB * 8);
  // In the rest after the turn no request is held back.
  EXPECT_FALSE(rig.HasTurn(0));
  EXPECT_FALSE(rig.Grow(3, kMiB * 8, {}).wait.has_value());
  EXPECT_EQ(rig.broker().Held(SessionId{3}), kMiB * 16);
}

TEST(BrokerTest, ATurnEndsWhenItsRequestNeedsMemoryOfASessionThatWaits) {
  TurnRig rig;
  ASSERT_TRUE(rig.Grow(1, kMiB * 8, {}).status.ok());
  ASSERT_TRUE(rig.Grow(2, kMiB * 64, std::chrono::hours(24)).wait.has_value());
  ASSERT_TRUE(rig.HasTurn(0));
  const Broker::Answer granted = rig.Grow(1, kMiB * 8, {});
  EXPECT_TRUE(granted.status.ok()) << granted.status;
  EXPECT_EQ(rig.broker().Held(SessionId{1}), kMiB * 16);
}

TEST(BrokerTest, ARefusalThatIsDueToATurnNamesItsRequest) {
  TurnRig rig;
  ASSERT_TRUE(rig.Grow(1, kMiB * 8, {}).status.ok());
  ASSERT_TRUE(rig.Grow(2, kMiB * 64, std::chrono::hours(24)).wait.has_value());
  const Broker::Answer waits = rig.Grow(3, kMiB * 8, {});
  ASSERT_TRUE(waits.wait.has_value()) << "even a timeout of 0 outlasts a short turn";
  rig.SetTime(*rig.broker().Tick());
  const Broker::Answer refused = AskAgain(rig.broker(), *waits.wait);
  EXPECT_EQ(GetRefusal(refused.status).value_or(Refusal()).reason, RefusalReason::kCard);
  EXPECT_THAT(
      testing::Unwrapped(std::string(refused.status.message())),
      HasSubstr("held back for /device:GPU:0 of lease lease-2 (user user-2, pid 1002), which waits for "
                "64.00MiB; its turn ends in 1.9 s"));
}

TEST(BrokerTest, ARequestWhoseTurnsWereInVainIsToldSoAtItsDeadline) {
  TurnRig rig;
  ASSERT_TRUE(rig.Grow(1, kMiB * 8, {}).status.ok());
  Broker::Answer waits = rig.Grow(2, kMiB * 64, std::chrono::seconds(5));
  while (waits.wait) {
    rig.SetTime(*rig.broker().Tick());
    waits = AskAgain(rig.broker(), *waits.wait);
  }
  EXPECT_THAT(std::string(waits.status.message()),
              HasSubstr("ask for less: the request had 1 turn of at most 2.0 s"));
}

TEST(BrokerTest, ARequestThatLapsesTakesNoTurnFromItsUsersOtherRequests) {
  TurnRig rig;
  ASSERT_TRUE(rig.Grow(1, kMiB * 8, {}).status.ok());
  const Broker::Answer hog = rig.Grow(2, kMiB * 64, std::chrono::hours(24));
  const Broker::Answer waits = rig.Grow(3, kMiB * 60, std::chrono::hours(1));
  ASSERT_TRUE(hog.wait.has_value() && waits.wait.has_value());
  const Clock::time_point start = rig.now();
  rig.SetTime(start + std::chrono::seconds(2));
  ASSERT_TRUE(AskAgain(rig.broker(), *hog.wait).wait.has_value());
  // Until 4 s the queue rests. The next turn is user-3's.
  const Broker::Answer brief = rig.Grow(3, kMiB * 60, std::chrono::seconds(1));
  ASSERT_TRUE(brief.wait.has_value());
  rig.SetTime(start + std::chrono::seconds(3));
  EXPECT_EQ(GetRefusal(AskAgain(rig.broker(), *brief.wait).status).value_or(Refusal()).reason,
            RefusalReason::kCard);
  rig.SetTime(start + std::chrono::seconds(4));
  ASSERT_TRUE(AskAgain(rig.broker(), *waits.wait).wait.has_value());
  const std::vector<Broker::Queued> queue = rig.broker().Cards().front().queue;
  ASSERT_EQ(queue.size(), 2u);
  EXPECT_EQ(queue.front().id, *waits.wait);
  EXPECT_TRUE(queue.front().turn_ends.has_value()) << "user-2 has two turns before user-3 has one";
}

TEST(BrokerTest, ATurnHoldsBackNewGuaranteesAndNeverThoseThatAreThere) {
  TurnRig rig;
  const LogicalId guaranteed = *rig.broker().AddDevice(rig.Spec(3, kMiB * 4));
  ASSERT_TRUE(rig.Grow(1, kMiB * 8, {}).status.ok());
  ASSERT_TRUE(rig.Grow(2, kMiB * 60, std::chrono::hours(24)).wait.has_value());
  ASSERT_TRUE(rig.HasTurn(0));
  const Broker::Answer inside = rig.broker().Grow({.session = SessionId{3},
                                                   .device = guaranteed,
                                                   .at_least = kMiB * 4,
                                                   .wanted = kMiB * 4,
                                                   .asked_at = rig.now(),
                                                   .deadline = rig.now()});
  EXPECT_TRUE(inside.status.ok() && !inside.wait) << inside.status;
  const absl::Status held_back = rig.broker().AddDevice(rig.Spec(3, kMiB * 4)).status();
  EXPECT_THAT(testing::Unwrapped(std::string(held_back.message())),
              HasSubstr("held back for /device:GPU:0 of lease lease-2"));
  rig.SetTime(rig.now() + std::chrono::seconds(2));
  rig.broker().Tick();
  EXPECT_TRUE(rig.broker().AddDevice(rig.Spec(3, kMiB * 4)).ok());
}

}  // namespace
}  // namespace lgpu
