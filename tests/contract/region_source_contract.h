#ifndef LGPU_TESTS_CONTRACT_REGION_SOURCE_CONTRACT_H_
#define LGPU_TESTS_CONTRACT_REGION_SOURCE_CONTRACT_H_

// The promises of every RegionSource, as tests. A source joins with
//
//   INSTANTIATE_TEST_SUITE_P(Leased, RegionSourceContract, ::testing::Values(factory), RegionSourceName);

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "lgpu/bytes.h"
#include "lgpu/refusal.h"
#include "lgpu/region_source.h"

namespace lgpu {

/// One world with one logical device. Destroyed after its source.
class RegionSourceWorld {
 public:
  virtual ~RegionSourceWorld() = default;
  virtual std::unique_ptr<RegionSource> TakeSource() = 0;  // once
  /// The bytes that the upstream counts as held by the source.
  virtual Bytes held() = 0;
};

struct RegionSourceFactory {
  std::string name;
  /// A world whose logical device has this limit, on a card with room for it.
  std::function<std::unique_ptr<RegionSourceWorld>(Bytes limit)> make;
};

inline std::string RegionSourceName(const ::testing::TestParamInfo<RegionSourceFactory>& info) {
  return info.param.name;
}
inline void PrintTo(const RegionSourceFactory& factory, std::ostream* out) { *out << factory.name; }

class RegionSourceContract : public ::testing::TestWithParam<RegionSourceFactory> {
 protected:
  static constexpr Bytes kLimit = 16_MiB;

  void SetUp() override {
    world_ = GetParam().make(kLimit);
    ASSERT_NE(world_, nullptr);
    source_ = world_->TakeSource();
    ASSERT_NE(source_, nullptr);
    unit_ = source_->granularity();
  }

  std::vector<Chunk> MustGrow(Bytes bytes) {
    absl::StatusOr<std::vector<Chunk>> chunks = source_->Grow({.at_least = bytes, .wanted = bytes});
    EXPECT_TRUE(chunks.ok()) << chunks.status();
    return chunks.ok() ? *chunks : std::vector<Chunk>();
  }
  static Bytes Sum(const std::vector<Chunk>& chunks) {
    Bytes sum;
    for (const Chunk& chunk : chunks) sum += chunk.bytes;
    return sum;
  }
  static std::vector<ChunkId> Ids(const std::vector<Chunk>& chunks) {
    std::vector<ChunkId> ids;
    for (const Chunk& chunk : chunks) ids.push_back(chunk.id);
    return ids;
  }
  static std::vector<ChunkPlacement> PlaceFrom(Bytes offset, const std::vector<Chunk>& chunks) {
    std::vector<ChunkPlacement> placements;
    for (const Chunk& chunk : chunks) {
      placements.push_back({chunk.id, offset});
      offset += chunk.bytes;
    }
    return placements;
  }

  std::unique_ptr<RegionSourceWorld> world_;
  std::unique_ptr<RegionSource> source_;
  Bytes unit_;
};

TEST_P(RegionSourceContract, RegionHasRoomForTheLimitAndIsAligned) {
  EXPECT_EQ(unit_.count() & (unit_.count() - 1), 0u);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(source_->base()) % unit_.count(), 0u);
  EXPECT_EQ(RoundDown(source_->reserved(), unit_), source_->reserved());
  EXPECT_GE(source_->reserved(), kLimit * 4);
  EXPECT_EQ(source_->limit(), kLimit);
}

TEST_P(RegionSourceContract, GrowGivesAtLeastTheAskedBytesInWholeUnits) {
  const std::vector<Chunk> chunks = MustGrow(unit_ * 3);
  EXPECT_GE(Sum(chunks), unit_ * 3);
  std::set<std::uint64_t> ids;
  for (const Chunk& chunk : chunks) {
    EXPECT_EQ(RoundDown(chunk.bytes, unit_), chunk.bytes);
    EXPECT_FALSE(chunk.bytes.is_zero());
    EXPECT_TRUE(chunk.id);
    EXPECT_TRUE(ids.insert(chunk.id.value).second) << "two chunks with one id";
  }
  EXPECT_EQ(world_->held(), Sum(chunks));
}

TEST_P(RegionSourceContract, GrowBeyondTheLimitIsRefusedAndChangesNothing) {
  MustGrow(kLimit - unit_);
  const auto refused = source_->Grow({.at_least = unit_ * 2, .wanted = unit_ * 2});
  ASSERT_TRUE(absl::IsResourceExhausted(refused.status())) << refused.status();
  const std::optional<Refusal> refusal = GetRefusal(refused.status());
  ASSERT_TRUE(refusal.has_value());
  EXPECT_EQ(refusal->reason, RefusalReason::kLimit);
  EXPECT_EQ(world_->held(), kLimit - unit_);
  EXPECT_EQ(Sum(MustGrow(unit_)), unit_);
}

TEST_P(RegionSourceContract, WantedIsNotWaitedForAndNeverExceedsTheLimit) {
  MustGrow(kLimit - unit_ * 2);
  const auto chunks = source_->Grow({.at_least = unit_, .wanted = kLimit});
  ASSERT_TRUE(chunks.ok()) << chunks.status();
  EXPECT_GE(Sum(*chunks), unit_);
  EXPECT_LE(Sum(*chunks), unit_ * 2);
  EXPECT_LE(world_->held(), kLimit);
}

