#include "allocator/pool/chunk_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

namespace lgpu {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr Bytes kPage = 2_MiB;

Chunk Make(std::uint64_t id, std::uint64_t pages) { return {ChunkId{id}, kPage * pages}; }

std::vector<std::uint64_t> Ids(std::span<const Chunk> chunks) {
  std::vector<std::uint64_t> ids;
  for (const Chunk& chunk : chunks) ids.push_back(chunk.id.value);
  return ids;
}

// A region whose first pages are mapped, chunk by chunk, and free.
class ChunkStoreTest : public ::testing::Test {
 protected:
  void Map(const std::vector<std::uint64_t>& pages_of_chunks) {
    std::uint64_t pages = 0;
    for (const std::uint64_t n : pages_of_chunks) pages += n;
    const Suballocator::Request request{.bytes = kPage * pages};
    const auto place = blocks_.PlanGrowth(request, {});
    ASSERT_TRUE(place);
    const auto claim = blocks_.ClaimGrowth(request, *place, {place->block.offset, kPage * pages});
    Bytes at = place->block.offset;
    std::vector<Suballocator::Range> places;
    for (const std::uint64_t n : pages_of_chunks) {
      const Chunk chunk = Make(next_id_++, n);
      store_.NoteGranted(chunk);
      store_.NoteMapped(at, chunk);
      places.push_back({at, chunk.bytes});
      at += chunk.bytes;
    }
    block_ = blocks_.Commit(claim, places);
  }
  void FreeAt(Suballocator::Stamp stamp) { blocks_.Free(block_, stamp); }
  void Check(bool in_flight = false) const {
    EXPECT_TRUE(store_.CheckInvariants(in_flight).ok()) << store_.CheckInvariants(in_flight);
  }

  Suballocator blocks_{kPage * 64, kPage};
  ChunkStore store_{kPage};
  Suballocator::Handle block_ = 0;
  std::uint64_t next_id_ = 1;
};

TEST_F(ChunkStoreTest, HeldCountsChunksInHandsUntilTheyAreReturned) {
  const Chunk a = Make(1, 1);
  const Chunk b = Make(2, 3);
  store_.NoteGranted(a);
  store_.NoteGranted(b);
  EXPECT_EQ(store_.held(), kPage * 4);
  EXPECT_FALSE(store_.CheckInvariants(false).ok()) << "no call is on its way, and 4 pages are nowhere";
  Check(true);
  store_.AddSpare(a);
  EXPECT_EQ(store_.spare_bytes(), kPage);
  store_.NoteReturned(std::vector<Chunk>{b});
  EXPECT_EQ(store_.held(), kPage);
  Check();
}

TEST_F(ChunkStoreTest, TakesOnlySpareChunksOfTheList) {
  for (std::uint64_t id = 1; id <= 3; ++id) {
    store_.NoteGranted(Make(id, id));
    store_.AddSpare(Make(id, id));
  }
  EXPECT_THAT(Ids(store_.TakeSpare(std::vector<Chunk>{Make(3, 3), Make(9, 1)})), ElementsAre(3));
  EXPECT_EQ(store_.spare_bytes(), kPage * 3);
  EXPECT_THAT(Ids(store_.spare()), ElementsAre(1, 2));
}

TEST_F(ChunkStoreTest, TakesSpareChunksThatFitIntoTheAmountLastOnesFirst) {
  for (const auto& [id, pages] : {std::pair{1, 1}, {2, 4}, {3, 2}}) {
    store_.NoteGranted(Make(id, pages));
    store_.AddSpare(Make(id, pages));
  }
  EXPECT_THAT(Ids(store_.TakeSpareUpTo(kPage * 3)), ElementsAre(3, 1));
  EXPECT_THAT(Ids(store_.spare()), ElementsAre(2));
  EXPECT_EQ(store_.TakeLastSpare()->id.value, 2u);
  EXPECT_FALSE(store_.TakeLastSpare());
  EXPECT_EQ(store_.spare_bytes(), Bytes());
}

TEST_F(ChunkStoreTest, DetachesTheLeastAmountOfWholeIdleChunks) {
  ASSERT_NO_FATAL_FAILURE(Map({1, 2, 1}));
  FreeAt(1);
  const auto runs = store_.DetachIdle(blocks_, {.amount = kPage * 3});
  ASSERT_EQ(runs.size(), 1u);
  EXPECT_THAT(Ids(runs[0].chunks), ElementsAre(3, 2)) << "the highest addresses first";
  EXPECT_EQ(runs[0].range.bytes, kPage * 3);
  blocks_.CommitUnmapped(runs[0].detached);
  store_.NoteUnmapped(runs[0].range);
  EXPECT_EQ(store_.mapped().size(), 1u);
  Check(true);
}

TEST_F(ChunkStoreTest, DetachesNothingWhereLessThanTheAmountIsIdle) {
  ASSERT_NO_FATAL_FAILURE(Map({1, 1}));
  FreeAt(1);
  EXPECT_THAT(store_.DetachIdle(blocks_, {.amount = kPage * 3}), IsEmpty());
  EXPECT_EQ(
      store_.DetachIdle(blocks_, {.amount = kPage * 3, .bound = ChunkStore::Bound::kAtMost})[0].range.bytes,
      kPage * 2);
}

TEST_F(ChunkStoreTest, LeavesChunksThatAreTooLargeOrToBeAvoidedOrUnsettled) {
  ASSERT_NO_FATAL_FAILURE(Map({4, 1, 1}));
  const Bytes first = store_.mapped().begin()->first;
  FreeAt(5);
  const ChunkStore::Wanted all{.amount = kPage * 6, .bound = ChunkStore::Bound::kAtMost, .settled = 4};
  EXPECT_THAT(store_.DetachIdle(blocks_, all), IsEmpty()) << "freed later than what is settled";
  ChunkStore::Wanted wanted = all;
  wanted.settled = 5;
  wanted.largest_chunk = kPage;
  wanted.avoid = {first + kPage * 4, kPage};  // the second chunk
  const auto runs = store_.DetachIdle(blocks_, wanted);
  ASSERT_EQ(runs.size(), 1u);
  EXPECT_THAT(Ids(runs[0].chunks), ElementsAre(3));
}

TEST_F(ChunkStoreTest, OnlyAStraddlingRequestTakesAChunkThatOverlapsTheAvoidedRange) {
  ASSERT_NO_FATAL_FAILURE(Map({4}));
  const Bytes first = store_.mapped().begin()->first;
  FreeAt(1);
  ChunkStore::Wanted wanted{.amount = kPage, .avoid = {first + kPage, kPage}};
  EXPECT_THAT(store_.DetachIdle(blocks_, wanted), IsEmpty());
  wanted.straddling = true;
  EXPECT_EQ(store_.DetachIdle(blocks_, wanted).size(), 1u);
}

TEST_F(ChunkStoreTest, InvariantsFindChunksThatOverlap) {
  store_.NoteGranted(Make(1, 2));
  store_.NoteGranted(Make(2, 1));
  store_.NoteMapped(Bytes(), Make(1, 2));
  store_.NoteMapped(kPage, Make(2, 1));
  EXPECT_EQ(store_.CheckInvariants(false).code(), absl::StatusCode::kInternal);
}

}  // namespace
}  // namespace lgpu
