#ifndef LGPU_PROTO_WIRE_MAPPING_H_
#define LGPU_PROTO_WIRE_MAPPING_H_

#include <cstddef>
#include <memory>

namespace lgpu {

/// A Mapping is shared memory of a descriptor in this process. Its last owner unmaps it. A forked child does
/// not inherit it.
struct Mapping {
  std::shared_ptr<void> start;  // null: the system refused it
  int error = 0;                // then: errno
};

/// Maps `bytes` of the descriptor, from `offset` (a multiple of the page size) on. A range longer than the
/// file keeps its addresses free for a longer one. Thread-safe.
struct MapRequest {
  int fd = -1;
  std::size_t bytes = 0;
  std::size_t offset = 0;
  bool writable = false;
};
using MapMemory = Mapping (*)(const MapRequest& request);

/// The MapMemory of the driver's shim, which has the C library alone. Everything else takes MapWithBoost
/// (proto/mapped_region.h).
Mapping MapWithLibc(const MapRequest& request);

}  // namespace lgpu

#endif  // LGPU_PROTO_WIRE_MAPPING_H_