TEST_P(RegionSourceContract, MappedChunksHoldDataAcrossTheirBorders) {
  const std::vector<Chunk> chunks = MustGrow(unit_ * 3);
  ASSERT_TRUE(source_->Map(PlaceFrom(unit_ * 5, chunks)).ok());
  std::byte* const start = source_->base() + (unit_ * 5).count();
  const std::size_t bytes = Sum(chunks).count();
  for (std::size_t i = 0; i < bytes; i += 4096) start[i] = static_cast<std::byte>(i / 4096 * 37);
  for (std::size_t i = 0; i < bytes; i += 4096) {
    ASSERT_EQ(start[i], static_cast<std::byte>(i / 4096 * 37)) << i;
  }
}

TEST_P(RegionSourceContract, ChunksMoveToAnotherAddress) {
  const std::vector<Chunk> chunks = MustGrow(unit_ * 2);
  ASSERT_TRUE(source_->Map(PlaceFrom(Bytes(), chunks)).ok());
  ASSERT_TRUE(source_->Unmap(Ids(chunks)).ok());
  ASSERT_TRUE(source_->Map(PlaceFrom(kLimit * 2, chunks)).ok());
  std::memset(source_->base() + (kLimit * 2).count(), 0x5a, Sum(chunks).count());
  const std::vector<Chunk> others = MustGrow(unit_);
  EXPECT_TRUE(source_->Map(PlaceFrom(Bytes(), others)).ok()) << "the old place is free again";
}

TEST_P(RegionSourceContract, MapOfATakenPlaceMapsNoneOfThem) {
  const std::vector<Chunk> first = MustGrow(unit_);
  ASSERT_TRUE(source_->Map(PlaceFrom(unit_ * 4, first)).ok());
  const std::vector<Chunk> a = MustGrow(unit_);
  const std::vector<Chunk> b = MustGrow(unit_);
  const ChunkPlacement placements[] = {{a[0].id, Bytes()}, {b[0].id, unit_ * 4}};
  EXPECT_FALSE(source_->Map(placements).ok());
  EXPECT_TRUE(source_->Map(PlaceFrom(Bytes(), a)).ok()) << "a was left mapped";
  EXPECT_TRUE(source_->Map(PlaceFrom(unit_ * 8, b)).ok());
}

TEST_P(RegionSourceContract, UnknownAndWrongChunksAreErrors) {
  const std::vector<Chunk> chunks = MustGrow(unit_);
  const ChunkId unknown[] = {ChunkId{0xdeadbeef}};
  const ChunkPlacement nowhere[] = {{unknown[0], Bytes()}};
  EXPECT_FALSE(source_->Map(nowhere).ok());
  EXPECT_FALSE(source_->Unmap(unknown).ok());
  EXPECT_FALSE(source_->Return(unknown).ok());
  EXPECT_FALSE(source_->Unmap(Ids(chunks)).ok()) << "it is not mapped";
  ASSERT_TRUE(source_->Map(PlaceFrom(Bytes(), chunks)).ok());
  EXPECT_FALSE(source_->Map(PlaceFrom(unit_ * 4, chunks)).ok()) << "it is mapped";
  EXPECT_FALSE(source_->Return(Ids(chunks)).ok()) << "it is mapped";
  ASSERT_TRUE(source_->Unmap(Ids(chunks)).ok());
  ASSERT_TRUE(source_->Return(Ids(chunks)).ok());
  EXPECT_FALSE(source_->Return(Ids(chunks)).ok()) << "it was returned";
}

TEST_P(RegionSourceContract, ReturnedChunksMakeRoomForOtherSources) {
  for (int round = 0; round < 5; ++round) {
    const std::vector<Chunk> chunks = MustGrow(kLimit);
    ASSERT_EQ(Sum(chunks), kLimit);
    ASSERT_TRUE(source_->Map(PlaceFrom(Bytes(), chunks)).ok());
    ASSERT_TRUE(source_->Unmap(Ids(chunks)).ok());
    ASSERT_TRUE(source_->Return(Ids(chunks)).ok());
  }
  EXPECT_EQ(world_->held(), Bytes());
}

TEST_P(RegionSourceContract, DestructorReturnsTheRemainingChunks) {
  const std::vector<Chunk> mapped = MustGrow(unit_ * 2);
  MustGrow(unit_);
  ASSERT_TRUE(source_->Map(PlaceFrom(unit_, mapped)).ok());
  source_.reset();
  EXPECT_EQ(world_->held(), Bytes());
}

TEST_P(RegionSourceContract, ManyThreadsNeverGetMoreThanTheLimit) {
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < 4; ++t) {
    threads.emplace_back([this, t] {
      for (int round = 0; round < 20; ++round) {
        const auto chunks = source_->Grow({.at_least = unit_ * 2, .wanted = unit_ * 4});
        if (!chunks.ok()) {
          EXPECT_TRUE(absl::IsResourceExhausted(chunks.status())) << chunks.status();
          continue;
        }
        EXPECT_LE(world_->held(), kLimit);
        EXPECT_TRUE(source_->Map(PlaceFrom(unit_ * (4 * t), *chunks)).ok());
        source_->base()[(unit_ * (4 * t)).count()] = std::byte{1};
        EXPECT_TRUE(source_->Unmap(Ids(*chunks)).ok());
        EXPECT_TRUE(source_->Return(Ids(*chunks)).ok());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(world_->held(), Bytes());
}

}  // namespace lgpu

#endif  // LGPU_TESTS_CONTRACT_REGION_SOURCE_CONTRACT_H_
