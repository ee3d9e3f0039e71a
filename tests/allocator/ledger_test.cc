#include "allocator/ledger.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace lgpu {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Shortage = Ledger::Shortage;

class LedgerTest : public ::testing::Test {
 protected:
  LedgerTest() : card_(*ledger_.AddCard({.total = 100_MiB, .reserve = 4_MiB})) {}
  ~LedgerTest() override { EXPECT_EQ(ledger_.CheckInvariants(), absl::OkStatus()); }

  LogicalId Add(Bytes limit, Bytes guarantee = Bytes()) {
    const auto added = ledger_.AddLogical(card_, {.limit = limit, .guarantee = guarantee});
    EXPECT_TRUE(added.ok()) << added.status();
    return added.value_or(LogicalId{});
  }
  bool Granted(LogicalId logical, Bytes bytes) {
    return ledger_.Request(logical, bytes).shortage == Shortage::kNone;
  }

  Ledger ledger_;
  const CardId card_;
};

TEST_F(LedgerTest, ALimitFromBeforeALargerReserveMayStayOrFall) {
  const LogicalId restored{7};
  ASSERT_TRUE(ledger_.RestoreLogical(restored, card_, {.limit = 98_MiB, .guarantee = Bytes()}).ok());
  EXPECT_TRUE(
      absl::IsInvalidArgument(ledger_.CheckResize(restored, {.limit = 99_MiB, .guarantee = Bytes()})));
  EXPECT_TRUE(absl::IsInvalidArgument(ledger_.Resize(restored, {.limit = 99_MiB, .guarantee = Bytes()})));
  EXPECT_TRUE(ledger_.Resize(restored, {.limit = 98_MiB, .guarantee = 10_MiB}).ok());
  EXPECT_TRUE(ledger_.CheckResize(restored, {.limit = 50_MiB, .guarantee = Bytes()}).ok());
  EXPECT_TRUE(ledger_.Resize(restored, {.limit = 50_MiB, .guarantee = Bytes()}).ok());
  EXPECT_TRUE(absl::IsInvalidArgument(ledger_.Resize(restored, {.limit = 98_MiB, .guarantee = Bytes()})));
}

TEST_F(LedgerTest, AGuaranteeThatFitsOnlyWithoutItsLastUnitIsRefused) {
  const CardId odd = *ledger_.AddCard({.total = 101_MiB, .reserve = 4_MiB});
  const absl::Status refused = ledger_.AddLogical(odd, {.limit = 97_MiB, .guarantee = 97_MiB}).status();
  EXPECT_TRUE(absl::IsInvalidArgument(refused)) << refused;
  EXPECT_THAT(std::string(refused.message()),
              HasSubstr("a guarantee of 97.00MiB, in units of 2.00MiB, is more"));
  EXPECT_TRUE(ledger_.AddLogical(odd, {.limit = 97_MiB, .guarantee = 96_MiB}).ok());
}

