#ifndef LGPU_ALLOCATOR_DEVICE_SIMULATED_SIMULATED_BACKEND_H_
#define LGPU_ALLOCATOR_DEVICE_SIMULATED_SIMULATED_BACKEND_H_

#include <memory>

#include "allocator/device/device_backend.h"
#include "allocator/device/simulated/simulated_memory.h"

namespace lgpu {

/// Simulated GPUs: their memory is that of MakeSimulatedMemory, their kernels run on the CPU. They obey the
/// real driver's rules.
std::unique_ptr<DeviceBackend> MakeSimulatedBackend(SimulatedBackendOptions options);

}  // namespace lgpu

#endif  // LGPU_ALLOCATOR_DEVICE_SIMULATED_SIMULATED_BACKEND_H_
