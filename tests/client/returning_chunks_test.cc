// A chunk on its way back has one state, in each order of its holder, its Return and the daemon's restart.

#include "client/session/returning_chunks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "proto/wire/channel.h"

namespace lgpu {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using State = ReturningChunks::State;

constexpr std::uint64_t kDevice = 1;
constexpr bool kAway = true, kThere = false;
const std::vector<ChunkId> kChunks{ChunkId{4}, ChunkId{5}};

std::vector<std::uint64_t> IdsOf(const std::vector<ReturningChunks::Batch>& batches) {
  std::vector<std::uint64_t> ids;
  for (const auto& batch : batches) ids.insert(ids.end(), batch.chunks.begin(), batch.chunks.end());
  return ids;
}

TEST(ReturningChunksTest, AReturnThatIsAnsweredLeavesNothingBehind) {
  ReturningChunks returning;
  returning.Leave(kChunks);
  EXPECT_TRUE(returning.Contains(4));
  EXPECT_EQ(returning.StillToReturn(kDevice, kChunks, kThere), kChunks);
  returning.Settle(kChunks);
  EXPECT_FALSE(returning.Contains(4));
}

TEST(ReturningChunksTest, AChunkThatLeavesBeforeTheAttestationIsReturnedByItsAbsence) {
  ReturningChunks returning;
  returning.Leave(kChunks);
  returning.LeaveOutOfAttestation();
  EXPECT_TRUE(returning.Contains(4));  // the next attempt leaves it out, too
  EXPECT_THAT(returning.StillToReturn(kDevice, kChunks, kAway), IsEmpty());
  EXPECT_THAT(returning.GoToNextDaemon(), IsEmpty());
  EXPECT_THAT(returning.StillToReturn(kDevice, kChunks, kThere), IsEmpty());
  returning.Postpone({.grant = 0, .device = kDevice, .chunks = {4}});  // a Return to the daemon that is gone
  EXPECT_THAT(returning.StillToReturn(kDevice, kChunks, kThere), IsEmpty());
  returning.Settle(kChunks);
  EXPECT_FALSE(returning.Contains(4));
  EXPECT_FALSE(returning.Contains(5));
}

TEST(ReturningChunksTest, AChunkThatLeavesAfterTheAttestationIsOwedToTheNextDaemon) {
  ReturningChunks returning;
  returning.LeaveOutOfAttestation();
  returning.Leave(kChunks);
  EXPECT_THAT(returning.StillToReturn(kDevice, kChunks, kAway), IsEmpty());
  returning.Settle(kChunks);
  const std::vector<ReturningChunks::Batch> owed = returning.GoToNextDaemon();
  ASSERT_EQ(owed.size(), 1u);
  EXPECT_EQ(owed[0].device, kDevice);
  EXPECT_THAT(owed[0].chunks, ElementsAre(4, 5));
  EXPECT_THAT(returning.GoToNextDaemon(), IsEmpty());
}

TEST(ReturningChunksTest, AChunkThatIsOwedIsNotAttested) {
  ReturningChunks returning;
  EXPECT_THAT(returning.StillToReturn(kDevice, kChunks, kAway), IsEmpty());
  EXPECT_TRUE(returning.Contains(5));
  returning.LeaveOutOfAttestation();
  EXPECT_THAT(returning.GoToNextDaemon(), IsEmpty());
}

TEST(ReturningChunksTest, AnUnsentReturnOutlivesItsCallAndNotItsDaemon) {
  ReturningChunks returning;
  returning.Leave(kChunks);
  returning.Postpone({.grant = 0, .device = kDevice, .chunks = {4, 5}});
  returning.Settle(kChunks);
  EXPECT_THAT(IdsOf(returning.Take(State::kUnsent)), ElementsAre(4, 5));
  returning.Postpone({.grant = 0, .device = kDevice, .chunks = {4}});
  EXPECT_THAT(returning.GoToNextDaemon(), IsEmpty());
  EXPECT_THAT(returning.Take(State::kUnsent), IsEmpty());
}

TEST(ReturningChunksTest, AnUnwantedGrantIsABatchOfItsOwn) {
  ReturningChunks returning;
  returning.AddUnwanted({.grant_id = 2, .device_id = kDevice, .chunks = {{.id = 9}, {.id = 7}}});
  returning.AddUnwanted({.grant_id = 3, .device_id = kDevice, .chunks = {{.id = 8}}});
  const std::vector<ReturningChunks::Batch> unwanted = returning.Take(State::kUnwanted);
  ASSERT_EQ(unwanted.size(), 2u);
  EXPECT_EQ(unwanted[0].grant, 2u);
  EXPECT_THAT(unwanted[0].chunks, ElementsAre(7, 9));
  EXPECT_EQ(unwanted[1].grant, 3u);
  EXPECT_THAT(returning.Take(State::kUnwanted), IsEmpty());
  returning.AddUnwanted({.grant_id = 4, .device_id = kDevice, .chunks = {{.id = 6}}});
  EXPECT_THAT(returning.GoToNextDaemon(), IsEmpty());
  EXPECT_THAT(returning.Take(State::kUnwanted), IsEmpty());
}

TEST(ReturningChunksTest, ABatchFitsIntoOneRequest) {
  ReturningChunks returning;
  std::vector<ChunkId> many;
  for (std::uint64_t id = 1; id <= wire::Protocol::kMaxReturnChunks + 1; ++id) many.push_back(ChunkId{id});
  EXPECT_THAT(returning.StillToReturn(kDevice, many, kAway), IsEmpty());
  const std::vector<ReturningChunks::Batch> owed = returning.Take(State::kOwed);
  ASSERT_EQ(owed.size(), 2u);
  EXPECT_EQ(owed[0].chunks.size(), wire::Protocol::kMaxReturnChunks);
  EXPECT_EQ(owed[1].chunks.size(), 1u);
}

}  // namespace
}  // namespace lgpu