TEST_F(LedgerTest, ADeviceThatNoLedgerWouldHaveMadeIsNotRestored) {
  const auto code = [&](LogicalId id, Bytes limit, Bytes guarantee) {
    return ledger_.RestoreLogical(id, card_, {.limit = limit, .guarantee = guarantee}).code();
  };
  EXPECT_EQ(code(LogicalId{7}, Bytes(), Bytes()), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code(LogicalId{7}, 8_MiB, 10_MiB), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code(LogicalId{}, 8_MiB, Bytes()), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(code(LogicalId{7}, 8_MiB, Bytes()), absl::StatusCode::kOk);
  EXPECT_EQ(code(LogicalId{7}, 8_MiB, Bytes()), absl::StatusCode::kAlreadyExists);
}

TEST_F(LedgerTest, ACardIsRefusedWhenItsNumbersContradictEachOther) {
  const auto code = [&](const Ledger::CardOptions& options) {
    return ledger_.AddCard(options).status().code();
  };
  EXPECT_EQ(code({.total = 1_MiB, .reserve = {}}), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code({.total = 8_MiB, .reserve = 9_MiB}), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code({.total = 8_MiB, .reserve = {}, .granularity = 3_MiB}), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code({.total = 8_MiB, .reserve = {}, .granularity = {}}), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code({.total = Bytes(~0ull), .reserve = {}}), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code({.total = 8_MiB, .reserve = 8_MiB}), absl::StatusCode::kOk);
}

TEST_F(LedgerTest, ALogicalDeviceIsRefusedWhenTheCardCanNeverHoldIt) {
  const auto code = [&](Bytes limit, Bytes guarantee) {
    return ledger_.AddLogical(card_, {.limit = limit, .guarantee = guarantee}).status().code();
  };
  EXPECT_EQ(code(Bytes(), Bytes()), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code(8_MiB, 9_MiB), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code(97_MiB, Bytes()), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code(Bytes(~0ull), Bytes(~0ull)), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code(96_MiB, 96_MiB), absl::StatusCode::kOk);
}

TEST_F(LedgerTest, LimitsMayAddUpToMoreThanTheCardAndGuaranteesMayNot) {
  Add(90_MiB, 50_MiB);
  Add(90_MiB);
  const auto refused = ledger_.AddLogical(card_, {.limit = 90_MiB, .guarantee = 48_MiB});
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr("48.00MiB"));
  EXPECT_THAT(std::string(refused.status().message()),
              HasSubstr("46.00MiB of the card's 100.00MiB are free"));
  Add(90_MiB, 46_MiB);
}

TEST_F(LedgerTest, ALimitIsRoundedUpForChunksAndShownAsAsked) {
  const LogicalId logical = Add(5_MiB, 3_MiB);
  EXPECT_EQ(ledger_.View(logical).limit, 5_MiB);
  EXPECT_EQ(ledger_.View(logical).guarantee, 4_MiB);
  EXPECT_TRUE(Granted(logical, 6_MiB));
  EXPECT_FALSE(Granted(logical, 2_MiB));
}

TEST_F(LedgerTest, ARequestAboveTheLimitReportsMissingAndReturningBytes) {
  const LogicalId logical = Add(10_MiB);
  ASSERT_TRUE(Granted(logical, 8_MiB));
  ledger_.StartLeaving(logical, 4_MiB);
  const Ledger::Verdict waits = ledger_.Request(logical, 6_MiB);
  EXPECT_EQ(waits.shortage, Shortage::kLimit);
  EXPECT_EQ(waits.short_by, 4_MiB);
  EXPECT_EQ(waits.coming_back, 4_MiB);
  EXPECT_FALSE(waits.hopeless);
  EXPECT_TRUE(ledger_.Request(logical, 8_MiB).hopeless);
  EXPECT_TRUE(ledger_.Request(logical, RoundUp(Bytes(~0ull), 2_MiB)).hopeless);
  ledger_.ConfirmFree(logical, 4_MiB);
  EXPECT_TRUE(Granted(logical, 6_MiB));
}

TEST_F(LedgerTest, LeavingMemoryIsHeldUntilItIsConfirmed) {
  const LogicalId logical = Add(96_MiB);
  const LogicalId other = Add(96_MiB);
  ASSERT_TRUE(Granted(logical, 96_MiB));
  ledger_.StartLeaving(logical, 96_MiB);
  EXPECT_EQ(ledger_.View(logical).held(), 96_MiB);
  const Ledger::Verdict verdict = ledger_.Request(other, 2_MiB);
  EXPECT_EQ(verdict.shortage, Shortage::kCard);
  EXPECT_EQ(verdict.short_by, 2_MiB);
  EXPECT_EQ(verdict.coming_back, 96_MiB);
  ledger_.ConfirmFree(logical, 96_MiB);
  EXPECT_TRUE(Granted(other, 96_MiB));
}

TEST_F(LedgerTest, GuaranteedMemoryIsNeverLentAndNeverRefused) {
  const LogicalId guaranteed = Add(40_MiB, 40_MiB);
  const LogicalId greedy = Add(96_MiB);
  ASSERT_TRUE(Granted(greedy, 56_MiB));
  EXPECT_EQ(ledger_.Request(greedy, 2_MiB).shortage, Shortage::kCard);
  ledger_.SetForeign(card_, 90_MiB);
  EXPECT_TRUE(ledger_.View(card_).overcommitted());
  EXPECT_TRUE(Granted(guaranteed, 40_MiB));
}

