#ifndef LGPU_ALLOCATOR_BROKER_CHUNK_SIZES_H_
#define LGPU_ALLOCATOR_BROKER_CHUNK_SIZES_H_

#include <vector>

#include "allocator/device/device_memory.h"
#include "lgpu/bytes.h"

namespace lgpu {

/// A logical device that grows.
struct DeviceGrowth {
  Bytes needed;   // what the request cannot do without
  Bytes granted;  // with what it gets ahead of need; whole granules
  Bytes held;     // by the device, `granted` included
  Bytes limit;    // of the device
};

/// The sizes of the chunks that `growth.granted` is cut into: single granules where memory may have to move,
/// larger chunks where there are many, since each costs time to create, to pass on and to map. Pure.
///
/// On a GPU no chunk is larger than a 480th of the limit, so a live block in it keeps little of the device's
/// memory from other uses, nor than a 64th of the held memory or an eighth of a larger need.
std::vector<Bytes> ChunkSizesForGrowth(const PhysicalDevice& card, const DeviceGrowth& growth);
/// The same for the chunks of a preallocated device: at least an eighth is single granules, where small
/// blocks live, and none is so large that freeing it for a charge frees much more than the charge needs.
std::vector<Bytes> ChunkSizesForPreallocation(const PhysicalDevice& card, Bytes bytes);

}  // namespace lgpu

#endif  // LGPU_ALLOCATOR_BROKER_CHUNK_SIZES_H_
