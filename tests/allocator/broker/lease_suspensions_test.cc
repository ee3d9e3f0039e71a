#include "allocator/broker/lease_suspensions.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "allocator/broker/reservations.h"
#include "allocator/broker/session_releases.h"
#include "allocator/broker/session_restore.h"
#include "lgpu/refusal.h"
#include "tests/allocator/broker/charges_fixture.h"

namespace lgpu {
namespace {

using std::chrono::hours;
using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::HasSubstr;

constexpr LeaseKey kAnn{1};
constexpr LeaseKey kBob{2};

/// A card of 1 GiB. "ann" may be suspended, "bob" wants memory.
class LeaseSuspensionsTest : public BrokerChargesTest {
 protected:
  explicit LeaseSuspensionsTest(Bytes overhead = {}) : BrokerChargesTest(1_GiB, overhead) {}

  LeaseSuspensions& suspensions() { return broker_->suspensions(); }
  void Charged(SessionId session, Bytes bytes) {
    const Broker::Answer answer = Charge(session, bytes);
    ASSERT_TRUE(answer.status.ok() && !answer.wait) << answer.status;
  }
  void Suspend(LeaseKey lease) {
    ASSERT_EQ(suspensions().Begin(lease), absl::OkStatus());
    suspensions().Park(lease);
    Check();
  }
  absl::Status Resume(LeaseKey lease, const std::vector<WaiterId>& rooms = {}) {
    const absl::Status status = suspensions().TakeBack(lease, rooms);
    if (status.ok()) suspensions().End(lease);
    Check();
    return status;
  }
  bool IsServed(const Broker::Answer& waiting) {
    const std::optional<Broker::Answer> answer = broker_->TakeAnswer(*waiting.wait);
    return answer && answer->status.ok();
  }
};

TEST_F(LeaseSuspensionsTest, TheMemoryOfASuspendedLeaseServesTheOneThatWaits) {
  const LogicalId ann = Device(1_GiB, kAnn);
  Device(1_GiB, kBob);
  Charged(Program(1, kAnn), 800_MiB);
  const Broker::Answer bob = Charge(Program(2, kBob), 500_MiB, seconds(5));
  ASSERT_TRUE(bob.wait);
  ASSERT_EQ(suspensions().Begin(kAnn), absl::OkStatus());
  EXPECT_FALSE(suspensions().Find(kAnn)->is_parked);
  EXPECT_EQ(Held(ann), 800_MiB) << "the allowance is taken at once, the rest when the program has left";
  EXPECT_EQ(suspensions().Park(kAnn), 800_MiB);
  Check();
  EXPECT_EQ(Held(ann), Bytes());
  EXPECT_TRUE(suspensions().Find(kAnn)->is_parked);
  EXPECT_TRUE(IsServed(bob));
}

TEST_F(LeaseSuspensionsTest, ItsMemoryIsChargedAgainWholeOrNotAtAll) {
  const LogicalId ann = Device(1_GiB, kAnn);
  Device(1_GiB, kBob);
  Charged(Program(1, kAnn), 800_MiB);
  const SessionId bob = Program(2, kBob);
  Suspend(kAnn);
  Charged(bob, 500_MiB);
  const absl::Status status = Resume(kAnn);
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("needs 800.00MiB"));
  EXPECT_EQ(Held(ann), Bytes());
  Uncharge(bob, 500_MiB);
  EXPECT_EQ(Resume(kAnn), absl::OkStatus());
  EXPECT_EQ(Held(ann), 800_MiB);
  EXPECT_EQ(suspensions().Find(kAnn), std::nullopt);
}

TEST_F(LeaseSuspensionsTest, ALeaseWhoseProgramsHaveEndedIsTakenBackWithItsGuaranteeAlone) {
  Device(1_GiB, kAnn);
  const SessionId program = Program(1, kAnn);
  Charged(program, 800_MiB);
  Suspend(kAnn);
  EXPECT_TRUE(suspensions().Find(kAnn)->has_programs);
  broker_->StartDraining(program);
  EXPECT_FALSE(suspensions().Find(kAnn)->has_programs);
  EXPECT_EQ(Resume(kAnn), absl::OkStatus());
  EXPECT_EQ(CardFree(), 1_GiB);
}

TEST_F(LeaseSuspensionsTest, APlaceInTheQueueSetsItsMemoryAside) {
  Device(1_GiB, kAnn);
  Device(1_GiB, kBob);
  Charged(Program(1, kAnn), 800_MiB);
  const SessionId bob = Program(2, kBob);
  Suspend(kAnn);
  Charged(bob, 500_MiB);
  ASSERT_EQ(suspensions().NeedOf(kAnn).at(Card(0)), 800_MiB);
  const WaiterId room = broker_->reservations().Queue({.card = Card(0), .bytes = 800_MiB, .owner = "ann"});
  EXPECT_FALSE(broker_->TakeAnswer(room));
  Uncharge(bob, 500_MiB);
  EXPECT_TRUE(broker_->TakeAnswer(room));
  EXPECT_FALSE(Charges(bob, 500_MiB)) << "it is set aside for the lease that comes back";
  EXPECT_EQ(Resume(kAnn, {room}), absl::OkStatus());
}

TEST_F(LeaseSuspensionsTest, ARoomThatIsAskedForAtOnceStandsInNoQueue) {
  Device(1_GiB, kAnn);
  Device(1_GiB, kBob);
  const SessionId bob = Program(2, kBob);
  Charged(bob, 500_MiB);
  const WaiterId room =
      broker_->reservations().Queue({.card = Card(0), .bytes = 800_MiB, .owner = "ann", .at_once = true});
  EXPECT_FALSE(broker_->reservations().View(room));
  const std::optional<Broker::Answer> answer = broker_->TakeAnswer(room);
  ASSERT_TRUE(answer);
  EXPECT_TRUE(absl::IsResourceExhausted(answer->status)) << answer->status;
  Uncharge(bob, 500_MiB);
  EXPECT_GT(CardFree(), 800_MiB) << "nothing is set aside for it later";
}

TEST_F(LeaseSuspensionsTest, RequestsOfTheLeaseWaitAndGoOnWithTheTimeThatTheyHad) {
  Device(1_GiB, kAnn);
  Device(1_GiB, kBob);
  const SessionId ann = Program(1, kAnn);
  const SessionId bob = Program(2, kBob);
  Charged(ann, 400_MiB);
  Charged(bob, 400_MiB);
  const Broker::Answer queued = Charge(ann, 300_MiB, seconds(5));
  ASSERT_TRUE(queued.wait);
  Suspend(kAnn);
  const Broker::Answer late = Charge(ann, 2_MiB, seconds(1));
  ASSERT_TRUE(late.wait) << "a thread of it was about to ask";
  ASSERT_TRUE(broker_->releases().LongerWait(*late.wait));
  now_ += hours(3);
  broker_->Tick();
  EXPECT_GT(*broker_->releases().LongerWait(*late.wait), now_) << "it is told again in time";
  EXPECT_EQ(Resume(kAnn), absl::OkStatus());
  EXPECT_TRUE(IsServed(late));
  EXPECT_FALSE(broker_->TakeAnswer(*queued.wait)) << "bob holds the memory";
  now_ += milliseconds(5100);
  broker_->Tick();
  const std::optional<Broker::Answer> refused = broker_->TakeAnswer(*queued.wait);
  ASSERT_TRUE(refused);
  const std::optional<Refusal> refusal = GetRefusal(refused->status);
  ASSERT_TRUE(refusal) << refused->status;
  EXPECT_LT(refusal->waited, seconds(6)) << "the time of the suspension does not count";
}

TEST_F(LeaseSuspensionsTest, AnAbortedSuspensionChangesNothing) {
  const LogicalId ann = Device(1_GiB, kAnn);
  const SessionId program = Program(1, kAnn);
  Charged(program, 400_MiB);
  ASSERT_EQ(suspensions().Begin(kAnn), absl::OkStatus());
  const Broker::Answer waiting = Charge(program, 2_MiB, seconds(1));
  ASSERT_TRUE(waiting.wait);
  suspensions().End(kAnn);
  Check();
  EXPECT_TRUE(IsServed(waiting));
  EXPECT_GE(Held(ann), 402_MiB);
}

TEST_F(LeaseSuspensionsTest, TheGuaranteeIsFreeMeanwhileAndComesBack) {
  const auto device = broker_->AddDevice({.card = Card(0),
                                          .limit = 600_MiB,
                                          .guarantee = 512_MiB,
                                          .lease = kAnn,
                                          .lease_name = "ann",
                                          .owner = "ann"});
  ASSERT_TRUE(device.ok());
  Device(1_GiB, kBob);
  Charged(Program(1, kAnn), 100_MiB);
  const SessionId bob = Program(2, kBob);
  Suspend(kAnn);
  EXPECT_TRUE(Charges(bob, 900_MiB));
  EXPECT_EQ(suspensions().NeedOf(kAnn).at(Card(0)), 512_MiB);
  EXPECT_FALSE(Resume(kAnn).ok());
  Uncharge(bob, 900_MiB);
  EXPECT_EQ(Resume(kAnn), absl::OkStatus());
  EXPECT_EQ(broker_->Find(*device)->guarantee, 512_MiB);
  EXPECT_FALSE(Charges(bob, 900_MiB));
}

TEST_F(LeaseSuspensionsTest, AProgramThatEndsWhileItIsSuspendedHasNothingToComeBackTo) {
  Device(1_GiB, kAnn);
  const SessionId first = Program(1, kAnn);
  const SessionId second = Program(2, kAnn);
  Charged(first, 300_MiB);
  Charged(second, 200_MiB);
  Suspend(kAnn);
  EXPECT_EQ(suspensions().Find(kAnn)->parked, 500_MiB);
  broker_->StartDraining(first);
  EXPECT_EQ(suspensions().Find(kAnn)->parked, 200_MiB);
  EXPECT_EQ(broker_->FinishDraining({first}).size(), 1u);
  EXPECT_EQ(Resume(kAnn), absl::OkStatus());
  EXPECT_EQ(CardFree(), 1_GiB - 200_MiB);
}

TEST_F(LeaseSuspensionsTest, WhatAProgramGaveBackJustBeforeIsNotChargedAgain) {
  const LogicalId ann = Device(1_GiB, kAnn);
  const SessionId program = Program(1, kAnn);
  Charged(program, 300_MiB);
  Suspend(kAnn);
  Uncharge(program, 100_MiB);
  EXPECT_EQ(Resume(kAnn), absl::OkStatus());
  EXPECT_EQ(Held(ann), 200_MiB);
}

TEST_F(LeaseSuspensionsTest, AProgramThatGaveAllOfItBackJustBeforeIsMovedBackToo) {
  Device(1_GiB, kAnn);
  const SessionId before = Program(1, kAnn);
  const SessionId after = Program(2, kAnn);
  Charged(before, 300_MiB);
  Charged(after, 200_MiB);
  ASSERT_EQ(suspensions().Begin(kAnn), absl::OkStatus());
  Uncharge(before, 300_MiB);
  suspensions().Park(kAnn);
  Uncharge(after, 200_MiB);
  std::set<SessionId> moved;
  for (const LeaseSuspensions::Charge& charge : suspensions().Charges(kAnn)) {
    EXPECT_EQ(charge.bytes, Bytes());
    moved.insert(charge.session);
  }
  EXPECT_EQ(moved, (std::set<SessionId>{before, after})) << "the driver has both of them in host memory";
  EXPECT_EQ(Resume(kAnn), absl::OkStatus());
  EXPECT_EQ(CardFree(), 1_GiB);
}

TEST_F(LeaseSuspensionsTest, RequestsOfALeaseThatCannotBeResumedAreRefused) {
  const LogicalId ann = Device(1_GiB, kAnn);
  Device(1_GiB, kBob);
  const SessionId program = Program(1, kAnn);
  Charged(program, 800_MiB);
  Suspend(kAnn);
  ASSERT_EQ(suspensions().TakeBack(kAnn, {}), absl::OkStatus());
  const Broker::Answer waiting = Charge(program, 2_MiB, seconds(1));
  ASSERT_TRUE(waiting.wait);
  suspensions().Fail(kAnn);
  Check();
  EXPECT_EQ(Held(ann), Bytes());
  const std::optional<Broker::Answer> refused = broker_->TakeAnswer(*waiting.wait);
  ASSERT_TRUE(refused);
  EXPECT_THAT(std::string(refused->status.message()), HasSubstr("lgpu rm --kill"));
  EXPECT_THAT(std::string(Refused(Charge(program, 2_MiB)).message()), HasSubstr("could not be resumed"));
  Charged(Program(2, kBob), 900_MiB);
}

TEST_F(LeaseSuspensionsTest, ProgramsThatAreBackStayChargedWhereAnotherOneCannotBeMovedBack) {
  const LogicalId ann = Device(1_GiB, kAnn);
  const SessionId back = Program(1, kAnn);
  const SessionId left = Program(2, kAnn);
  Charged(back, 300_MiB);
  Charged(left, 400_MiB);
  Suspend(kAnn);
  ASSERT_EQ(suspensions().TakeBack(kAnn, {}), absl::OkStatus());
  suspensions().MoveOnly(kAnn, {1002});
  suspensions().Fail(kAnn);
  Check();
  EXPECT_EQ(Held(ann), 300_MiB);
  EXPECT_EQ(suspensions().Find(kAnn)->parked, 400_MiB);
  Uncharge(back, 100_MiB);
  EXPECT_EQ(Held(ann), 200_MiB);
  broker_->StartDraining(left);
  EXPECT_EQ(Resume(kAnn), absl::OkStatus());
  Charged(back, 50_MiB);
}

TEST_F(LeaseSuspensionsTest, ALeaseOfAnEarlierBrokerFailsWhoseProgramsAreNotBackYet) {
  const LogicalId ann = Device(1_GiB, kAnn);
  const SessionId program = Program(1, kAnn);
  Charged(program, 300_MiB);
  broker_->restore().GoAbsent(program);
  EXPECT_THAT(std::string(suspensions().Begin(kAnn).message()), HasSubstr("has not come back"));
  suspensions().Fail(kAnn);
  EXPECT_GE(Held(ann), 300_MiB) << "it was not begun";
  ASSERT_EQ(suspensions().BeginAnyway(kAnn), absl::OkStatus());
  EXPECT_EQ(suspensions().Charges(kAnn).size(), 1u) << "for the journal, before it is anybody's";
  suspensions().Fail(kAnn);
  Check();
  EXPECT_EQ(Held(ann), Bytes());
  EXPECT_TRUE(suspensions().Find(kAnn)->is_parked);
}

TEST_F(LeaseSuspensionsTest, ALeaseOnARealCardWithoutAFigureOfFreeMemoryIsNotSuspended) {
  Broker::Options options = AllCardsOf(*backend_);
  for (BrokerCard& card : options.cards) card.device.simulated = false;
  broker_ = *Broker::Create(*backend_, log_, options);
  Device(1_GiB, kAnn);
  Charged(Program(1, kAnn), 300_MiB);
  const absl::Status refused = suspensions().Begin(kAnn);
  EXPECT_TRUE(absl::IsFailedPrecondition(refused)) << refused;
  EXPECT_THAT(std::string(refused.message()), HasSubstr("how much memory GPU 0 has free"));
  EXPECT_EQ(suspensions().Find(kAnn), std::nullopt);
}

TEST_F(LeaseSuspensionsTest, ARemovedLeaseIsForgotten) {
  const LogicalId ann = Device(1_GiB, kAnn);
  const SessionId program = Program(1, kAnn);
  Charged(program, 300_MiB);
  Suspend(kAnn);
  broker_->StartDraining(program);
  broker_->RemoveDevice(ann);
  broker_->FinishDraining({program});
  EXPECT_EQ(suspensions().Find(kAnn), std::nullopt);
  EXPECT_EQ(CardFree(), 1_GiB);
}

TEST_F(LeaseSuspensionsTest, TheNextBrokerTakesASuspendedLeaseUp) {
  const LogicalId device{7};
  const SessionId program{1};
  ASSERT_EQ(
      broker_->restore().AddDevice(
          device, {.card = Card(0), .limit = 1_GiB, .lease = kAnn, .lease_name = "ann", .owner = "ann"}),
      absl::OkStatus());
  ASSERT_EQ(broker_->restore().AddSession(program, 1001, wakers_[1], kAnn, {}, {}), absl::OkStatus());
  suspensions().Restore(kAnn, {.charges = {{program, device, 800_MiB}},
                               .overheads = {{.card_uuid = Uuid(0), .pid = 1001, .bytes = 20_MiB}},
                               .guarantees = {{device, 100_MiB}}});
  EXPECT_EQ(suspensions().NeedOf(kAnn).at(Card(0)), 820_MiB) << "with its context, or a restore would fail";
  ASSERT_EQ(suspensions().Overheads(kAnn).size(), 1u);
  broker_->restore().ChargeOverhead();
  Check();
  EXPECT_EQ(CardFree(), 1_GiB);
  broker_->restore().StartAttesting(program, {.pid = 1001, .waker = wakers_[1], .waits_longer = true});
  EXPECT_TRUE(absl::IsInvalidArgument(broker_->restore().AttestCharge(program, Uuid(0), 801_MiB)));
  EXPECT_EQ(broker_->restore().AttestCharge(program, Uuid(0), 799_MiB), absl::OkStatus());
  broker_->restore().FinishAttesting(program);
  EXPECT_EQ(CardFree(), 1_GiB);
  EXPECT_EQ(suspensions().Find(kAnn)->parked, 799_MiB);
  EXPECT_EQ(Resume(kAnn), absl::OkStatus());
  EXPECT_EQ(Held(device), 800_MiB);
  EXPECT_EQ(broker_->Find(device)->guarantee, 100_MiB);
}

TEST_F(LeaseSuspensionsTest, ALeaseThatWasNotBegunHasNothingToComeBack) {
  const LogicalId ann = Device(1_GiB, kAnn);
  Charged(Program(1, kAnn), 300_MiB);
  EXPECT_EQ(suspensions().Park(kAnn), Bytes());
  EXPECT_GE(Held(ann), 300_MiB) << "it keeps its memory";
  EXPECT_TRUE(suspensions().Charges(kAnn).empty());
  EXPECT_TRUE(suspensions().Overheads(kAnn).empty());
  EXPECT_TRUE(suspensions().NeedOf(kAnn).empty());
  const absl::Status refused = suspensions().TakeBack(kAnn, {});
  EXPECT_TRUE(absl::IsFailedPrecondition(refused)) << refused;
  EXPECT_THAT(std::string(refused.message()), HasSubstr("not suspended"));
  suspensions().End(kAnn);
  EXPECT_EQ(suspensions().Find(kAnn), std::nullopt);
}

TEST_F(LeaseSuspensionsTest, ASecondParkTakesNothing) {
  Device(1_GiB, kAnn);
  Charged(Program(1, kAnn), 300_MiB);
  Suspend(kAnn);
  EXPECT_EQ(suspensions().Park(kAnn), Bytes());
  suspensions().End(kAnn);
  ASSERT_TRUE(suspensions().Find(kAnn)) << "only TakeBack leads out of it";
  EXPECT_EQ(suspensions().Find(kAnn)->parked, 300_MiB);
}

TEST_F(LeaseSuspensionsTest, ALeaseWhoseProgramIsEndingIsNotSuspended) {
  Device(1_GiB, kAnn);
  const SessionId program = Program(1, kAnn);
  Charged(program, 300_MiB);
  broker_->StartDraining(program);
  EXPECT_THAT(std::string(suspensions().Begin(kAnn).message()), HasSubstr("is ending"));
  broker_->LowerCharges(program, {});  // its process is gone
  broker_->FinishDraining({program});
  EXPECT_EQ(suspensions().Begin(kAnn), absl::OkStatus()) << "its memory is back";
}

TEST_F(LeaseSuspensionsTest, ALeaseThatIsJustGettingChunksIsNotSuspended) {
  const LogicalId ann = Device(1_GiB, kAnn);
  Device(1_GiB, kBob);
  const SessionId bob = Program(2, kBob);
  Charged(bob, 800_MiB);
  const Broker::Answer waiting = Grow(Session(1, kAnn), ann, 400_MiB, seconds(5));
  ASSERT_TRUE(waiting.wait);
  Uncharge(bob, 800_MiB);
  // The memory is the lease's, and its chunks are not made yet.
  EXPECT_THAT(std::string(suspensions().Begin(kAnn).message()),
              HasSubstr("is getting memory through liblgpu"));
  ASSERT_TRUE(IsServed(waiting));
  EXPECT_THAT(std::string(suspensions().Begin(kAnn).message()), HasSubstr("memory of liblgpu"));
}

/// Each program has a context of 64 MiB on the card.
class LeaseSuspensionsWithContextsTest : public LeaseSuspensionsTest {
 protected:
  LeaseSuspensionsWithContextsTest() : LeaseSuspensionsTest(64_MiB) {}
};

TEST_F(LeaseSuspensionsWithContextsTest, AContextLeavesWithItsProgramAndComesBackWithIt) {
  Device(512_MiB, kAnn);
  Charged(Program(1, kAnn), 100_MiB);
  ASSERT_EQ(suspensions().Begin(kAnn), absl::OkStatus());
  const auto before = suspensions().Overheads(kAnn);
  ASSERT_EQ(before.size(), 1u);
  EXPECT_EQ(before[0].card_uuid, Uuid(0));
  EXPECT_EQ(before[0].pid, 1001);
  EXPECT_EQ(before[0].bytes, 64_MiB);
  suspensions().Park(kAnn);
  Check();
  EXPECT_EQ(CardFree(), 1_GiB);
  EXPECT_EQ(suspensions().Overheads(kAnn).size(), 1u);
  EXPECT_EQ(suspensions().NeedOf(kAnn).at(Card(0)), 164_MiB);
  EXPECT_EQ(Resume(kAnn), absl::OkStatus());
  EXPECT_EQ(CardFree(), 1_GiB - 164_MiB);
}

TEST_F(LeaseSuspensionsWithContextsTest, AProgramThatEndedMeanwhileNeedsNoContext) {
  Device(512_MiB, kAnn);
  const SessionId first = Program(1, kAnn);
  Charged(first, 100_MiB);
  Charged(Program(2, kAnn), 100_MiB);
  Suspend(kAnn);
  EXPECT_EQ(suspensions().NeedOf(kAnn).at(Card(0)), 328_MiB);
  broker_->StartDraining(first);
  broker_->FinishDraining({first});
  EXPECT_EQ(suspensions().NeedOf(kAnn).at(Card(0)), 164_MiB);
  EXPECT_EQ(Resume(kAnn), absl::OkStatus());
}

TEST_F(LeaseSuspensionsWithContextsTest, AProgramThatSuspendsItselfKeepsItsContextAlone) {
  const auto device = broker_->AddDevice({.card = Card(0),
                                          .limit = 600_MiB,
                                          .guarantee = 512_MiB,
                                          .lease = kAnn,
                                          .lease_name = "ann",
                                          .owner = "ann"});
  ASSERT_TRUE(device.ok());
  const SessionId ann = Session(1, kAnn);
  const Broker::Answer grown = Grow(ann, *device, 100_MiB);
  ASSERT_TRUE(grown.status.ok());
  EXPECT_THAT(std::string(suspensions().BeginOwn(kAnn, ann).message()), HasSubstr("memory of liblgpu"));
  for (const Chunk& chunk : grown.chunks) {
    ASSERT_TRUE(broker_->Return(ann, *device, std::vector<ChunkId>{chunk.id}).ok());
  }
  ASSERT_EQ(suspensions().BeginOwn(kAnn, ann), absl::OkStatus());
  EXPECT_EQ(suspensions().Park(kAnn), Bytes());
  Check();
  EXPECT_EQ(CardFree(), 1_GiB - 64_MiB) << "its context stays";
  EXPECT_TRUE(suspensions().Overheads(kAnn).empty());
  EXPECT_TRUE(suspensions().Find(kAnn)->has_programs);
  EXPECT_EQ(suspensions().NeedOf(kAnn).at(Card(0)), 512_MiB);
  EXPECT_EQ(Resume(kAnn), absl::OkStatus());
  EXPECT_EQ(CardFree(), 1_GiB - 64_MiB - 512_MiB);
}

TEST_F(LeaseSuspensionsWithContextsTest, TheNextBrokerChargesTheContextOfAProgramThatSuspendedItself) {
  const LogicalId device{7};
  const SessionId program{1};
  ASSERT_EQ(
      broker_->restore().AddDevice(
          device, {.card = Card(0), .limit = 512_MiB, .lease = kAnn, .lease_name = "ann", .owner = "ann"}),
      absl::OkStatus());
  ASSERT_EQ(broker_->restore().AddSession(program, 1001, wakers_[1], kAnn, {}, {}), absl::OkStatus());
  suspensions().Restore(
      kAnn, {.charges = {{program, device, {}}}, .guarantees = {{device, 100_MiB}}, .is_own = true});
  broker_->restore().ChargeOverhead();
  Check();
  EXPECT_EQ(CardFree(), 1_GiB - 64_MiB);
  EXPECT_EQ(Resume(kAnn), absl::OkStatus());
  EXPECT_EQ(CardFree(), 1_GiB - 164_MiB);
}

TEST_F(LeaseSuspensionsTest, AProgramDoesNotSuspendALeaseWithMemoryOfOtherPrograms) {
  Device(512_MiB, kAnn);
  const SessionId ann = Session(1, kAnn);
  Charged(Program(2, kAnn), 100_MiB);
  EXPECT_THAT(std::string(suspensions().BeginOwn(kAnn, ann).message()), HasSubstr("other programs"));
  EXPECT_FALSE(suspensions().Find(kAnn).has_value());
}

TEST_F(LeaseSuspensionsTest, WhatCannotBeSuspendedIsRefusedWithTheReason) {
  EXPECT_THAT(std::string(suspensions().Begin(LeaseKey{9}).message()), HasSubstr("no logical devices"));
  Device(64_MiB, LeaseKey{3}, 0, /*preallocate=*/true);
  EXPECT_THAT(std::string(suspensions().Begin(LeaseKey{3}).message()), HasSubstr("preallocated"));
  const LogicalId bob = Device(64_MiB, kBob);
  const SessionId liblgpu = Session(5, kBob);
  ASSERT_TRUE(Grow(liblgpu, bob, 2_MiB).status.ok());
  EXPECT_THAT(std::string(suspensions().Begin(kBob).message()), HasSubstr("memory of liblgpu"));
  Device(64_MiB, kAnn);
  const SessionId old = Session(6, kAnn);  // waits no longer than it asked for
  ASSERT_TRUE(Charges(old, 2_MiB));
  EXPECT_THAT(std::string(suspensions().Begin(kAnn).message()), HasSubstr("older lgpu"));
  const LeaseKey other{4};
  Device(64_MiB, other);
  const SessionId late = Session(7, other);
  Suspend(other);
  EXPECT_THAT(std::string(suspensions().Begin(other).message()), HasSubstr("suspended already"));
  const absl::Status refused = Refused(Charge(late, 2_MiB));
  EXPECT_THAT(std::string(refused.message()), HasSubstr("is suspended"));
}

}  // namespace
}  // namespace lgpu