TEST_F(LedgerTest, ForeignMemoryLowersGrantsBeyondGuarantees) {
  const LogicalId logical = Add(96_MiB, 20_MiB);
  ledger_.SetForeign(card_, 70_MiB);
  EXPECT_EQ(ledger_.View(card_).free(), 6_MiB);
  EXPECT_TRUE(Granted(logical, 26_MiB));
  const Ledger::Verdict verdict = ledger_.Request(logical, 2_MiB);
  EXPECT_EQ(verdict.shortage, Shortage::kCard);
  EXPECT_FALSE(verdict.hopeless);  // other programs may end
  ledger_.SetForeign(card_, 80_MiB);
  EXPECT_TRUE(ledger_.View(card_).overcommitted());
  EXPECT_EQ(ledger_.View(card_).free(), Bytes());
  EXPECT_EQ(ledger_.Request(logical, 2_MiB).short_by, 12_MiB);
  EXPECT_EQ(ledger_.AddLogical(card_, {.limit = 2_MiB, .guarantee = 2_MiB}).status().code(),
            absl::StatusCode::kResourceExhausted);
}

TEST_F(LedgerTest, ARequestThatGuaranteesRuleOutIsHopeless) {
  const LogicalId logical = Add(96_MiB);
  Add(40_MiB, 40_MiB);
  EXPECT_TRUE(ledger_.Request(logical, 58_MiB).hopeless);
  const LogicalId other = Add(96_MiB);
  ASSERT_TRUE(Granted(other, 30_MiB));
  const Ledger::Verdict verdict = ledger_.Request(logical, 56_MiB);
  EXPECT_EQ(verdict.shortage, Shortage::kCard);
  EXPECT_EQ(verdict.short_by, 30_MiB);
  EXPECT_FALSE(verdict.hopeless);
}

TEST_F(LedgerTest, ARefundIsFreeAtOnce) {
  const LogicalId logical = Add(10_MiB);
  ASSERT_TRUE(Granted(logical, 10_MiB));
  ledger_.Refund(logical, 4_MiB);
  EXPECT_EQ(ledger_.View(logical).held(), 6_MiB);
  EXPECT_TRUE(Granted(logical, 4_MiB));
}

TEST_F(LedgerTest, ALimitBelowHeldMemoryStopsGrantsUntilItFits) {
  const LogicalId logical = Add(40_MiB, 10_MiB);
  ASSERT_TRUE(Granted(logical, 40_MiB));
  ASSERT_TRUE(ledger_.Resize(logical, {.limit = 20_MiB, .guarantee = 10_MiB}).ok());
  EXPECT_EQ(ledger_.CheckInvariants(), absl::OkStatus());
  ledger_.Refund(logical, 10_MiB);
  EXPECT_EQ(ledger_.Request(logical, 2_MiB).shortage, Shortage::kLimit);
  ledger_.Refund(logical, 12_MiB);
  EXPECT_TRUE(Granted(logical, 2_MiB));
  EXPECT_FALSE(Granted(logical, 2_MiB));
}

