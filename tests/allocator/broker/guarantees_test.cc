#include "allocator/broker/guarantees.h"

#include <gtest/gtest.h>

#include "allocator/broker/overhead_table.h"
#include "allocator/broker/preemptible_leases.h"
#include "lgpu/bytes.h"
#include "tests/allocator/broker/tables_fixture.h"

namespace lgpu {
namespace {

class GuaranteesTest : public TablesFixture {
 protected:
  Waiter Request(GuaranteeWish::For what, Bytes bytes, bool preallocate = false) const {
    Waiter waiter;
    waiter.card = card_;
    waiter.user = "ann";
    waiter.spec.at_least = RoundUp(bytes, 2_MiB);
    waiter.guarantee = {.what = what,
                        .spec = {.card = card_,
                                 .limit = bytes,
                                 .guarantee = bytes,
                                 .preallocate = preallocate,
                                 .lease = kLease},
                        .size = {.limit = bytes, .guarantee = bytes}};
    return waiter;
  }
  WaiterId SetAsideForLease(Bytes bytes) {
    const WaiterId id = waiting_.NewWaiter();
    Waiter waiter = Request(GuaranteeWish::For::kReservation, bytes);
    EXPECT_TRUE(guarantees_.SetAside(id, waiter).ok());
    return id;
  }
  Broker::DeviceSpec Device(WaiterId room) const {
    return {.card = card_, .limit = 64_MiB, .lease = {}, .room = room};
  }

  OverheadTable overheads_{tables_};
  PreemptibleLeases preemptible_{tables_, overheads_};
  Guarantees guarantees_{tables_, waiting_, preemptible_};
};

TEST_F(GuaranteesTest, WhatIsSetAsideForALeaseIsPromisedUntilItIsFreed) {
  const WaiterId id = SetAsideForLease(63_MiB);
  EXPECT_EQ(View().promised, 64_MiB);
  EXPECT_TRUE(guarantees_.Free(id));
  EXPECT_EQ(View().promised, Bytes());
  EXPECT_FALSE(guarantees_.Free(id));
  ExpectInStep();
}

TEST_F(GuaranteesTest, NothingChangesWhereTheCardHasTooLittle) {
  AddDevice(200_MiB, true);
  for (const auto what : {GuaranteeWish::For::kReservation, GuaranteeWish::For::kNewDevice}) {
    Waiter waiter = Request(what, 64_MiB);
    EXPECT_TRUE(absl::IsResourceExhausted(guarantees_.SetAside(waiting_.NewWaiter(), waiter)));
    EXPECT_FALSE(waiter.guarantee->is_set_aside);
  }
  EXPECT_EQ(View().promised, 200_MiB);
  EXPECT_EQ(tables_.devices.size(), 1u);
  ExpectInStep();
}

TEST_F(GuaranteesTest, DevicesTakeWhatWasSetAsidePieceByPiece) {
  EXPECT_FALSE(guarantees_.TakeFrom(Device(waiting_.NewWaiter()), 64_MiB));
  const WaiterId id = SetAsideForLease(96_MiB);
  EXPECT_TRUE(guarantees_.TakeFrom(Device(id), 64_MiB));
  EXPECT_EQ(View().promised, 32_MiB);
  EXPECT_FALSE(guarantees_.TakeFrom(Device(id), 64_MiB));
  EXPECT_EQ(View().promised, Bytes());
  ExpectInStep();
}

TEST_F(GuaranteesTest, TheChunksOfANewPreallocatedDeviceAreCharged) {
  Waiter waiter = Request(GuaranteeWish::For::kNewDevice, 64_MiB, /*preallocate=*/true);
  ASSERT_TRUE(guarantees_.SetAside(waiting_.NewWaiter(), waiter).ok());
  EXPECT_EQ(waiter.booked, 64_MiB);
  EXPECT_EQ(tables_.devices.at(waiter.spec.device).booked, 64_MiB);
  ExpectInStep();
}

TEST_F(GuaranteesTest, AResizeRemembersTheSizeBefore) {
  const LogicalId device = AddDevice(64_MiB, true);
  Waiter waiter = Request(GuaranteeWish::For::kResize, 128_MiB);
  waiter.spec.device = device;
  ASSERT_TRUE(guarantees_.SetAside(waiting_.NewWaiter(), waiter).ok());
  EXPECT_EQ(tables_.ledger.View(device).limit, 128_MiB);
  EXPECT_EQ(waiter.guarantee->before.limit, 64_MiB);
  EXPECT_EQ(waiter.guarantee->before.guarantee, 64_MiB);
}

}  // namespace
}  // namespace lgpu
