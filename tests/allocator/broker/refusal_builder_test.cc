#include "allocator/broker/refusal_builder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "lgpu/bytes.h"
#include "lgpu/refusal.h"
#include "tests/allocator/broker/requests_fixture.h"

namespace lgpu {
namespace {

using namespace std::chrono_literals;

using ::testing::HasSubstr;
using ::testing::Not;

class RefusalBuilderTest : public RequestsFixture {
 protected:
  RefusalBuilderTest() {
    AddSession(kSecond, 101);
    AddSession(kThird, 102);
  }
  LogicalId AddNamed(const std::string& lease, const std::string& owner, Bytes limit) {
    const LogicalId device = AddDevice(limit);
    Broker::DeviceSpec& spec = tables_.devices.at(device).spec;
    spec.device_name = "/device:GPU:0";
    spec.lease_name = lease;
    spec.owner = owner;
    return device;
  }

  static constexpr SessionId kSecond{2}, kThird{3};
  const LogicalId mine_ = AddNamed("mine", "ann", 64_MiB);
};

TEST_F(RefusalBuilderTest, AShortLimitNamesTheLimitAndNoCard) {
  Hold(kSession, mine_, 60_MiB);
  const Refusal refusal = refusals_.OfDevice(mine_, {.reason = RefusalReason::kLimit, .asked = 8_MiB});
  EXPECT_EQ(refusal.lease, "mine");
  EXPECT_EQ(refusal.asked, 8_MiB);
  EXPECT_EQ(refusal.limit, 64_MiB);
  EXPECT_EQ(refusal.held, 60_MiB);
  EXPECT_TRUE(refusal.card.empty());
  EXPECT_TRUE(refusal.holders.empty());
  ASSERT_EQ(refusal.advice.size(), 1u);
  EXPECT_THAT(refusal.advice[0], HasSubstr("a higher memory_limit"));
}

TEST_F(RefusalBuilderTest, AShortCardNamesItsOtherHoldersWithTheLargestFirst) {
  Hold(kSession, mine_, 4_MiB);
  Hold(kSecond, AddNamed("small", "bob", 64_MiB), 32_MiB);
  const LogicalId large = AddNamed("large", "cyd", 256_MiB);
  Hold(kSecond, large, 64_MiB);
  Hold(kThird, large, 96_MiB);
  const Refusal refusal = refusals_.OfDevice(mine_, {.reason = RefusalReason::kCard, .asked = 60_MiB});
  EXPECT_EQ(refusal.card_total, 256_MiB);
  EXPECT_EQ(refusal.card_free, 60_MiB);
  ASSERT_EQ(refusal.holders.size(), 2u);
  EXPECT_EQ(refusal.holders[0].lease, "large");
  EXPECT_EQ(refusal.holders[0].held, 160_MiB);
  EXPECT_EQ(refusal.holders[0].pid, 102) << "the process that holds most";
  EXPECT_EQ(refusal.holders[1].lease, "small");
  ASSERT_FALSE(refusal.advice.empty());
  EXPECT_THAT(refusal.advice.back(), HasSubstr("ask cyd to free memory of lease large"));
}

TEST_F(RefusalBuilderTest, IdleHoldersAreNamedAndAskedFirst) {
  const LogicalId large = AddNamed("large", "cyd", 256_MiB);
  const LogicalId small = AddNamed("small", "bob", 64_MiB);
  Hold(kSecond, large, 160_MiB);
  Hold(kThird, small, 32_MiB);
  const RefusalCause cause{.reason = RefusalReason::kCard, .asked = 200_MiB};
  EXPECT_EQ(refusals_.OfDevice(mine_, cause).holders.front().idle, std::nullopt) << "not known";
  tables_.devices.at(large).last_use = tables_.now() + 1s;  // a clock that was read a moment later
  tables_.devices.at(small).last_use = tables_.now() - 12min;
  const Refusal refusal = refusals_.OfDevice(mine_, cause);
  ASSERT_EQ(refusal.holders.size(), 2u);
  EXPECT_EQ(refusal.holders[0].idle, 0ms);
  EXPECT_EQ(refusal.holders[1].idle, 12min);
  ASSERT_FALSE(refusal.advice.empty());
  EXPECT_THAT(refusal.advice.back(),
              HasSubstr("ask bob to free memory of lease small, idle 12 min, or wait longer"));
}

TEST_F(RefusalBuilderTest, ALeaseOfTheSameUserIsTheFirstAdvice) {
  Hold(kSecond, AddNamed("other", "ann", 256_MiB), 200_MiB);
  const Refusal refusal = refusals_.OfDevice(mine_, {.reason = RefusalReason::kCard, .asked = 60_MiB});
  ASSERT_FALSE(refusal.advice.empty());
  EXPECT_THAT(refusal.advice.back(), HasSubstr("lgpu rm other"));
}

TEST_F(RefusalBuilderTest, TheReasonOfAFailedBackendIsAValueAndNotReadFromItsText) {
  const absl::Status text = absl::ResourceExhaustedError("no descriptor is left");
  EXPECT_EQ(RefusalCause::OfBackend(text, 2_MiB).reason, RefusalReason::kBackend);
  Refusal descriptors;
  descriptors.reason = RefusalReason::kDescriptors;
  EXPECT_EQ(RefusalCause::OfBackend(RefusalStatus(descriptors), 2_MiB).reason, RefusalReason::kDescriptors);
}

TEST_F(RefusalBuilderTest, AChargeIsRefusedByTheLimitsOfAllDevicesOfItsLease) {
  AddNamed("mine", "ann", 32_MiB);
  Hold(kSession, mine_, 60_MiB);
  Waiter waiter = Request(kSession, mine_, 40_MiB);
  waiter.charge = {.card = card_, .bytes = 39_MiB, .what = "cuMemAlloc_v2", .card_deadline = now_};
  const Refusal refusal = refusals_.OfCharge(waiter, {.reason = RefusalReason::kLimit});
  EXPECT_EQ(refusal.what, "cuMemAlloc_v2");
  EXPECT_EQ(refusal.asked, 39_MiB);
  EXPECT_EQ(refusal.limit, 96_MiB);
  EXPECT_EQ(refusal.held, 60_MiB);
}

TEST_F(RefusalBuilderTest, AWaitingLeaseIsToldUsersAndNoNamesOfLeases) {
  Hold(kSecond, AddNamed("secret", "bob", 256_MiB), 200_MiB);
  const auto wait = [&](const std::string& user, Bytes bytes) {
    const WaiterId id = waiting_.NewWaiter();
    Waiter waiter;
    waiter.card = card_;
    waiter.user = user;
    waiter.spec = {.session = {},
                   .device = {},
                   .at_least = bytes,
                   .wanted = {},
                   .asked_at = now_,
                   .deadline = now_ + 1h};
    waiter.guarantee = {.what = GuaranteeWish::For::kReservation,
                        .spec = {.card = card_, .limit = bytes, .lease = {}}};
    EXPECT_FALSE(requests_.Settle(id, waiter));
    return id;
  };
  const WaiterId first = wait("cyd", 100_MiB);
  const WaiterId second = wait("ann", 80_MiB);
  const std::string text = refusals_.OfWaitingLease(second, first, /*kept=*/2_MiB);
  EXPECT_THAT(text, HasSubstr("behind user cyd's request"));
  EXPECT_THAT(text, HasSubstr("user bob has most"));
  EXPECT_THAT(text, HasSubstr("2.00MiB is kept for a lease that gave way"));
  EXPECT_THAT(text, Not(HasSubstr("secret")));
}

}  // namespace
}  // namespace lgpu
