#include "allocator/broker/chunk_table.h"

#include <gtest/gtest.h>

#include <vector>

#include "lgpu/bytes.h"
#include "tests/allocator/broker/tables_fixture.h"

namespace lgpu {
namespace {

// A preallocated device that has no chunks yet.
class ChunkTableTest : public TablesFixture {
 protected:
  ChunkId AddSpare(Bytes bytes) {
    EXPECT_EQ(tables_.ledger.Request(device_, bytes).shortage, Ledger::Shortage::kNone);
    tables_.devices.at(device_).booked += bytes;
    return chunks_.Register(device_, SessionId(), {.bytes = bytes, .memory = {}});
  }
  void SetLimit(Bytes limit) {
    EXPECT_TRUE(tables_.ledger.Resize(device_, {.limit = limit, .guarantee = limit}).ok());
  }

  ChunkTable chunks_{tables_};
  const LogicalId device_ = AddDevice(64_MiB, true);
};

TEST_F(ChunkTableTest, SmallChunksStayForSmallRequests) {
  const ChunkId large = AddSpare(32_MiB);
  const ChunkId small = AddSpare(2_MiB);
  EXPECT_EQ(chunks_.PickSpare(device_, 32_MiB, 32_MiB), std::vector<ChunkId>{large});
  EXPECT_EQ(chunks_.PickSpare(device_, 2_MiB, 2_MiB), std::vector<ChunkId>{small});
  EXPECT_EQ(chunks_.PickSpare(device_, 4_MiB, 4_MiB), (std::vector<ChunkId>{small, large}));
  EXPECT_TRUE(chunks_.PickSpare(device_, 36_MiB, 36_MiB).empty());
}

TEST_F(ChunkTableTest, AGrantedChunkIsInTheLogUntilItIsFree) {
  const ChunkId id = AddSpare(4_MiB);
  const std::vector<Chunk> granted = chunks_.Grant(kSession, {id});
  ASSERT_EQ(granted.size(), 1u);
  EXPECT_EQ(log_.granted().size(), 1u);
  EXPECT_EQ(tables_.sessions.at(kSession).held, 4_MiB);
  chunks_.GiveBack(tables_.chunks.at(id), ChunkEntry::State::kReturning);
  EXPECT_EQ(log_.granted().size(), 1u);
  ChunkTable::Missing missing;
  chunks_.Settle(id, absl::OkStatus(), missing);
  EXPECT_TRUE(log_.granted().empty());
  EXPECT_TRUE(tables_.sessions.at(kSession).held.is_zero());
  EXPECT_EQ(missing.at(device_), std::vector<Bytes>{4_MiB});
  ExpectInStep();
}

TEST_F(ChunkTableTest, AChunkPartlyBeyondALoweredLimitIsMadeAgainAsTheLimitAllows) {
  const ChunkId small = AddSpare(2_MiB);
  const ChunkId large = AddSpare(32_MiB);
  SetLimit(12_MiB);
  const std::vector<ChunkId> leaving = chunks_.TakeExcessSpare(device_);
  EXPECT_EQ(leaving, (std::vector<ChunkId>{small, large}));
  ChunkTable::Missing missing;
  for (const ChunkId id : leaving) chunks_.Settle(id, absl::OkStatus(), missing);
  EXPECT_EQ(missing.at(device_), std::vector<Bytes>(6, 2_MiB));
  EXPECT_EQ(tables_.devices.at(device_).booked, 12_MiB);
  ExpectInStep();
}

TEST_F(ChunkTableTest, AChunkThatTheBackendDoesNotConfirmStaysHeld) {
  const ChunkId id = AddSpare(4_MiB);
  SetLimit(2_MiB);
  EXPECT_EQ(chunks_.TakeExcessSpare(device_), std::vector<ChunkId>{id});
  ChunkTable::Missing missing;
  chunks_.Settle(id, absl::UnavailableError("pinned"), missing);
  EXPECT_TRUE(missing.empty());
  EXPECT_TRUE(tables_.unconfirmed.contains(id));
  EXPECT_EQ(tables_.ledger.View(device_).leaving, 4_MiB);
  chunks_.Settle(id, absl::OkStatus(), missing);
  EXPECT_TRUE(tables_.unconfirmed.empty());
  EXPECT_EQ(missing.at(device_), std::vector<Bytes>{2_MiB});
  ExpectInStep();
}

TEST_F(ChunkTableTest, ARemovedDeviceIsForgottenWithItsLastChunk) {
  AddSpare(4_MiB);
  tables_.devices.at(device_).removed = true;
  ChunkTable::Missing missing;
  for (const ChunkId id : chunks_.TakeExcessSpare(device_)) chunks_.Settle(id, absl::OkStatus(), missing);
  EXPECT_TRUE(missing.empty());
  EXPECT_FALSE(tables_.devices.contains(device_));
}

}  // namespace
}  // namespace lgpu
