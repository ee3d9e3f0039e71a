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

constexpr std::uint64_t kOnDevice = 1;
constexpr bool kDaemonAway = true, kDaemonThere = false;
const std::vector<ChunkId> kTwoLeaving{ChunkId{4}, ChunkId{5}};

std::vector<std::uint64_t> ChunksOf(const std::vector<ReturningChunks::Batch>& batches) {
  std::vector<std::uint64_t> ids;
  for (const auto& batch : batches) ids.insert(ids.end(), batch.chunks.begin(), batch.chunks.end());
  return ids;
}

TEST(ReturningChunksTest, AReturnThatIsAnsweredLeavesNothingBehind) {
  ReturningChunks returning;
  returning.Leave(kTwoLeaving);
  EXPECT_TRUE(returning.Contains(4));
  EXPECT_EQ(returning.StillToReturn(kOnDevice, kTwoLeaving, kDaemonThere), kTwoLeaving);
  returning.Settle(kTwoLeaving);
  EXPECT_FALSE(returning.Contains(4));
}

TEST(ReturningChunksTest, AChunkThatLeavesBeforeTheAttestationIsReturnedByItsAbsence) {
  ReturningChunks returning;
  returning.Leave(kTwoLeaving);
  returning.LeaveOutOfAttestation();
  EXPECT_TRUE(returning.Contains(4));  // the next attempt leaves it out, too
  EXPECT_THAT(returning.StillToReturn(kOnDevice, kTwoLeaving, kDaemonAway), IsEmpty());
  EXPECT_THAT(returning.GoToNextDaemon(), IsEmpty());
  EXPECT_THAT(returning.StillToReturn(kOnDevice, kTwoLeaving, kDaemonThere), IsEmpty());
  returning.Postpone(
      {.grant = 0, .device = kOnDevice, .chunks = {4}});  // a Return to the daemon that is gone
  EXPECT_THAT(returning.StillToReturn(kOnDevice, kTwoLeaving, kDaemonThere), IsEmpty());
  returning.Settle(kTwoLeaving);
  EXPECT_FALSE(returning.Contains(4));
  EXPECT_FALSE(returning.Contains(5));
}

TEST(ReturningChunksTest, AChunkThatLeavesAfterTheAttestationIsOwedToTheNextDaemon) {
  ReturningChunks returning;
  returning.LeaveOutOfAttestation();
  returning.Leave(kTwoLeaving);
  EXPECT_THAT(returning.StillToReturn(kOnDevice, kTwoLeaving, kDaemonAway), IsEmpty());
  returning.Settle(kTwoLeaving);
  const std::vector<ReturningChunks::Batch> owed = returning.GoToNextDaemon();
  ASSERT_EQ(owed.size(), 1u);
  EXPECT_EQ(owed[0].device, kOnDevice);
  EXPECT_THAT(owed[0].chunks, ElementsAre(4, 5));
  EXPECT_THAT(returning.GoToNextDaemon(), IsEmpty());
}

TEST(ReturningChunksTest, AChunkThatIsOwedIsNotAttested) {
  ReturningChunks returning;
  EXPECT_THAT(returning.StillToReturn(kOnDevice, kTwoLeaving, kDaemonAway), IsEmpty());
  EXPECT_TRUE(returning.Contains(5));
  returning.LeaveOutOfAttestation();
  EXPECT_THAT(returning.GoToNextDaemon(), IsEmpty());
}

TEST(ReturningChunksTest, AnUnsentReturnOutlivesItsCallAndNotItsDaemon) {
  ReturningChunks returning;
  returning.Leave(kTwoLeaving);
  returning.Postpone({.grant = 0, .device = kOnDevice, .chunks = {4, 5}});
  returning.Settle(kTwoLeaving);
  EXPECT_THAT(ChunksOf(returning.Take(ReturningChunks::State::kUnsent)), ElementsAre(4, 5));
  returning.Postpone({.grant = 0, .device = kOnDevice, .chunks = {4}});
  EXPECT_THAT(returning.GoToNextDaemon(), IsEmpty());
  EXPECT_THAT(returning.Take(ReturningChunks::State::kUnsent), IsEmpty());
}

TEST(ReturningChunksTest, AnUnwantedGrantIsABatchOfItsOwn) {
  ReturningChunks returning;
  returning.AddUnwanted({.grant_id = 2, .device_id = kOnDevice, .chunks = {{.id = 9}, {.id = 7}}});
  returning.AddUnwanted({.grant_id = 3, .device_id = kOnDevice, .chunks = {{.id = 8}}});
  const std::vector<ReturningChunks::Batch> unwanted = returning.Take(ReturningChunks::State::kUnwanted);
  ASSERT_EQ(unwanted.size(), 2u);
  EXPECT_EQ(unwanted[0].grant, 2u);
  EXPECT_THAT(unwanted[0].chunks, ElementsAre(7, 9));
  EXPECT_EQ(unwanted[1].grant, 3u);
  EXPECT_THAT(returning.Take(ReturningChunks::State::kUnwanted), IsEmpty());
  returning.AddUnwanted({.grant_id = 4, .device_id = kOnDevice, .chunks = {{.id = 6}}});
  EXPECT_THAT(returning.GoToNextDaemon(), IsEmpty());
  EXPECT_THAT(returning.Take(ReturningChunks::State::kUnwanted), IsEmpty());
}

TEST(ReturningChunksTest, ABatchFitsIntoOneRequest) {
  ReturningChunks returning;
  std::vector<ChunkId> many;
  for (std::uint64_t id = 1; id <= wire::Protocol::kMaxReturnChunks + 1; ++id) many.push_back(ChunkId{id});
  EXPECT_THAT(returning.StillToReturn(kOnDevice, many, kDaemonAway), IsEmpty());
  const std::vector<ReturningChunks::Batch> owed = returning.Take(ReturningChunks::State::kOwed);
  ASSERT_EQ(owed.size(), 2u);
  EXPECT_EQ(owed[0].chunks.size(), wire::Protocol::kMaxReturnChunks);
  EXPECT_EQ(owed[1].chunks.size(), 1u);
}

}  // namespace
}  // namespace lgpu
