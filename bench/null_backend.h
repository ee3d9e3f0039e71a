#ifndef LGPU_BENCH_NULL_BACKEND_H_
#define LGPU_BENCH_NULL_BACKEND_H_

#include <memory>

#include "allocator/device/device_memory.h"

namespace lgpu::bench {

/// A backend of one device of 1 TiB whose memory costs nothing: Create gives a number, Export a duplicate of
/// one descriptor, Release and Reclaim return. A grant over it costs the protocol alone. Import and address
/// space are UNIMPLEMENTED. INTERNAL without a memfd.
absl::StatusOr<std::unique_ptr<DeviceMemory>> MakeNullBackend();

}  // namespace lgpu::bench

#endif  // LGPU_BENCH_NULL_BACKEND_H_
