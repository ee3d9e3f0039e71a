#ifndef LGPU_ALLOCATOR_BROKER_MADE_CHUNK_H_
#define LGPU_ALLOCATOR_BROKER_MADE_CHUNK_H_

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "allocator/device/device_memory.h"
#include "lgpu/bytes.h"

namespace lgpu {

/// A chunk that the backend created and that no table has yet.
struct MadeChunk {
  Bytes bytes;
  MemoryHandle memory;
  std::uint64_t identity = 0;  // of the memory, as the backend knows it
};

/// The chunks that were made of those asked for. On an error the later ones are missing.
struct MadeChunks {
  std::vector<MadeChunk> chunks;
  absl::Status status;
};

/// Creates a chunk of each size, in this order. Calls the backend: no lock is held.
MadeChunks CreateChunks(DeviceMemory& backend, int backend_device, std::span<const Bytes> sizes);

}  // namespace lgpu

#endif  // LGPU_ALLOCATOR_BROKER_MADE_CHUNK_H_
