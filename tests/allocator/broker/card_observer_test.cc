#include "allocator/broker/card_observer.h"

#include <gtest/gtest.h>

#include <chrono>
#include <map>
#include <memory>
#include <vector>

#include "allocator/broker/broker.h"
#include "allocator/broker/lease_suspensions.h"
#include "tests/allocator/broker/charges_fixture.h"
#include "tests/support/broker_testing.h"
#include "tests/support/counting_backend.h"

namespace lgpu {
namespace {

using std::chrono::seconds;

constexpr LeaseKey kAnn{1};
constexpr LeaseKey kBob{2};

/// A real card of 512 MiB, as far as the broker can see.
class CardObserverTest : public ::testing::Test {
 protected:
  CardObserverTest() {
    backend_.BecomeReal();
    Broker::Options options = AllCardsOf(backend_);
    options.cards[0].watched_overhead = 16_MiB;
    options.clock = [this] { return now_; };
    broker_ = *Broker::Create(backend_, log_, options);
  }
  ~CardObserverTest() override { EXPECT_EQ(broker_->CheckInvariants(), absl::OkStatus()); }

  CardObserver& observer() { return broker_->observer(); }
  CardId card() const { return broker_->Cards()[0].id; }
  std::string uuid() const { return backend_.devices()[0].uuid; }
  Ledger::CardView View() const { return broker_->Cards()[0].view; }
  void Lists(std::vector<DeviceMemory::ProcessMemory> processes) {
    backend_.SetProcesses(0, std::move(processes));
  }
  void Device(LeaseKey lease) {
    ASSERT_TRUE(broker_
                    ->AddDevice({.card = card(),
                                 .limit = 512_MiB,
                                 .lease = lease,
                                 .device_name = "/device:GPU:0",
                                 .lease_name = "lease",
                                 .owner = "user"})
                    .ok());
  }
  /// Its process has the number 1000 above the session's.
  SessionId Program(std::uint64_t id, LeaseKey lease) {
    const SessionId session{id};
    broker_->AddSession(session, {.pid = static_cast<std::int64_t>(1000 + id), .waits_longer = true});
    broker_->AttachSession(session, lease);
    words_[id] = std::make_shared<Words>();
    broker_->ShareAllowances(session, words_[id]);
    return session;
  }
  void Charge(SessionId session, Bytes bytes) {
    const Broker::Answer answer = broker_->ChargeCard({.session = session,
                                                       .card_uuid = uuid(),
                                                       .bytes = bytes,
                                                       .what = "cuMemAlloc_v2",
                                                       .asked_at = now_,
                                                       .deadline = now_});
    ASSERT_TRUE(answer.status.ok() && !answer.wait) << answer.status;
  }

