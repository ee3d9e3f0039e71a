#ifndef LGPU_ALLOCATOR_DEVICE_CUDA_CUDA_MEMORY_H_
#define LGPU_ALLOCATOR_DEVICE_CUDA_CUDA_MEMORY_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "allocator/device/cuda/nvml.h"
#include "allocator/device/device_memory.h"

namespace lgpu {

/// A GPU that the driver shows this process and lgpu cannot serve.
struct RefusedGpu {
  PhysicalDevice about;  // name, UUID and compute capability alone
  std::string reason;    // "its compute capability 7.0 is below 7.5, the lowest that ..."
};

struct CudaMemory {
  std::unique_ptr<DeviceMemory> memory;
  std::vector<RefusedGpu> refused;
};

/// The physical memory of the GPUs that the CUDA driver shows this process, for a daemon: no context is ever
/// made, so address space is FAILED_PRECONDITION. `nvml` is for FreeMemory and ProcessesOn, and may be null.
/// Errors are those of OpenCudaBackend.
absl::StatusOr<CudaMemory> OpenCudaMemory(std::shared_ptr<Nvml> nvml);

}  // namespace lgpu

#endif  // LGPU_ALLOCATOR_DEVICE_CUDA_CUDA_MEMORY_H_
