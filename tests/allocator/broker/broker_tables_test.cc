#include "allocator/broker/broker_tables.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "lgpu/bytes.h"
#include "tests/allocator/broker/tables_fixture.h"

namespace lgpu {
namespace {

using ::testing::HasSubstr;

/// Accounts of one session with a chunk and a charge that add up. The property tests believe CheckInvariants:
/// here each account is changed behind its back.
class BrokerTablesTest : public TablesFixture {
 protected:
  BrokerTablesTest() {
    ChunkEntry& chunk = tables_.chunks[kChunk];
    chunk.session = kSession;
    chunk.device = device_;
    chunk.bytes = 4_MiB;
    charge().lent = 6_MiB;
    charge().held[device_] = 6_MiB;
    charge().logged[device_] = 6_MiB;
    tables_.charging.insert({card_, kSession});
    session().held = 10_MiB;
    device().lent = 6_MiB;
    EXPECT_EQ(tables_.ledger.Request(device_, 10_MiB).shortage, Ledger::Shortage::kNone);
    ExpectInStep();
  }

  SessionEntry& session() { return tables_.sessions.at(kSession); }
  CardCharge& charge() { return session().charges[card_]; }
  DeviceEntry& device() { return tables_.devices.at(device_); }
  std::string Broken() const {
    const absl::Status status = tables_.CheckInvariants();
    EXPECT_TRUE(absl::IsInternal(status)) << status;
    return std::string(status.message());
  }

  static constexpr ChunkId kChunk{1};
  const LogicalId device_ = AddDevice(64_MiB);
};

TEST_F(BrokerTablesTest, ADeviceThatTheLedgerHasNotIsNoticed) {
  tables_.devices[LogicalId{99}];
  EXPECT_THAT(Broken(), HasSubstr("the ledger has 1 logical devices, the tables have 2"));
}

TEST_F(BrokerTablesTest, AChunkThatTheLedgerHasNotIsNoticed) {
  tables_.chunks[ChunkId{2}] = tables_.chunks.at(kChunk);
  EXPECT_THAT(Broken(), HasSubstr("chunks and charges say"));
}

TEST_F(BrokerTablesTest, AChunkThatLeavesForTheTablesAloneIsNoticed) {
  tables_.chunks.at(kChunk).state = ChunkEntry::State::kReturning;
  EXPECT_THAT(Broken(), HasSubstr("leaving, chunks and charges say"));
}

TEST_F(BrokerTablesTest, ASessionsSumThatIsWrongIsNoticed) {
  session().held += 2_MiB;
  EXPECT_THAT(Broken(), HasSubstr("session 1 holds"));
}

TEST_F(BrokerTablesTest, AChargeThatNothingIsHeldForIsNoticed) {
  charge().lent = 8_MiB;
  EXPECT_THAT(Broken(), HasSubstr("session 1 was lent"));
}

TEST_F(BrokerTablesTest, AChargeThatIsNotInTheListOfChargesIsNoticed) {
  tables_.charging.clear();
  EXPECT_THAT(Broken(), HasSubstr("session 1 was lent"));
}

TEST_F(BrokerTablesTest, AChargeThatTheNextLgpudWouldNotKnowIsNoticed) {
  charge().logged[device_] = 4_MiB;
  EXPECT_THAT(Broken(), HasSubstr("the log has less"));
  charge().logged.clear();
  EXPECT_THAT(Broken(), HasSubstr("the log has less"));
}

TEST_F(BrokerTablesTest, ADevicesSumOfChargesThatIsWrongIsNoticed) {
  device().lent = 4_MiB;
  EXPECT_THAT(Broken(), HasSubstr("has lent"));
}

TEST_F(BrokerTablesTest, ARequestWhosePhaseAndQueueDifferIsNoticed) {
  waiting_.waiters[WaiterId{1}].card = card_;
  waiting_.waiters[WaiterId{1}].phase = Waiter::Phase::kCard;
  EXPECT_THAT(std::string(waiting_.CheckInvariants().message()),
              HasSubstr("does not stand in its card's queue"));
}

TEST_F(BrokerTablesTest, APlaceInAQueueThatNoRequestHasIsNoticed) {
  waiting_.queues.at(card_).Join(WaiterId{7}, "ann");
  EXPECT_THAT(std::string(waiting_.CheckInvariants().message()),
              HasSubstr("1 requests stand in queues, 0 wait there"));
}

TEST_F(BrokerTablesTest, MemoryThatIsSetAsideForNoRequestIsNoticed) {
  waiting_.waiters[WaiterId{1}].card = card_;
  waiting_.waiters[WaiterId{1}].aside = 2_MiB;
  EXPECT_THAT(std::string(waiting_.CheckInvariants().message()), HasSubstr("set aside, the ledger has not"));
}

}  // namespace
}  // namespace lgpu
