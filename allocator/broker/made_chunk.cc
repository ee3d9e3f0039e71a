#include "allocator/broker/made_chunk.h"

#include "absl/status/statusor.h"

namespace lgpu {

MadeChunks CreateChunks(DeviceMemory& backend, int backend_device, std::span<const Bytes> sizes) {
  MadeChunks made;
  for (const Bytes bytes : sizes) {
    absl::StatusOr<MemoryHandle> memory = backend.Create(backend_device, bytes);
    if (!memory.ok()) {
      made.status = memory.status();
      break;
    }
    made.chunks.push_back({bytes, *memory, backend.Identity(*memory)});
  }
  return made;
}

}  // namespace lgpu
