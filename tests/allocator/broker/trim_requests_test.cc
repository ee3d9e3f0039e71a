#include "allocator/broker/trim_requests.h"

#include <gtest/gtest.h>

#include <chrono>
#include <vector>

#include "allocator/broker/session_trims.h"
#include "lgpu/bytes.h"
#include "tests/allocator/broker/requests_fixture.h"

namespace lgpu {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

// Sessions that can be asked for idle memory.
class TrimRequestsTest : public RequestsFixture {
 protected:
  TrimRequestsTest() {
    for (const SessionId session : {kSecond, kThird}) AddSession(session, 100);
    for (auto& [id, session] : tables_.sessions) session.trims = true;
  }

  static constexpr SessionId kSecond{2}, kThird{3};
  const LogicalId device_ = AddDevice(64_MiB);
};

TEST_F(TrimRequestsTest, UnderALimitTheLargestOtherHolderIsAskedFirst) {
  Hold(kSession, device_, 32_MiB);
  Hold(kSecond, device_, 8_MiB);
  Hold(kThird, device_, 16_MiB);
  Waiter waiter = Request(kSession, device_, 20_MiB);
  EXPECT_TRUE(trims_.AskUnderLimit(waiter, 12_MiB));
  EXPECT_TRUE(trims_.TakeOrders(kSession).empty());
  EXPECT_TRUE(trims_.TakeOrders(kSecond).empty());
  const std::vector<TrimOrder> orders = trims_.TakeOrders(kThird);
  ASSERT_EQ(orders.size(), 1u);
  EXPECT_EQ(orders[0].device, device_);
  EXPECT_EQ(orders[0].bytes, 12_MiB);
}

TEST_F(TrimRequestsTest, ForACardOnlyMemoryBeyondGuaranteesIsAskedFor) {
  const LogicalId preallocated = AddDevice(32_MiB, true);
  const LogicalId guaranteed = AddDevice(64_MiB);
  ASSERT_TRUE(tables_.ledger.Resize(guaranteed, {.limit = 64_MiB, .guarantee = 24_MiB}).ok());
  Hold(kSecond, preallocated, 32_MiB);
  Hold(kThird, guaranteed, 32_MiB);
  const Waiter waiter = Request(kSession, device_, 20_MiB);
  EXPECT_TRUE(trims_.HasHolders(waiter));
  TrimTable::Need need;
  trims_.AskOnCard(need, card_, device_, kSession, 20_MiB);
  EXPECT_TRUE(trims_.TakeOrders(kSecond).empty());
  const std::vector<TrimOrder> orders = trims_.TakeOrders(kThird);
  ASSERT_EQ(orders.size(), 1u);
  EXPECT_EQ(orders[0].bytes, 8_MiB);
  EXPECT_TRUE(trims_.IsHopeful(need, card_, device_, kSession));
  EXPECT_TRUE(trims_.Answer(kThird, orders[0].id, /*pending=*/false).ok());
  EXPECT_FALSE(trims_.IsHopeful(need, card_, device_, kSession));
}

TEST_F(TrimRequestsTest, ALoweredLimitAsksEachHolderForTheExcess) {
  Hold(kSecond, device_, 32_MiB);
  Hold(kThird, device_, 16_MiB);
  ASSERT_TRUE(tables_.ledger.Resize(device_, {.limit = 24_MiB}).ok());
  trims_.AskForExcess(device_);
  EXPECT_EQ(trims_.TakeOrders(kSecond).at(0).bytes, 24_MiB);
  EXPECT_EQ(trims_.TakeOrders(kThird).at(0).bytes, 16_MiB);
}

TEST_F(TrimRequestsTest, ASessionThatIgnoresItsOrdersIsNamedOnceInTenSeconds) {
  Hold(kSecond, device_, 64_MiB);
  Waiter waiter = Request(kSession, device_, 20_MiB);
  ASSERT_TRUE(trims_.AskUnderLimit(waiter, 20_MiB));
  EXPECT_TRUE(trims_.TakeIgnored().empty());
  now_ += TrimTable::kOverdue;
  const std::vector<SessionTrims::Ignored> ignored = trims_.TakeIgnored();
  ASSERT_EQ(ignored.size(), 1u);
  EXPECT_EQ(ignored[0].session, kSecond);
  EXPECT_EQ(ignored[0].asked, 20_MiB);
  EXPECT_TRUE(trims_.Ignores(kSecond));
  ASSERT_TRUE(trims_.Answer(kSecond, trims_.TakeOrders(kSecond).at(0).id, /*pending=*/false).ok());
  EXPECT_FALSE(trims_.Ignores(kSecond));

  trims_.AskForExcess(device_);  // nothing is over the limit: no order
  ASSERT_TRUE(tables_.ledger.Resize(device_, {.limit = 24_MiB}).ok());
  trims_.AskForExcess(device_);
  now_ += TrimTable::kOverdue;
  EXPECT_TRUE(trims_.TakeIgnored().empty()) << "it was named a second ago";
  EXPECT_EQ(tables_.sessions.at(kSecond).trims_ignored, 2u);
}

TEST_F(TrimRequestsTest, ASessionThatIsStoppedHasNoOrdersAndGetsNone) {
  Hold(kSecond, device_, 64_MiB);
  Waiter waiter = Request(kSession, device_, 20_MiB);
  ASSERT_TRUE(trims_.AskUnderLimit(waiter, 20_MiB));
  trims_.Stop(kSecond);
  EXPECT_TRUE(trims_.TakeOrders(kSecond).empty());
  EXPECT_FALSE(trims_.AskUnderLimit(waiter, 20_MiB));
}

}  // namespace
}  // namespace lgpu
