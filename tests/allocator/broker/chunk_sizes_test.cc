#include "allocator/broker/chunk_sizes.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

namespace lgpu {
namespace {

PhysicalDevice Card(bool simulated) {
  PhysicalDevice card;
  card.granularity = 2_MiB;
  card.simulated = simulated;
  return card;
}

Bytes SumOf(const std::vector<Bytes>& sizes) {
  Bytes sum;
  for (const Bytes size : sizes) sum += size;
  return sum;
}

std::uint64_t CountOf(const std::vector<Bytes>& sizes, Bytes size) {
  return static_cast<std::uint64_t>(std::count(sizes.begin(), sizes.end(), size));
}

DeviceGrowth Growth(Bytes needed, Bytes granted, Bytes held = 64_GiB, Bytes limit = 80_GiB) {
  return {.needed = needed, .granted = granted, .held = held, .limit = limit};
}

TEST(ChunkSizesTest, SmallGrowthIsSingleGranules) {
  EXPECT_EQ(ChunkSizesForGrowth(Card(true), Growth(62_MiB, 62_MiB)), std::vector<Bytes>(31, 2_MiB));
  EXPECT_EQ(ChunkSizesForGrowth(Card(false), Growth(30_MiB, 30_MiB)), std::vector<Bytes>(15, 2_MiB))
      << "it may be for small blocks, which lie in no other chunks";
  EXPECT_TRUE(ChunkSizesForGrowth(Card(true), Growth(Bytes(), Bytes())).empty());
  EXPECT_TRUE(ChunkSizesForGrowth(Card(false), Growth(Bytes(), Bytes())).empty());
}

TEST(ChunkSizesTest, SimulatedGrowthAheadOfNeedLiesInChunksOfItsOwn) {
  EXPECT_EQ(ChunkSizesForGrowth(Card(true), Growth(70_MiB, 134_MiB)),
            (std::vector<Bytes>{32_MiB, 32_MiB, 2_MiB, 2_MiB, 2_MiB, 32_MiB, 32_MiB}));
  EXPECT_EQ(ChunkSizesForGrowth(Card(true), Growth(1_GiB, 1_GiB)), std::vector<Bytes>(32, 32_MiB));
}

TEST(ChunkSizesTest, ChunksOfAGpuGrowWithTheHeldMemoryUpToAShareOfTheLimit) {
  const auto first = [](Bytes needed, Bytes held, Bytes limit) {
    return ChunkSizesForGrowth(Card(false), Growth(needed, 256_MiB, held, limit)).front();
  };
  EXPECT_EQ(first(2_MiB, 512_MiB, 80_GiB), 8_MiB) << "a 64th of the held memory";
  EXPECT_EQ(first(2_MiB, 4_GiB, 80_GiB), 64_MiB);
  EXPECT_EQ(first(256_MiB, 512_MiB, 80_GiB), 32_MiB) << "an eighth of a larger need";
  EXPECT_EQ(first(2_MiB, 60_GiB, 60_GiB), 128_MiB) << "a 480th of the limit";
  EXPECT_EQ(first(2_MiB, 4_GiB, 4_GiB), 8_MiB);
  EXPECT_EQ(first(2_MiB, 256_MiB, 300_MiB), 2_MiB) << "a granule at least";
  EXPECT_EQ(first(2_MiB, 500_GiB, 1024_GiB), 256_MiB) << "at most";
}

TEST(ChunkSizesTest, ChunksOfAGpuAreTheGrantedBytesAndFitIntoThem) {
  for (Bytes bytes = 2_MiB; bytes <= 600_MiB; bytes += 2_MiB) {
    const std::vector<Bytes> sizes = ChunkSizesForGrowth(Card(false), Growth(2_MiB, bytes));
    EXPECT_EQ(SumOf(sizes), bytes);
    EXPECT_TRUE(std::is_sorted(sizes.rbegin(), sizes.rend()));
    EXPECT_LE(sizes.front(), 128_MiB);
  }
}

TEST(ChunkSizesTest, AtLeastAnEighthOfAPreallocatedDeviceIsSingleGranules) {
  for (Bytes bytes = 2_MiB; bytes <= 2_GiB; bytes += 2_MiB) {
    const std::vector<Bytes> sizes = ChunkSizesForPreallocation(Card(false), bytes);
    EXPECT_EQ(SumOf(sizes), bytes);
    EXPECT_GE(2_MiB * CountOf(sizes, 2_MiB), bytes / 8);
    EXPECT_EQ(CountOf(sizes, 2_MiB) + CountOf(sizes, 32_MiB), sizes.size());
  }
}

}  // namespace
}  // namespace lgpu
