#include "allocator/broker/charge_table.h"

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <memory>

#include "lgpu/bytes.h"
#include "tests/allocator/broker/tables_fixture.h"

namespace lgpu {
namespace {

class Words final : public Allowances {
 public:
  std::atomic<std::uint64_t>& Free(std::size_t card) override { return free_[card]; }
  std::atomic<std::uint64_t>& Keep(std::size_t card) override { return keep_[card]; }

 private:
  std::array<std::atomic<std::uint64_t>, 2> free_{}, keep_{};
};

// Two devices of 32 MiB of the session's lease.
class ChargeTableTest : public TablesFixture {
 protected:
  ChargeTableTest() { charges_.Open(kSession, card_); }

  Waiter Request(Bytes bytes) const {
    Waiter waiter;
    waiter.spec.session = kSession;
    waiter.spec.device = devices_[0];
    waiter.spec.at_least = RoundUp(bytes, 2_MiB);
    waiter.charge = {.card = card_, .bytes = bytes, .what = "cuMemAlloc", .card_deadline = {}};
    return waiter;
  }
  void Book(Bytes bytes) { charges_.Book(kSession, card_, bytes, charges_.SplitOf(Request(bytes)).parts); }
  Bytes Held() const { return tables_.sessions.at(kSession).held; }

  ChargeTable charges_{tables_};
  const std::array<LogicalId, 2> devices_{AddDevice(32_MiB), AddDevice(32_MiB)};
};

TEST_F(ChargeTableTest, AChargeIsHeldInWholeGranules) {
  Book(3_MiB);
  EXPECT_EQ(Held(), 4_MiB);
  EXPECT_EQ(log_.charged(kSession, devices_[0]), 4_MiB);
  ExpectInStep();
}

TEST_F(ChargeTableTest, AChargeTakesTheRestOfItsSessionsLastGranuleFirst) {
  Book(3_MiB);
  EXPECT_TRUE(charges_.SplitOf(Request(1_MiB)).parts.empty());
  for (const Bytes bytes : {1_MiB + 1_B, 2_MiB, 3_MiB}) {
    SCOPED_TRACE(FormatBytes(bytes));
    const Ledger::Split split = charges_.SplitOf(Request(bytes));
    ASSERT_EQ(split.parts.size(), 1u);
    EXPECT_EQ(split.parts[0].second, 2_MiB);
  }
  Book(1_MiB);
  EXPECT_EQ(Held(), 4_MiB);
  Book(60_MiB);
  EXPECT_EQ(Held(), 64_MiB) << "both devices are full";
  EXPECT_EQ(charges_.SplitOf(Request(1_B)).verdict.shortage, Ledger::Shortage::kLimit);
  ExpectInStep();
}

TEST_F(ChargeTableTest, AChargeOfTwoDevicesIsGivenBackFromTheLastOne) {
  Book(40_MiB);
  EXPECT_EQ(tables_.ledger.View(devices_[0]).granted, 32_MiB);
  EXPECT_EQ(tables_.ledger.View(devices_[1]).granted, 8_MiB);
  EXPECT_TRUE(charges_.Uncharge(kSession, card_, 10_MiB));
  EXPECT_EQ(tables_.ledger.View(devices_[0]).granted, 30_MiB);
  EXPECT_EQ(tables_.ledger.View(devices_[1]).granted, Bytes());
  ExpectInStep();
}

TEST_F(ChargeTableTest, UnchargingMoreThanIsLentEndsTheCharge) {
  Book(4_MiB);
  EXPECT_TRUE(charges_.Uncharge(kSession, card_, 400_MiB));
  EXPECT_EQ(Held(), Bytes());
  EXPECT_TRUE(tables_.ChargingOn(card_).empty());
  EXPECT_FALSE(charges_.Uncharge(kSession, card_, 2_MiB));
  ExpectInStep();
}

TEST_F(ChargeTableTest, AnUnusedAllowanceIsTakenBack) {
  const auto words = std::make_shared<Words>();
  tables_.sessions.at(kSession).allowances = words;
  Book(2_MiB);
  const Broker::Lent lent = charges_.Lend(Request(2_MiB), /*card_is_waited_for=*/false);
  EXPECT_EQ(lent.keep, 8_MiB);  // an eighth of both limits
  EXPECT_EQ(lent.refill, 8_MiB);
  EXPECT_EQ(Held(), 10_MiB);
  words->Free(0) = lent.refill.count();
  EXPECT_TRUE(charges_.TakeAllowances(card_, LeaseKey{1}));
  EXPECT_EQ(words->Free(0), 0u);
  EXPECT_EQ(Held(), 2_MiB);
  EXPECT_FALSE(charges_.TakeAllowances(card_, LeaseKey{1}));
  ExpectInStep();
}

TEST_F(ChargeTableTest, ADrainingChargeEndsAsFarAsItIsNotInUse) {
  Book(8_MiB);
  EXPECT_EQ(charges_.StartLeaving(tables_.sessions.at(kSession)).count(card_), 1u);
  EXPECT_EQ(tables_.ledger.View(devices_[0]).leaving, 8_MiB);
  EXPECT_FALSE(charges_.Uncharge(kSession, card_, 2_MiB));
  charges_.EndBeyond(kSession, card_, 3_MiB);
  EXPECT_EQ(tables_.ledger.View(devices_[0]).leaving, 4_MiB);
  charges_.EndBeyond(kSession, card_, Bytes());
  EXPECT_EQ(Held(), Bytes());
  ExpectInStep();
}

TEST_F(ChargeTableTest, TheLogHearsOfLessWhenItIsTold) {
  Book(8_MiB);
  charges_.Uncharge(kSession, card_, 6_MiB);
  EXPECT_EQ(log_.charged(kSession, devices_[0]), 8_MiB);
  charges_.LogLess();
  EXPECT_EQ(log_.charged(kSession, devices_[0]), 2_MiB);
  ExpectInStep();
}

}  // namespace
}  // namespace lgpu
