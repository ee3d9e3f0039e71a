// What cards and backends say about memory that sessions returned.

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "allocator/broker/broker.h"
#include "tests/allocator/broker/broker_repairs.h"
#include "tests/allocator/broker/broker_rig.h"
#include "tests/support/broker_testing.h"
#include "tests/support/counting_backend.h"

namespace lgpu {
namespace {

using testing::CountingBackend;
using Clock = std::chrono::steady_clock;

class Words final : public Allowances {
 public:
  std::atomic<std::uint64_t>& Free(std::size_t card) override { return free_.at(card); }
  std::atomic<std::uint64_t>& Keep(std::size_t card) override { return keep_.at(card); }

 private:
  std::array<std::atomic<std::uint64_t>, 1> free_{};
  std::array<std::atomic<std::uint64_t>, 1> keep_{};
};

/// A broker over one card of 256 MiB, and sessions with a lease each.
class BrokerReturnsTest : public ::testing::Test {
 protected:
  ~BrokerReturnsTest() override {
    EXPECT_TRUE(broker_->CheckInvariants().ok()) << broker_->CheckInvariants();
  }

  void UseRealCard() {
    backend_.BecomeReal();
    broker_ = MakeBroker(backend_);
  }
  void Session(std::uint64_t id, Bytes limit, bool preallocate = false) {
    broker_->AddSession(SessionId{id}, {.pid = static_cast<std::int64_t>(id)});
    broker_->AttachSession(SessionId{id}, LeaseKey{id});
    devices_[id] = AddDevice(*broker_, id, limit, preallocate);
  }
  std::vector<ChunkId> Grow(std::uint64_t session, Bytes bytes) {
    const Broker::Answer answer = GrowOf(*broker_, session, devices_.at(session), bytes, {});
    EXPECT_TRUE(answer.status.ok()) << answer.status;
    return Ids(answer.chunks);
  }
  void Return(std::uint64_t session, const std::vector<ChunkId>& chunks) {
    EXPECT_TRUE(broker_->Return(SessionId{session}, devices_.at(session), chunks).ok());
  }
  Broker::Answer Charge(std::uint64_t session, Bytes bytes) {
    return broker_->ChargeCard({.session = SessionId{session},
                                .card_uuid = backend_.devices().front().uuid,
                                .bytes = bytes,
                                .what = "test",
                                .asked_at = Clock::now(),
                                .deadline = Clock::now()});
  }
  Bytes Held(std::uint64_t session) const { return broker_->Held(SessionId{session}); }

