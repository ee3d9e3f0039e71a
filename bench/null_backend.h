#ifndef LGPU_BENCH_NULL_BACKEND_H_
#define LGPU_BENCH_NULL_BACKEND_H_

#include <memory>

#include "allocator/device/device_backend.h"

namespace lgpu::bench {

/// A backend of one device of 1 TiB whose memory costs nothing: Create gives a number, Export a duplicate of
/// one descriptor, Release and Reclaim return. What is left of a grant over it is the protocol. The client's
/// half (Import, address space, streams) is UNIMPLEMENTED. INTERNAL without a memfd.
absl::StatusOr<std::unique_ptr<DeviceBackend>> MakeNullBackend();

}  // namespace lgpu::bench

#endif  // LGPU_BENCH_NULL_BACKEND_H_
