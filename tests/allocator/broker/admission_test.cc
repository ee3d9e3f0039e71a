#include "allocator/broker/admission.h"

#include <gtest/gtest.h>

#include <chrono>

#include "lgpu/bytes.h"
#include "lgpu/refusal.h"
#include "tests/allocator/broker/requests_fixture.h"

namespace lgpu {
namespace {

using std::chrono::milliseconds;
using Phase = Waiter::Phase;

class AdmissionTest : public RequestsFixture {
 protected:
  AdmissionTest() { AddSession(kSecond, 101); }
  Waiter Admit(SessionId session, LogicalId device, Bytes bytes,
               milliseconds timeout = std::chrono::hours(1)) {
    Waiter waiter = Request(session, device, bytes, timeout);
    admission_.Admit(waiting_.NewWaiter(), waiter);
    return waiter;
  }
  ChunkId AddSpare(LogicalId device, Bytes bytes) { return Hold(SessionId(), device, bytes); }
  static RefusalReason Reason(const Waiter& waiter) {
    return GetRefusal(waiter.refusal).value_or(Refusal()).reason;
  }

  static constexpr SessionId kSecond{2};
};

TEST_F(AdmissionTest, AGrowingDeviceIsChargedUpToWhatIsWanted) {
  const LogicalId device = AddDevice(64_MiB);
  Waiter waiter = Request(kSession, device, 16_MiB);
  waiter.spec.wanted = 96_MiB;
  const WaiterId id = waiting_.NewWaiter();
  admission_.Admit(id, waiter);
  EXPECT_EQ(waiter.phase, Phase::kBooked);
  EXPECT_EQ(waiter.booked, 64_MiB);
  EXPECT_EQ(View().held, 64_MiB);
  admission_.Leave(id, waiter);
  EXPECT_EQ(waiter.phase, Phase::kNew);
  EXPECT_TRUE(View().held.is_zero());
  ExpectInStep();
}

TEST_F(AdmissionTest, ARequestAboveTheLimitIsRefusedWhateverIsOnItsWayBack) {
  for (const bool preallocate : {false, true}) {
    SCOPED_TRACE(preallocate);
    const LogicalId device = AddDevice(64_MiB, preallocate);
    StartReturning(Hold(kSecond, device, 64_MiB));
    const Bytes guarantee = preallocate ? 16_MiB : Bytes();
    ASSERT_TRUE(tables_.ledger.Resize(device, {.limit = 16_MiB, .guarantee = guarantee}).ok());
    const Waiter waiter = Admit(kSession, device, 18_MiB);
    EXPECT_EQ(waiter.phase, Phase::kRefused);
    EXPECT_EQ(Reason(waiter), RefusalReason::kLimit);
    EXPECT_EQ(Admit(kSession, device, 16_MiB).phase, Phase::kLimit);
  }
}

TEST_F(AdmissionTest, APreallocatedDeviceServesFromSpareChunks) {
  const LogicalId device = AddDevice(64_MiB, true);
  AddSpare(device, 32_MiB);
  const Waiter waiter = Admit(kSession, device, 32_MiB);
  EXPECT_EQ(waiter.phase, Phase::kServed);
  ASSERT_EQ(waiter.taken.size(), 1u);
  EXPECT_EQ(tables_.sessions.at(kSession).held, 32_MiB);
  ExpectInStep();
}

TEST_F(AdmissionTest, APreallocatedDeviceIsChargedForTheChunksThatItLacks) {
  const LogicalId device = AddDevice(64_MiB, true);
  AddSpare(device, 32_MiB);
  const Waiter waiter = Admit(kSession, device, 48_MiB);
  EXPECT_EQ(waiter.phase, Phase::kBooked);
  EXPECT_EQ(waiter.booked, 16_MiB);
  EXPECT_EQ(Admit(kSecond, device, 32_MiB).phase, Phase::kServed) << "spare chunks serve every request";
}

TEST_F(AdmissionTest, ATimeoutOfZeroDoesNotWaitForChunksThatAreMadeForAnotherRequest) {
  const LogicalId device = AddDevice(32_MiB, true);
  Waiter first = Request(kSession, device, 20_MiB);
  const WaiterId id = waiting_.NewWaiter();
  admission_.Admit(id, first);
  ASSERT_EQ(first.booked, 20_MiB);
  EXPECT_EQ(Admit(kSecond, device, 16_MiB, milliseconds(0)).phase, Phase::kRefused);
  EXPECT_EQ(Admit(kSecond, device, 16_MiB).phase, Phase::kLimit) << "the first one may end";
  // Chunks that are made for no request are worth the wait.
  admission_.Leave(id, first);
  ASSERT_EQ(chunks_.BookLack(device), 32_MiB);
  EXPECT_EQ(Admit(kSecond, device, 16_MiB, milliseconds(0)).phase, Phase::kLimit);
}

TEST_F(AdmissionTest, AChargeIsBookedAndTakesNoCardThatItHasTheGranulesOf) {
  const LogicalId device = AddDevice(64_MiB);
  Waiter charge = Request(kSession, device, 2_MiB);
  charge.charge = {.card = card_, .bytes = 1_MiB, .what = "cuMemAlloc_v2", .card_deadline = now_};
  charges_.Open(kSession, card_);
  admission_.Admit(waiting_.NewWaiter(), charge);
  EXPECT_EQ(charge.phase, Phase::kServed);
  EXPECT_EQ(View().held, 2_MiB);
  charge.phase = Phase::kNew;
  admission_.Admit(waiting_.NewWaiter(), charge);
  EXPECT_EQ(charge.phase, Phase::kServed);
  EXPECT_EQ(View().held, 2_MiB) << "the granule had room for it";
  ExpectInStep();
}

TEST_F(AdmissionTest, ARequestOfARemovedDeviceSaysThatItsLeaseHasEnded) {
  const LogicalId device = AddDevice(64_MiB);
  tables_.devices.at(device).removed = true;
  const Waiter waiter = Admit(kSession, device, 2_MiB);
  EXPECT_EQ(waiter.phase, Phase::kRefused);
  EXPECT_TRUE(absl::IsFailedPrecondition(waiter.refusal)) << waiter.refusal;
}

TEST_F(AdmissionTest, GrowthAheadOfNeedIsRefusedWithoutAReason) {
  const LogicalId device = AddDevice(64_MiB);
  Hold(kSecond, device, 64_MiB);
  Waiter waiter = Request(kSession, device, 2_MiB);
  waiter.spec.ahead = true;
  admission_.Admit(waiting_.NewWaiter(), waiter);
  EXPECT_EQ(waiter.phase, Phase::kRefused);
  EXPECT_FALSE(GetRefusal(waiter.refusal));
}

}  // namespace
}  // namespace lgpu