  CountingBackend backend_{{256_MiB}, 2_MiB};
  std::unique_ptr<Broker> broker_ = MakeBroker(backend_);
  std::map<std::uint64_t, LogicalId> devices_;
};

// The card's free memory rises by what the second session returned, while the first one keeps as much.
TEST_F(BrokerReturnsTest, OneRiseOfTheCardIsNotBelievedForTwoReturns) {
  UseRealCard();
  Session(1, 32_MiB);
  Session(2, 32_MiB);
  const std::vector<ChunkId> first = Grow(1, 4_MiB);
  const std::vector<ChunkId> second = Grow(2, 4_MiB);
  MemoryHandle kept;
  backend_.BeforeNextReclaim([&] {
    kept = *backend_.Create(0, 4_MiB);
    Return(2, second);
  });
  Return(1, first);
  EXPECT_EQ(Held(1), 4_MiB);
  EXPECT_FALSE(broker_->RetryUnconfirmed());
  EXPECT_EQ(Held(1), 4_MiB);
  EXPECT_EQ(Held(2), Bytes());
  EXPECT_TRUE(backend_.Release(kept).ok());
  EXPECT_TRUE(broker_->RetryUnconfirmed());
  EXPECT_EQ(Held(1), Bytes());
}

TEST_F(BrokerReturnsTest, ReturnsThatWerePutOffComeBeforeLaterOnes) {
  UseRealCard();
  for (std::uint64_t session = 1; session <= 3; ++session) Session(session, 32_MiB);
  const std::vector<ChunkId> first = Grow(1, 4_MiB);
  const std::vector<ChunkId> second = Grow(2, 4_MiB);
  const std::vector<ChunkId> third = Grow(3, 4_MiB);
  backend_.BeforeNextReclaim([&] { Return(2, second); });
  Return(1, first);
  EXPECT_EQ(Held(1), Bytes());
  EXPECT_EQ(Held(2), 4_MiB);
  Return(3, third);
  EXPECT_EQ(Held(3), 4_MiB);
  EXPECT_TRUE(broker_->RetryUnconfirmed());
  EXPECT_EQ(Held(2), Bytes());
  EXPECT_EQ(Held(3), Bytes());
  Return(3, Grow(3, 4_MiB));
  EXPECT_EQ(Held(3), Bytes()) << "no return is put off any more";
}

TEST_F(BrokerReturnsTest, SpareChunksThatAreFreedForAChargeAreNotBelievedToBeAReturn) {
  UseRealCard();
  Session(1, 64_MiB);
  Session(2, 64_MiB, /*preallocate=*/true);
  const std::vector<ChunkId> chunks = Grow(1, 20_MiB);
  MemoryHandle kept;
  std::thread charges;
  std::atomic<bool> has_charged = false;
  Broker::Answer charged;
  backend_.BeforeNextReclaim([&] {
    kept = *backend_.Create(0, 20_MiB);
    charges = std::thread([&] {
      charged = Charge(2, 20_MiB);
      has_charged = true;
    });
    // The charge takes its ballast at once, and frees it after this return.
    while (!has_charged && broker_->Find(devices_.at(2))->leaving != 20_MiB) std::this_thread::yield();
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  });
  Return(1, chunks);
  charges.join();
  EXPECT_TRUE(charged.lent.has_value()) << charged.status;
  EXPECT_EQ(Held(1), 20_MiB);
  EXPECT_TRUE(backend_.Release(kept).ok());
  EXPECT_TRUE(broker_->RetryUnconfirmed());
  EXPECT_EQ(Held(1), Bytes());
}

// As a program does that has just come to the card: its context is not measured yet.
TEST_F(BrokerReturnsTest, ARequestWaitsForMemoryThatTheCardDoesNotHaveAnyMore) {
  UseRealCard();
  Session(1, 200_MiB);
  Session(2, 64_MiB);
  const std::vector<ChunkId> chunks = Grow(1, 200_MiB);
  MemoryHandle context;
  backend_.BeforeNextCreate([&] { context = *backend_.Create(0, 40_MiB); });
  const Broker::Answer answer = GrowOf(*broker_, 2, devices_.at(2), 32_MiB, std::chrono::hours(1));
  ASSERT_TRUE(answer.wait) << answer.status;
  Return(1, chunks);
  Broker::Answer later = AskAgain(*broker_, *answer.wait);
  while (later.wait) later = AskAgain(*broker_, *later.wait);
  EXPECT_TRUE(later.status.ok()) << later.status;
  EXPECT_EQ(Held(2), 32_MiB);
  EXPECT_TRUE(backend_.Release(context).ok());
}

TEST_F(BrokerReturnsTest, AnUnusedAllowanceHidesNoPinnedMemory) {
  Session(1, 64_MiB);
  Session(2, 64_MiB);
  const auto words = std::make_shared<Words>();
  broker_->ShareAllowances(SessionId{2}, words);
  ASSERT_TRUE(Charge(2, 2_MiB).lent.has_value());
  ASSERT_GT(words->Free(0).load(), 0u);
  backend_.SetReclaiming(0, CountingBackend::Reclaiming::kPinned);
  Return(1, Grow(1, 2_MiB));
  EXPECT_FALSE(broker_->RetryUnconfirmed());
  EXPECT_EQ(Held(1), 2_MiB);
  backend_.SetReclaiming(0, CountingBackend::Reclaiming::kAtOnce);
  EXPECT_TRUE(broker_->RetryUnconfirmed());
  EXPECT_EQ(Held(1), Bytes());
}

}  // namespace
}  // namespace lgpu
