#include "allocator/broker/room_table.h"

#include <gtest/gtest.h>

#include "lgpu/bytes.h"
#include "tests/allocator/broker/tables_fixture.h"

namespace lgpu {
namespace {

class RoomTableTest : public TablesFixture {
 protected:
  WaiterId Ask(Bytes bytes) { return rooms_.AddTicket({.card = card_, .bytes = bytes, .owner = "ann"}); }
  Broker::DeviceSpec Device(WaiterId room) const {
    return {.card = card_, .limit = 64_MiB, .lease = {}, .room = room};
  }

  RoomTable rooms_{tables_};
};

TEST_F(RoomTableTest, AGuaranteeThatFitsIsSetAside) {
  const WaiterId id = Ask(63_MiB);
  EXPECT_TRUE(tables_.queues.at(card_).Contains(id));
  EXPECT_TRUE(rooms_.Try(id));
  EXPECT_FALSE(tables_.queues.at(card_).Contains(id));
  EXPECT_EQ(View().promised, 64_MiB);
  EXPECT_TRUE(rooms_.RemoveTicket(id));
  EXPECT_EQ(View().promised, Bytes());
  ExpectInStep();
}

TEST_F(RoomTableTest, AGuaranteeThatDoesNotFitWaits) {
  AddDevice(200_MiB, true);
  const WaiterId id = Ask(64_MiB);
  EXPECT_FALSE(rooms_.Try(id));
  ExpectInStep();
  EXPECT_FALSE(rooms_.RemoveTicket(id));
  EXPECT_FALSE(tables_.queues.at(card_).Contains(id));
  ExpectInStep();
}

TEST_F(RoomTableTest, DevicesTakeTheGuaranteePieceByPiece) {
  const WaiterId id = Ask(96_MiB);
  EXPECT_FALSE(rooms_.TakeFromTicket(Device(id), 64_MiB));
  ASSERT_TRUE(rooms_.Try(id));
  EXPECT_TRUE(rooms_.TakeFromTicket(Device(id), 64_MiB));
  EXPECT_EQ(View().promised, 32_MiB);
  EXPECT_FALSE(rooms_.TakeFromTicket(Device(id), 64_MiB));
  EXPECT_EQ(View().promised, Bytes());
  rooms_.RemoveTicket(id);
  ExpectInStep();
}

}  // namespace
}  // namespace lgpu