  std::chrono::steady_clock::time_point now_ =
      std::chrono::steady_clock::time_point() + std::chrono::hours(1);
  RecordingLog log_;
  testing::CountingBackend backend_{{512_MiB}, 2_MiB};
  std::unique_ptr<Broker> broker_;
  std::map<std::uint64_t, std::shared_ptr<Words>> words_;
};

TEST_F(CardObserverTest, MemoryOfAProcessWithoutASessionIsGrantedToNobody) {
  Lists({{.pid = 300, .used = 100_MiB}});
  observer().ObserveCards();
  EXPECT_EQ(View().foreign, 100_MiB);
  EXPECT_EQ(View().free(), 412_MiB);
  ASSERT_EQ(broker_->Cards()[0].outsiders.size(), 1u);
  EXPECT_EQ(broker_->Cards()[0].outsiders[0].pid, 300);
  Lists({});
  observer().ObserveCards();
  EXPECT_EQ(View().free(), 512_MiB);
}

TEST_F(CardObserverTest, OneCardIsAskedAgainOnlyAfterAWhile) {
  observer().ObserveCard("GPU-unknown");
  observer().ObserveCard(uuid());
  Lists({{.pid = 300, .used = 100_MiB}});
  observer().ObserveCard(uuid());
  EXPECT_EQ(View().foreign, Bytes()) << "the driver was asked just now";
  now_ += seconds(1);
  observer().ObserveCard(uuid());
  EXPECT_EQ(View().foreign, 100_MiB);
}

TEST_F(CardObserverTest, WhatAProgramHasBesideItsChargesIsItsLeases) {
  Device(kAnn);
  const SessionId ann = Program(1, kAnn);
  Charge(ann, 64_MiB);
  Lists({{.pid = 1001, .used = broker_->Held(ann) + 40_MiB}});
  observer().ObserveCards();
  EXPECT_EQ(observer().overheads().of_session.at(ann), 40_MiB);
  EXPECT_EQ(observer().overheads().of_lease.at({kAnn, card()}), 40_MiB);
  EXPECT_EQ(View().foreign, Bytes());
}

TEST_F(CardObserverTest, TwoReadingsBeyondItsAccountNameAProgram) {
  Device(kAnn);
  const SessionId ann = Program(1, kAnn);
  Charge(ann, 64_MiB);
  Lists({{.pid = 1001, .used = broker_->Held(ann) + 236_MiB}});
  observer().ObserveCards();
  EXPECT_TRUE(observer().UnchargedUse().empty());
  observer().ObserveCards();
  ASSERT_EQ(observer().UnchargedUse().size(), 1u);
  EXPECT_EQ(observer().UnchargedUse()[0].pid, 1001);
  EXPECT_EQ(observer().UnchargedUse()[0].beside, 236_MiB);
  Lists({{.pid = 1001, .used = 100_MiB}});
  observer().ObserveCards();
  EXPECT_TRUE(observer().UnchargedUse().empty());
}

TEST_F(CardObserverTest, ADeadProgramIsListedUntilTheDriverForgetsIt) {
  Device(kAnn);
  const SessionId ann = Program(1, kAnn);
  Charge(ann, 64_MiB);
  Lists({{.pid = 1001, .used = 500_MiB}});
  EXPECT_FALSE(observer().IsStillListed(ann)) << "it lives";
  broker_->StartDraining(ann);
  EXPECT_TRUE(observer().IsStillListed(ann));
  EXPECT_FALSE(observer().IsStillListed(SessionId{99}));
  Lists({});
  EXPECT_FALSE(observer().IsStillListed(ann));
}

TEST_F(CardObserverTest, TheUnusedAllowancesOfALeasesOtherProgramsAreSummedNowAndThen) {
  Device(kAnn);
  Device(kBob);
  const SessionId first = Program(1, kAnn);
  const SessionId second = Program(2, kAnn);
  const SessionId bob = Program(3, kBob);
  Charge(first, 64_MiB);
  Charge(second, 64_MiB);
  words_[1]->Free(0) = (6_MiB).count();
  words_[2]->Free(0) = (4_MiB).count();
  observer().SumUnused();
  EXPECT_EQ(observer().UnusedByOthers(first, card()), 4_MiB);
  EXPECT_EQ(observer().UnusedByOthers(second, card()), 6_MiB);
  EXPECT_EQ(observer().UnusedByOthers(bob, card()), Bytes()) << "another lease's";
  EXPECT_EQ(observer().UnusedByOthers(SessionId{99}, card()), Bytes());
  words_[2]->Free(0) = 0;
  EXPECT_EQ(observer().UnusedByOthers(first, card()), 4_MiB) << "of a moment ago";
  now_ += seconds(1);
  EXPECT_EQ(observer().UnusedByOthers(first, card()), Bytes());
  EXPECT_EQ(observer().UnreturnedBy(first), Bytes());
}

TEST_F(CardObserverTest, MemoryOfASuspendedLeaseIsFreeWhenTheCardReportsIt) {
  Device(kAnn);
  Device(kBob);
  const SessionId ann = Program(1, kAnn);
  Charge(ann, 400_MiB);
  Lists({{.pid = 1001, .used = broker_->Held(ann) + 20_MiB}});
  observer().ObserveCards();
  ASSERT_EQ(broker_->suspensions().Begin(kAnn), absl::OkStatus());
  EXPECT_EQ(broker_->suspensions().Park(kAnn), 400_MiB);
  EXPECT_EQ(View().free(), 92_MiB) << "the driver may have it still";
  Lists({});
  now_ += seconds(1);
  observer().ObserveCards();
  EXPECT_EQ(View().free(), 512_MiB);
}

}  // namespace
}  // namespace lgpu
