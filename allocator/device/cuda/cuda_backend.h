#ifndef LGPU_ALLOCATOR_DEVICE_CUDA_CUDA_BACKEND_H_
#define LGPU_ALLOCATOR_DEVICE_CUDA_CUDA_BACKEND_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "allocator/device/cuda/nvml.h"
#include "allocator/device/device_backend.h"

namespace lgpu {

/// The GPUs of this machine that the CUDA driver shows this process, as a DeviceBackend. The driver is opened
/// here and never before: a program that does not call this needs none. The primary context of a device is
/// retained when its first address range is reserved. `nvml` is for FreeMemory and ProcessesOn, and may be
/// null. FAILED_PRECONDITION "no CUDA devices: ..." with the cause and what to do.
///
/// Chunks come from cuMemCreate, their descriptors are the driver's own and are closed right after an import.
/// Unmap trusts that the fences of the last use have passed: only the driver knows which kernels touch the
/// memory. Import cannot tell a chunk's size; Map of more bytes than the chunk has is INVALID_ARGUMENT.
absl::StatusOr<std::unique_ptr<DeviceBackend>> OpenCudaBackend(std::shared_ptr<Nvml> nvml = nullptr);

/// The UUIDs of the GPUs that the driver shows this process, in the order in which the driver counts them:
/// CUDA_VISIBLE_DEVICES and CUDA_DEVICE_ORDER are applied. Errors as OpenCudaBackend.
absl::StatusOr<std::vector<std::string>> CudaEnumeration();

}  // namespace lgpu

#endif  // LGPU_ALLOCATOR_DEVICE_CUDA_CUDA_BACKEND_H_
