// What a build without the CUDA backend (LGPU_CUDA=OFF) says of it.

#include "absl/status/status.h"
#include "allocator/device/cuda/cuda_backend.h"
#include "allocator/device/cuda/cuda_memory.h"

namespace lgpu {
namespace {

absl::Status NotBuilt() {
  return absl::FailedPreconditionError(
      "no CUDA devices: this lgpu was built without the CUDA backend (configured with -DLGPU_CUDA=OFF, or "
      "where no CUDA toolkit was found)\n"
      "  for a build with it: scripts/deps --cuda (Debian's section non-free), or NVIDIA's toolkit with "
      "CUDA_HOME set; "
      "then configure with -DLGPU_CUDA=ON");
}

}  // namespace

absl::StatusOr<std::unique_ptr<DeviceBackend>> OpenCudaBackend(std::shared_ptr<Nvml>) { return NotBuilt(); }

absl::StatusOr<CudaMemory> OpenCudaMemory(std::shared_ptr<Nvml>) { return NotBuilt(); }

absl::StatusOr<std::vector<std::string>> CudaEnumeration() { return NotBuilt(); }

}  // namespace lgpu
