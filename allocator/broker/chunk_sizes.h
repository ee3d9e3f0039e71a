#ifndef LGPU_ALLOCATOR_BROKER_CHUNK_SIZES_H_
#define LGPU_ALLOCATOR_BROKER_CHUNK_SIZES_H_

#include <vector>

#include "allocator/device/device_memory.h"
#include "lgpu/bytes.h"

namespace lgpu {

/// The sizes of the chunks that memory of a card is cut into: single granules where memory may have to move,
/// larger chunks where there are many, since each costs time to create. `bytes` is whole granules. Pure.
std::vector<Bytes> ChunkSizesForGrowth(const PhysicalDevice& card, Bytes bytes);
/// As above, for the chunks of a preallocated device: at least an eighth is single granules, where small
/// blocks live, and none is so large that freeing it for a charge frees much more than the charge needs.
std::vector<Bytes> ChunkSizesForPreallocation(const PhysicalDevice& card, Bytes bytes);

}  // namespace lgpu

#endif  // LGPU_ALLOCATOR_BROKER_CHUNK_SIZES_H_