TEST_F(LedgerTest, AFailedResizeChangesNothing) {
  const LogicalId logical = Add(40_MiB, 10_MiB);
  Add(80_MiB, 80_MiB);
  EXPECT_EQ(ledger_.Resize(logical, {.limit = 40_MiB, .guarantee = 20_MiB}).code(),
            absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(ledger_.Resize(logical, {.limit = 1000_MiB, .guarantee = {}}).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(ledger_.View(logical).limit, 40_MiB);
  EXPECT_EQ(ledger_.View(logical).guarantee, 10_MiB);
  EXPECT_EQ(ledger_.View(card_).promised, 94_MiB);
}

TEST_F(LedgerTest, ADeviceThatHoldsMemoryIsNotRemoved) {
  const LogicalId logical = Add(96_MiB);
  const LogicalId other = Add(96_MiB);
  ASSERT_TRUE(Granted(logical, 96_MiB));
  EXPECT_EQ(ledger_.RemoveLogical(logical).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(ledger_.RemoveLogical(other).ok());
  EXPECT_THAT(ledger_.LogicalsOf(card_), ElementsAre(logical));
}

TEST_F(LedgerTest, AdoptionChargesExistingMemoryThatMayOnlyShrink) {
  const LogicalId logical = Add(10_MiB);
  ledger_.Adopt(logical, 120_MiB);
  EXPECT_EQ(ledger_.View(logical).held(), 120_MiB);
  EXPECT_TRUE(ledger_.View(card_).overcommitted());
  EXPECT_EQ(ledger_.CheckInvariants(), absl::OkStatus());
  EXPECT_EQ(ledger_.Request(logical, 2_MiB).shortage, Shortage::kLimit);
  EXPECT_EQ(ledger_.ChargeOverhead(card_, 1_B).code(), absl::StatusCode::kResourceExhausted);
  ledger_.Refund(logical, 112_MiB);
  EXPECT_TRUE(Granted(logical, 2_MiB));
}

TEST_F(LedgerTest, OverheadIsChargedToTheCard) {
  const LogicalId logical = Add(96_MiB);
  ASSERT_TRUE(ledger_.ChargeOverhead(card_, 10_MiB).ok());
  EXPECT_EQ(ledger_.Request(logical, 88_MiB).shortage, Shortage::kCard);
  EXPECT_EQ(ledger_.ChargeOverhead(card_, 87_MiB).code(), absl::StatusCode::kResourceExhausted);
  ledger_.RefundOverhead(card_, 10_MiB);
  EXPECT_TRUE(Granted(logical, 96_MiB));
}

TEST_F(LedgerTest, CheckAnswersAsRequestAndChargesNothing) {
  const LogicalId guaranteed = Add(40_MiB, 20_MiB);
  const LogicalId other = Add(96_MiB);
  EXPECT_EQ(ledger_.Check(guaranteed, 42_MiB).shortage, Shortage::kLimit);
  EXPECT_EQ(ledger_.Check(guaranteed, 20_MiB).shortage, Shortage::kNone);
  EXPECT_EQ(ledger_.View(guaranteed).held(), Bytes());
  EXPECT_EQ(ledger_.NeedOf(guaranteed, 20_MiB), Bytes());
  EXPECT_EQ(ledger_.NeedOf(guaranteed, 24_MiB), 4_MiB);
  ASSERT_TRUE(Granted(other, 76_MiB));
  EXPECT_EQ(ledger_.Check(guaranteed, 20_MiB).shortage, Shortage::kNone);
  EXPECT_EQ(ledger_.Check(guaranteed, 24_MiB).short_by, 4_MiB);
}

TEST_F(LedgerTest, CardsDoNotTouchEachOther) {
  const CardId other = *ledger_.AddCard({.total = 10_MiB, .reserve = {}});
  const LogicalId here = Add(96_MiB);
  const LogicalId there = *ledger_.AddLogical(other, {.limit = 10_MiB, .guarantee = {}});
  ASSERT_TRUE(Granted(here, 96_MiB));
  EXPECT_TRUE(Granted(there, 10_MiB));
  EXPECT_EQ(ledger_.View(other).held, 10_MiB);
  EXPECT_EQ(ledger_.View(there).card, other);
}

using LedgerDeathTest = LedgerTest;

TEST_F(LedgerDeathTest, BugsOfTheOwnerAbort) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const LogicalId logical = Add(10_MiB);
  EXPECT_DEATH(ledger_.Request(logical, 3_MiB), "check failed");
  EXPECT_DEATH(ledger_.Request(LogicalId{99}, 2_MiB), "check failed");
  EXPECT_DEATH(ledger_.Refund(logical, 2_MiB), "check failed.*2097152 against 0");
  EXPECT_DEATH(ledger_.ConfirmFree(logical, 2_MiB), "check failed");
}

}  // namespace
}  // namespace lgpu
