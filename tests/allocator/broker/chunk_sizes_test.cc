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

TEST(ChunkSizesTest, SmallGrowthIsSingleGranules) {
  EXPECT_EQ(ChunkSizesForGrowth(Card(true), 62_MiB), std::vector<Bytes>(31, 2_MiB));
  EXPECT_TRUE(ChunkSizesForGrowth(Card(true), Bytes()).empty());
}

TEST(ChunkSizesTest, LargeGrowthIsLargeChunksAndGranulesForTheRest) {
  const std::vector<Bytes> sizes = ChunkSizesForGrowth(Card(true), 70_MiB);
  EXPECT_EQ(sizes, (std::vector<Bytes>{32_MiB, 32_MiB, 2_MiB, 2_MiB, 2_MiB}));
}

TEST(ChunkSizesTest, HugeChunksAreForRealCardsOnly) {
  EXPECT_EQ(ChunkSizesForGrowth(Card(false), 1_GiB), std::vector<Bytes>(4, 256_MiB));
  EXPECT_EQ(ChunkSizesForGrowth(Card(false), 1022_MiB).front(), 32_MiB);
  EXPECT_EQ(ChunkSizesForGrowth(Card(true), 1_GiB), std::vector<Bytes>(32, 32_MiB));
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
