#include "allocator/broker/chunk_sizes.h"

#include <algorithm>
#include <bit>
#include <cstdint>

namespace lgpu {
namespace {

// Sizes of chunks, in granules of 2 MiB.
constexpr std::uint64_t kLargeGranules = 16;  // 32 MiB
constexpr std::uint64_t kHugeGranules = 128;  // 256 MiB
// Smaller growth is single granules: it may be for small blocks, which lie in no other chunks.
constexpr std::uint64_t kLeastMixedStep = 16;
// On simulated GPUs growth of at least this many granules uses large chunks.
constexpr std::uint64_t kLargeStep = 32;
// On GPUs: bench/growth_bench.cc has the figures that these were chosen by.
constexpr std::uint64_t kChunksOfLimit = 480;
constexpr std::uint64_t kChunksOfHeld = 64;
constexpr std::uint64_t kChunksOfNeed = 8;

// Appends `count` chunks of `size`, and returns what is left of `bytes`.
Bytes Append(std::vector<Bytes>& sizes, std::uint64_t count, Bytes size, Bytes bytes) {
  sizes.insert(sizes.end(), count, size);
  return bytes - size * count;
}

void AppendSimulated(std::vector<Bytes>& sizes, Bytes granule, Bytes bytes) {
  const Bytes large = granule * kLargeGranules;
  if (bytes >= granule * kLargeStep) bytes = Append(sizes, bytes / large, large, bytes);
  Append(sizes, bytes / granule, granule, bytes);
}

// The largest chunk of a GPU's growth: a granule times a power of two.
Bytes LargestForGrowth(Bytes granule, const DeviceGrowth& growth) {
  if (growth.granted < granule * kLeastMixedStep) return granule;
  const Bytes most = std::min({std::max(growth.held / kChunksOfHeld, growth.needed / kChunksOfNeed),
                               growth.limit / kChunksOfLimit, granule * kHugeGranules});
  return granule * std::bit_floor(std::max<std::uint64_t>(most / granule, 1));
}

}  // namespace

std::vector<Bytes> ChunkSizesForGrowth(const PhysicalDevice& card, const DeviceGrowth& growth) {
  const Bytes granule = card.granularity;
  std::vector<Bytes> sizes;
  if (card.simulated) {
    // What is granted beyond the need lies in chunks of its own: it may have to go again.
    const Bytes needed = std::min(growth.needed, growth.granted);
    AppendSimulated(sizes, granule, needed);
    AppendSimulated(sizes, granule, growth.granted - needed);
    return sizes;
  }
  Bytes left = growth.granted;
  for (Bytes size = LargestForGrowth(granule, growth); !left.is_zero(); size = size / 2) {
    left = Append(sizes, left / size, size, left);
  }
  return sizes;
}

std::vector<Bytes> ChunkSizesForPreallocation(const PhysicalDevice& card, Bytes bytes) {
  const Bytes granule = card.granularity;
  const Bytes large = granule * kLargeGranules;
  std::vector<Bytes> sizes;
  bytes = Append(sizes, (bytes - RoundUp(bytes / 8, granule)) / large, large, bytes);
  Append(sizes, bytes / granule, granule, bytes);
  return sizes;
}

}  // namespace lgpu
