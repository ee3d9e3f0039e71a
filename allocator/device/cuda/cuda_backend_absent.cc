// What a build without the CUDA backend (LGPU_CUDA=OFF) says of it.

#include "absl/status/status.h"
#include "allocator/device/cuda/cuda_backend.h"
#include "allocator/device/cuda/cuda_memory.h"

namespace lgpu {
namespace {

absl::Status NotBuilt() {
  return absl::FailedPreconditionError(
      "no CUDA devices: this lgpu was built without the CUDA backend (configured with -DLGPU_CUDA=OFF, or "
      "where no CUDA toolkit was found)");
}

}  // namespace

absl::StatusOr<std::unique_ptr<DeviceBackend>> OpenCudaBackend(std::shared_ptr<Nvml>) { return NotBuilt(); }

absl::StatusOr<std::unique_ptr<DeviceMemory>> OpenCudaMemory(std::shared_ptr<Nvml>) { return NotBuilt(); }

absl::StatusOr<std::vector<std::string>> CudaEnumeration() { return NotBuilt(); }

}  // namespace lgpu
