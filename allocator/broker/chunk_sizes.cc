#include "allocator/broker/chunk_sizes.h"

namespace lgpu {
namespace {

// Classes of chunks, in granules: 2 MiB where memory may have to move, 32 MiB where creating costs more.
constexpr std::uint64_t kLargeGranules = 16;
// Growth in steps of at least this many granules (64 MiB) uses large chunks.
constexpr std::uint64_t kLargeStep = 32;
// On real GPUs every chunk costs, whatever its size: steps of 1 GiB and more take huge chunks (256 MiB).
constexpr std::uint64_t kHugeGranules = 128;
constexpr std::uint64_t kHugeStep = 512;

// Appends `count` chunks of `size`, and returns what is left of `bytes`.
Bytes Append(std::vector<Bytes>& sizes, std::uint64_t count, Bytes size, Bytes bytes) {
  sizes.insert(sizes.end(), count, size);
  return bytes - size * count;
}

}  // namespace

std::vector<Bytes> ChunkSizesForGrowth(const PhysicalDevice& card, Bytes bytes) {
  const Bytes granule = card.granularity;
  const Bytes large = granule * kLargeGranules, huge = granule * kHugeGranules;
  std::vector<Bytes> sizes;
  if (!card.simulated && bytes >= granule * kHugeStep) bytes = Append(sizes, bytes / huge, huge, bytes);
  if (bytes >= granule * kLargeStep) bytes = Append(sizes, bytes / large, large, bytes);
  Append(sizes, bytes / granule, granule, bytes);
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
