// Charges: memory that programs take from the driver themselves. One file past the usual length: all its
// cases share the broker of two cards and the words of programs.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "allocator/broker/broker.h"
#include "allocator/broker/card_observer.h"
#include "allocator/broker/session_restore.h"
#include "allocator/broker/session_trims.h"
#include "allocator/device/simulated/simulated_backend.h"
#include "lgpu/refusal.h"
#include "tests/allocator/broker/charges_fixture.h"
#include "tests/allocator/broker/recording_log.h"
#include "tests/support/broker_testing.h"
#include "tests/support/counting_backend.h"
#include "tests/support/test_seed.h"

namespace lgpu {
namespace {

using ::testing::HasSubstr;
using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;
constexpr LeaseKey kLease{1};
constexpr LeaseKey kOther{2};
constexpr Bytes k2MiB = 2_MiB;

TEST_F(BrokerChargesTest, ChargesCountUpToTheLimitAndNoFurther) {
  const LogicalId device = Device(8_MiB);
  const SessionId session = Session(1);
  EXPECT_TRUE(Charges(session, 5_MiB));
  EXPECT_EQ(Held(device), 6_MiB);
  EXPECT_EQ(broker_->Held(session), 6_MiB);
  EXPECT_TRUE(Charges(session, 1_MiB)) << "the rest of a granule that is held";
  const std::optional<Refusal> refusal = GetRefusal(Refused(Charge(session, 3_MiB)));
  ASSERT_TRUE(refusal.has_value());
  EXPECT_EQ(refusal->reason, RefusalReason::kLimit);
  EXPECT_EQ(refusal->what, "cuMemAlloc_v2");
  EXPECT_EQ(refusal->asked, 3_MiB);
  EXPECT_EQ(refusal->held, 6_MiB);
  EXPECT_EQ(refusal->limit, 8_MiB);
  EXPECT_TRUE(Charges(session, 2_MiB));
  Uncharge(session, 7_MiB);
  EXPECT_EQ(Held(device), 2_MiB);
  EXPECT_TRUE(Charges(session, 6_MiB));
}

TEST_F(BrokerChargesTest, AChargeThatFitsWithTheRestOfAGranuleIsGranted) {
  const LogicalId device = Device(46_MiB);
  const SessionId session = Session(1);
  EXPECT_TRUE(Charges(session, 1_MiB));
  EXPECT_TRUE(Charges(session, 44_MiB + 1_B));
  EXPECT_EQ(Held(device), 46_MiB);
  const std::optional<Refusal> refusal = GetRefusal(Refused(Charge(session, 1_MiB)));
  ASSERT_TRUE(refusal.has_value());
  EXPECT_EQ(refusal->reason, RefusalReason::kLimit);
  EXPECT_EQ(refusal->held, 46_MiB);
  EXPECT_TRUE(Charges(session, 1_MiB - 1_B));
  EXPECT_EQ(Held(device), 46_MiB);
}

TEST_F(BrokerChargesTest, AChargeThatWaitsIsServedFromGranulesThatItsSessionHolds) {
  Device(4_GiB);
  const LogicalId other = Device(4_GiB, kOther);
  wakers_[1] = std::make_shared<FlagWaker>();
  const SessionId session = Session(1);
  const SessionId client = Session(2, kOther);
  EXPECT_TRUE(Charges(session, 3_MiB + 512_KiB));
  Uncharge(session, words_[1]->free());
  words_[1]->Free(0) = 0;
  ASSERT_FALSE(Grow(client, other, CardFree()).chunks.empty());
  const Broker::Answer waits = Charge(session, 1_MiB, std::chrono::seconds(10));
  ASSERT_TRUE(waits.wait.has_value());
  wakers_[1]->Clear();
  Uncharge(session, 1_MiB);  // no granule comes back, and the rest of the last one is enough
  EXPECT_TRUE(wakers_[1]->woken());
  const Broker::Answer granted = AskAgain(*broker_, *waits.wait);
  EXPECT_TRUE(granted.lent.has_value()) << granted.status;
  EXPECT_EQ(broker_->Held(session), 4_MiB);
}

TEST_F(BrokerChargesTest, WrongRequestsHaveTheirErrors) {
  Device(8_MiB);
  const SessionId session = Session(1);
  EXPECT_EQ(Refused(Charge(session, Bytes())).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Refused(Charge(session, k2MiB, {}, 1)).code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(Refused(Charge(session, Bytes(~std::uint64_t{0}))).code(), absl::StatusCode::kResourceExhausted);
  broker_->AddSession(SessionId{9}, {.pid = 9});
  broker_->ShareAllowances(SessionId{9}, nullptr);
  EXPECT_EQ(Refused(Charge(SessionId{9}, k2MiB)).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(broker_->Uncharge(session, Uuid(1), k2MiB).code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(BrokerChargesTest, AChargeTakesTheRoomOfAllDevicesOfItsCard) {
  const LogicalId first = Device(32_MiB);
  const LogicalId second = Device(32_MiB);
  const LogicalId elsewhere = Device(32_MiB, kLease, 1);
  const SessionId session = Session(1);
  EXPECT_TRUE(Charges(session, 48_MiB));
  EXPECT_EQ(Held(first) + Held(second), 48_MiB + words_[1]->free());
  EXPECT_EQ(Held(elsewhere), Bytes());
  EXPECT_THAT(std::string(Refused(Charge(session, 18_MiB)).message()), HasSubstr("64.00MiB"));
  EXPECT_TRUE(Charges(session, 16_MiB));
  EXPECT_EQ(Held(second), 32_MiB);
  EXPECT_TRUE(Charges(session, 32_MiB, 1)) << "the other card has a word of its own";
  EXPECT_EQ(words_[1]->keep(1), 4_MiB);
  Uncharge(session, 64_MiB);
  EXPECT_EQ(Held(first) + Held(second), Bytes());
}

TEST_F(BrokerChargesTest, TheAllowanceIsAShareOfTheLimitForEachProcess) {
  const LogicalId device = Device(1_GiB);
  const SessionId first = Session(1);
  EXPECT_EQ(words_[1]->free(), Bytes()) << "nothing is lent at attach";
  EXPECT_TRUE(Charges(first, 10_MiB));
  EXPECT_EQ(words_[1]->free(), 64_MiB);
  EXPECT_EQ(words_[1]->keep(), 64_MiB);
  EXPECT_EQ(Held(device), 74_MiB);
  // The program charges and frees without a word.
  words_[1]->Free(0).fetch_sub((40_MiB).count());
  EXPECT_EQ(broker_->ChargesOf(first).front().used, 50_MiB);
  std::vector<SessionId> others;
  for (std::uint64_t id = 2; id <= 4; ++id) {
    others.push_back(Session(id));
    EXPECT_TRUE(Charges(others.back(), k2MiB));
  }
  EXPECT_EQ(words_[4]->free(), 32_MiB);
}

TEST_F(BrokerChargesTest, UnusedAllowancesAreTakenBackUnderALimit) {
  const LogicalId device = Device(128_MiB);
  const SessionId first = Session(1);
  const SessionId second = Session(2);
  EXPECT_TRUE(Charges(first, 100_MiB));
  EXPECT_EQ(words_[1]->free(), 16_MiB);
  EXPECT_TRUE(Charges(second, 28_MiB));
  EXPECT_EQ(words_[1]->free(), Bytes());
  EXPECT_EQ(words_[1]->keep(), Bytes()) << "what the program frees is given back at once";
  EXPECT_EQ(Held(device), 128_MiB);
  EXPECT_EQ(Refused(Charge(second, k2MiB)).code(), absl::StatusCode::kResourceExhausted);
}

TEST_F(BrokerChargesTest, UnusedAllowancesAreTakenBackForChunksOfTheCard) {
  Device(2_GiB);
  const LogicalId other = Device(4_GiB, kOther);
  const SessionId program = Session(1);
  EXPECT_TRUE(Charges(program, 1_GiB));
  EXPECT_EQ(words_[1]->free(), 64_MiB);
  const SessionId client = Session(2, kOther);
  EXPECT_EQ(CardFree(), 3_GiB - 64_MiB);
  const Broker::Answer answer = Grow(client, other, 3_GiB);
  EXPECT_TRUE(answer.status.ok()) << answer.status;
  EXPECT_EQ(answer.chunks.empty(), false);
  EXPECT_EQ(words_[1]->free(), Bytes());
  Check();
}

TEST_F(BrokerChargesTest, AWordThatLiesIsWorthNoMoreThanWasLent) {
  const LogicalId device = Device(256_MiB);
  const SessionId liar = Session(1);
  const SessionId honest = Session(2);
  EXPECT_TRUE(Charges(honest, 100_MiB));
  EXPECT_TRUE(Charges(liar, 100_MiB));
  for (const std::uint64_t lie : {~std::uint64_t{0}, std::uint64_t{1} << 63, std::uint64_t{3}}) {
    words_[1]->Free(0) = lie;
    words_[1]->Keep(0) = lie;
    Charge(honest, 200_MiB);
    EXPECT_GE(Held(device), 100_MiB) << "what another session holds is not touched";
  }
  EXPECT_TRUE(Charges(liar, 3_MiB));
  Uncharge(liar, Bytes(~std::uint64_t{0}));
  EXPECT_EQ(broker_->Held(liar), Bytes());
}

TEST_F(BrokerChargesTest, AnUnchargeServesARequestThatWaitsForTheCard) {
  Device(4_GiB);
  const LogicalId other = Device(4_GiB, kOther);
  const SessionId program = Session(1);
  wakers_[2] = std::make_shared<FlagWaker>();
  const SessionId client = Session(2, kOther);
  EXPECT_TRUE(Charges(program, 4_GiB));
  const Broker::Answer waits = Grow(client, other, 1_GiB, std::chrono::seconds(10));
  ASSERT_TRUE(waits.wait.has_value());
  Uncharge(program, 1_GiB);
  EXPECT_TRUE(wakers_[2]->woken());
  EXPECT_FALSE(AskAgain(*broker_, *waits.wait).chunks.empty());
}

TEST_F(BrokerChargesTest, AChargeWaitsForTheCardUntilItsDeadline) {
  Device(4_GiB);
  const LogicalId other = Device(4_GiB, kOther);
  const SessionId program = Session(1);
  const SessionId client = Session(2, kOther);
  const Broker::Answer granted = Grow(client, other, 4_GiB);
  ASSERT_FALSE(granted.chunks.empty());
  for (const bool comes_back : {false, true}) {
    Broker::Answer answer = Charge(program, 1_GiB, std::chrono::seconds(2));
    ASSERT_TRUE(answer.wait.has_value());
    EXPECT_EQ(broker_->Cards().front().queue.front().what, "cuMemAlloc_v2");
    now_ += milliseconds(1900);
    EXPECT_TRUE(AskAgain(*broker_, *answer.wait).wait.has_value());
    if (comes_back) {
      std::vector<ChunkId> chunks;
      for (const Chunk& chunk : granted.chunks) chunks.push_back(chunk.id);
      EXPECT_TRUE(broker_->Return(client, other, chunks).ok());
      EXPECT_TRUE(AskAgain(*broker_, *answer.wait).lent.has_value());
      EXPECT_EQ(broker_->Held(program), 1_GiB + words_[1]->free());
    } else {
      now_ += milliseconds(200);
      const absl::Status refused = Refused(AskAgain(*broker_, *answer.wait));
      EXPECT_EQ(GetRefusal(refused)->reason, RefusalReason::kCard);
      EXPECT_EQ(GetRefusal(refused)->holders.size(), 1u);
    }
    Check();
  }
}

TEST_F(BrokerChargesTest, RequestsThatWaitAreRefusedWhenTheirLeaseIsStopped) {
  Device(4_GiB);
  const LogicalId small = Device(1_GiB, kOther);
  const SessionId other{3};
  broker_->AddSession(other, {.pid = 3});
  broker_->AttachSession(other, kOther);
  const Broker::Answer held = Grow(other, small, 1_GiB);
  ASSERT_FALSE(held.chunks.empty());
  wakers_[1] = std::make_shared<FlagWaker>();
  const SessionId program = Session(1);
  ASSERT_TRUE(Charges(program, 2_GiB));
  const Broker::Answer for_card = Charge(program, 2_GiB, std::chrono::seconds(10));
  ASSERT_TRUE(for_card.wait.has_value());
  wakers_[1]->Clear();
  broker_->SetStopped(kLease, true);
  EXPECT_TRUE(wakers_[1]->woken());
  EXPECT_TRUE(absl::IsFailedPrecondition(Refused(AskAgain(*broker_, *for_card.wait))));
  EXPECT_TRUE(absl::IsFailedPrecondition(Refused(Charge(program, k2MiB))));
  ASSERT_TRUE(broker_->Return(other, small, std::vector{held.chunks.front().id}).ok());
  EXPECT_EQ(broker_->Held(program), 2_GiB) << "a stopped lease has no allowance";

  wakers_[2] = std::make_shared<FlagWaker>();
  const SessionId waiter = Session(2, kOther);
  const Broker::Answer refill = Grow(other, small, held.chunks.front().bytes);
  ASSERT_FALSE(refill.chunks.empty());
  broker_->StartDraining(other);
  const Broker::Answer for_limit = Grow(waiter, small, k2MiB, std::chrono::seconds(10));
  ASSERT_TRUE(for_limit.wait.has_value());
  broker_->SetStopped(kOther, true);
  EXPECT_TRUE(wakers_[2]->woken());
  EXPECT_TRUE(absl::IsFailedPrecondition(Refused(AskAgain(*broker_, *for_limit.wait))));
  broker_->SetStopped(kLease, false);
  EXPECT_TRUE(Charges(program, k2MiB));
}

TEST_F(BrokerChargesTest, ShortOfTheLimitAChargeWaitsAtMostTheGrace) {
  const LogicalId device = Device(64_MiB);
  const SessionId program = Session(1);
  const SessionId client{2};
  broker_->AddSession(client, {.pid = 2, .trims = true});
  broker_->AttachSession(client, kLease);
  ASSERT_FALSE(Grow(client, device, 64_MiB).chunks.empty());
  const Broker::Answer answer = Charge(program, k2MiB, std::chrono::hours(1));
  ASSERT_TRUE(answer.wait.has_value()) << "the other session may have idle memory";
  EXPECT_EQ(broker_->trims().TakeOrders(client).size(), 1u);
  now_ += milliseconds(100);
  EXPECT_EQ(GetRefusal(Refused(AskAgain(*broker_, *answer.wait)))->reason, RefusalReason::kLimit);
  EXPECT_TRUE(broker_->trims().TakeOrders(program).empty()) << "nothing is asked of a program that charges";
}

TEST_F(BrokerChargesTest, ChargesOfALostSessionLeaveWhenNoProcessHasTheMemory) {
  const LogicalId device = Device(64_MiB);
  const SessionId lost = Session(1);
  const SessionId next = Session(2);
  EXPECT_TRUE(Charges(lost, 60_MiB));
  broker_->StartDraining(lost);
  Check();
  EXPECT_EQ(broker_->Find(device)->leaving, Held(device));
  EXPECT_TRUE(broker_->FinishDraining({lost}).empty()) << "its process lives";
  broker_->LowerCharges(lost, {});
  EXPECT_EQ(broker_->FinishDraining({lost}).size(), 1u);
  broker_->RemoveSession(lost);
  EXPECT_TRUE(Charges(next, 60_MiB));
}

TEST_F(BrokerChargesTest, AChargeWaitsUnderTheLimitForWhatIsLeaving) {
  Device(64_MiB);
  const SessionId lost = Session(1);
  const SessionId next = Session(2);
  EXPECT_TRUE(Charges(lost, 60_MiB));
  broker_->StartDraining(lost);
  const Broker::Answer answer = Charge(next, 40_MiB);
  ASSERT_TRUE(answer.wait.has_value());
  broker_->LowerCharges(lost, {});
  EXPECT_TRUE(AskAgain(*broker_, *answer.wait).lent.has_value());
  Check();
}

TEST_F(BrokerChargesTest, ClosingIsAnUnchargeOfEverything) {
  const LogicalId device = Device(64_MiB);
  const SessionId session = Session(1);
  EXPECT_TRUE(Charges(session, 60_MiB));
  broker_->ReturnAll(session);
  EXPECT_EQ(Held(device), Bytes());
  broker_->RemoveSession(session);
}

TEST_F(BrokerChargesTest, TheLogHasAtLeastWhatIsLent) {
  const LogicalId device = Device(1_GiB);
  const SessionId session = Session(1);
  EXPECT_TRUE(Charges(session, 100_MiB));
  EXPECT_EQ(log_.charged(session, device), 164_MiB);
  Uncharge(session, 60_MiB);
  EXPECT_TRUE(Charges(session, 50_MiB));
  EXPECT_EQ(log_.charged(session, device), 164_MiB) << "nothing is written below the highest value";
  Uncharge(session, 20_MiB);
  broker_->observer().ObserveCards();
  EXPECT_EQ(log_.charged(session, device), Held(device)) << "but now and then";
  log_.SetFailing(true);
  words_[1]->Free(0) = 0;
  const Bytes before = Held(device);
  EXPECT_EQ(Refused(Charge(session, 200_MiB)).code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(Held(device), before);
  EXPECT_EQ(words_[1]->free(), Bytes());
  log_.SetFailing(false);
}

TEST_F(BrokerChargesTest, ARestoredSessionIsChargedInFullUntilItAttests) {
  const auto restored = [&](std::uint64_t id) {
    const SessionId session{id};
    EXPECT_TRUE(broker_->restore()
                    .AddSession(session, 1, nullptr, kLease, {},
                                std::vector<SessionRestore::RestoredCharge>{{LogicalId{7}, 40_MiB},
                                                                            {LogicalId{8}, 20_MiB}})
                    .ok());
    return session;
  };
  for (const std::uint64_t id : {7, 8}) {
    ASSERT_TRUE(broker_->restore()
                    .AddDevice(LogicalId{id}, {.card = Card(1), .limit = 40_MiB, .lease = kLease})
                    .ok());
  }
  const SessionId session = restored(1);
  Check();
  EXPECT_EQ(broker_->Held(session), 60_MiB);
  broker_->restore().StartAttesting(session, {.pid = 1, .trims = true});
  EXPECT_EQ(broker_->restore().AttestCharge(session, Uuid(1), 62_MiB).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(broker_->restore().AttestCharge(session, Uuid(0), k2MiB).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(broker_->restore().AttestCharge(session, Uuid(1), 21_MiB).ok());
  broker_->restore().FinishAttesting(session);
  Check();
  EXPECT_EQ(broker_->Held(session), 22_MiB);
  const SessionId next = Session(2);
  EXPECT_EQ(Refused(Charge(next, 80_MiB, {}, 1)).code(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(broker_->trims().TakeOrders(session).empty()) << "nothing is asked of a program that charges";
  broker_->restore().GoAbsent(session);
  broker_->restore().StartAttesting(session, {.pid = 1});
  broker_->restore().FinishAttesting(session);
  EXPECT_EQ(broker_->Held(session), Bytes()) << "what it did not attest it has not";
  const std::vector<SessionRestore::RestoredCharge> wrong = {{LogicalId{9}, k2MiB}};
  EXPECT_EQ(broker_->restore().AddSession(SessionId{5}, 1, nullptr, kLease, {}, wrong).code(),
            absl::StatusCode::kInvalidArgument);
}

TEST_F(BrokerChargesTest, ALimitLoweredBelowTheChargesGivesNoMore) {
  const LogicalId device = Device(256_MiB);
  const SessionId session = Session(1);
  EXPECT_TRUE(Charges(session, 128_MiB));
  EXPECT_EQ(words_[1]->free(), 32_MiB);
  EXPECT_TRUE(broker_->ResizeDevice(device, 64_MiB, Bytes()).ok());
  Check();
  EXPECT_EQ(words_[1]->free(), Bytes());
  EXPECT_EQ(Held(device), 128_MiB);
  EXPECT_EQ(Refused(Charge(session, k2MiB)).code(), absl::StatusCode::kResourceExhausted);
  Uncharge(session, 66_MiB);
  EXPECT_TRUE(Charges(session, k2MiB));
}

TEST_F(BrokerChargesTest, SpareChunksMakeRoomForChargesAndAreMadeAgainLater) {
  const LogicalId device = Device(256_MiB, kLease, 0, /*preallocate=*/true);
  const SessionId session = Session(1);
  EXPECT_EQ(Held(device), 256_MiB);
  EXPECT_TRUE(Charges(session, 10_MiB));
  EXPECT_EQ(broker_->Find(device)->charged, 10_MiB + words_[1]->free());
  EXPECT_EQ(Held(device), 256_MiB);
  EXPECT_TRUE(Charges(session, 246_MiB)) << "nothing but the ballast stands in the way";
  EXPECT_EQ(Held(device), 256_MiB);
  EXPECT_EQ(Refused(Charge(session, k2MiB)).code(), absl::StatusCode::kResourceExhausted);
  Uncharge(session, 256_MiB);
  EXPECT_EQ(Held(device), Bytes());
  EXPECT_EQ(CardFree(), 4_GiB - 256_MiB) << "it stays guaranteed";
  EXPECT_TRUE(broker_->MakeMissing(device).ok());
  EXPECT_EQ(Held(device), Bytes()) << "not right after a charge";
  EXPECT_EQ(broker_->Find(device)->missing, Bytes());
  now_ += std::chrono::seconds(2);
  EXPECT_EQ(broker_->Find(device)->missing, 256_MiB);
  EXPECT_TRUE(broker_->MakeMissing(device).ok());
  EXPECT_EQ(Held(device), 256_MiB);
  Check();
}

// Random programs with words that tell the truth: the ledger is never below what they use, and never above a
// limit.
TEST_F(BrokerChargesTest, RandomProgramsNeverUseMoreThanIsCounted) {
  const std::uint32_t seed = TestSeed();
  std::mt19937_64 random(seed);
  const std::vector<LogicalId> devices = {Device(96_MiB), Device(64_MiB), Device(3_GiB, kOther),
                                          Device(3_GiB, LeaseKey{3}), Device(64_MiB, LeaseKey{3}, 0, true)};
  std::map<std::uint64_t, Bytes> used;  // by program
  std::map<std::uint64_t, std::vector<Bytes>> live;
  for (std::uint64_t id = 1; id <= 5; ++id) Session(id, LeaseKey{1 + id % 3});
  const auto is_within = [&] {
    for (const auto& [id, bytes] : used) {
      const std::vector<Broker::Charged> charges = broker_->ChargesOf(SessionId{id});
      const Bytes lent = charges.empty() ? Bytes() : charges.front().lent;
      ASSERT_GE(lent, bytes + words_[id]->free()) << "program " << id;
    }
    ASSERT_LE(Held(devices[0]) + Held(devices[1]), 160_MiB);
  };
  for (int step = 0; step < 4000 && !HasFailure(); ++step) {
    const std::uint64_t id = 1 + random() % 5;
    std::atomic<std::uint64_t>& free = words_[id]->Free(0);
    const Bytes bytes(std::uint64_t{1} + random() % (random() % 8 == 0 ? 900_MiB : 6_MiB).count());
    if (random() % 2 == 0) {
      bool charged = bytes.count() <= free.load();
      if (charged) {
        free -= bytes.count();
      } else {
        Broker::Answer answer = Charge(SessionId{id}, bytes, milliseconds(random() % 3));
        while (answer.wait) {
          now_ += milliseconds(50);
          answer = AskAgain(*broker_, *answer.wait);
        }
        charged = answer.status.ok();
      }
      if (charged) {
        live[id].push_back(bytes);
        used[id] += bytes;
      }
    } else if (!live[id].empty()) {
      std::swap(live[id].back(), live[id][random() % live[id].size()]);
      used[id] -= live[id].back();
      free += live[id].back().count();
      live[id].pop_back();
      const std::uint64_t excess = SaturatingSub(Bytes(free.load()), words_[id]->keep()).count();
      if (excess > 0) {
        free -= excess;
        Uncharge(SessionId{id}, Bytes(excess));
      }
    }
    now_ += milliseconds(random() % 3 == 0 ? 700 : 0);
    if (random() % 16 == 0) broker_->MakeMissing(devices[4]).IgnoreError();
    Check();
    is_within();
  }
}

TEST(BrokerDriverRefusalTest, TheCardIsLookedAtBeforeTheMemoryIsChargedAgain) {
  testing::CountingBackend backend({1_GiB}, k2MiB);
  backend.BecomeReal();
  Clock::time_point now = Clock::time_point() + std::chrono::hours(1);
  NoGrantLog log;
  Broker::Options options = AllCardsOf(backend);
  options.clock = [&now] { return now; };
  const std::unique_ptr<Broker> broker = *Broker::Create(backend, log, options);
  const LogicalId device =
      *broker->AddDevice({.card = broker->Cards().front().id, .limit = 1_GiB, .lease = kLease});
  const SessionId session{1};
  broker->AddSession(session, {.pid = 1});
  broker->AttachSession(session, kLease);
  const auto charge = [&](std::uint32_t refusals) {
    return broker->ChargeCard({.session = session,
                               .card_uuid = backend.devices()[0].uuid,
                               .bytes = 600_MiB,
                               .what = "cuMemAlloc_v2",
                               .asked_at = now,
                               .deadline = now,
                               .driver_refusals = refusals});
  };
  ASSERT_TRUE(backend.Create(0, 512_MiB).ok());  // by nobody that lgpu knows
  EXPECT_TRUE(charge(0).status.ok()) << "the broker does not know of it yet";
  ASSERT_TRUE(broker->Uncharge(session, backend.devices()[0].uuid, 600_MiB).ok());
  std::optional<Refusal> refusal = GetRefusal(charge(1).status);
  ASSERT_TRUE(refusal.has_value());
  EXPECT_EQ(refusal->reason, RefusalReason::kCard);
  EXPECT_EQ(broker->Cards().front().view.foreign, 512_MiB);
  refusal = GetRefusal(charge(2).status);
  ASSERT_TRUE(refusal.has_value());
  EXPECT_EQ(refusal->reason, RefusalReason::kBackend);
  EXPECT_EQ(refusal->what, "cuMemAlloc_v2");
  EXPECT_EQ(refusal->asked, 600_MiB);
  EXPECT_EQ(broker->Find(device)->held, Bytes());
  EXPECT_TRUE(broker->CheckInvariants().ok());
}

TEST_F(BrokerChargesTest, AChargeOfTheOnlyHolderWaitsForMemoryOutsideLgpu) {
  Device(4_GiB);
  const SessionId session = Session(1);
  ASSERT_TRUE(Charges(session, 1_GiB));
  broker_->observer().SetForeign(Card(0), 2_GiB);
  const Broker::Answer waits = Charge(session, 2_GiB, milliseconds(5000));
  ASSERT_TRUE(waits.wait.has_value()) << waits.status;
  broker_->observer().SetForeign(Card(0), Bytes());
  const Broker::Answer granted = AskAgain(*broker_, *waits.wait);
  EXPECT_TRUE(granted.status.ok() && !granted.wait) << granted.status;
  // What even an empty card could not serve is refused at once.
  EXPECT_FALSE(Charge(session, 2_GiB, milliseconds(5000)).wait.has_value());
}

TEST(BrokerBallastTest, PreallocatedChunksOfRealCardsAreSmall) {
  testing::CountingBackend backend({4_GiB}, k2MiB);
  backend.BecomeReal();
  const std::unique_ptr<Broker> broker = MakeBroker(backend);
  const LogicalId device = *broker->AddDevice(
      {.card = broker->Cards().front().id, .limit = 2_GiB, .preallocate = true, .lease = kLease});
  EXPECT_EQ(broker->Find(device)->held, 2_GiB);
  EXPECT_GE(backend.Handles(), 2_GiB / 32_MiB) << "none is larger than 32 MiB";
}

}  // namespace
}  // namespace lgpu
