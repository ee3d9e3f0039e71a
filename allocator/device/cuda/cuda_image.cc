#include "allocator/device/cuda/cuda_image.h"

#include "absl/strings/str_cat.h"

namespace lgpu {

CUresult LoadImage(const CudaDriver& driver, const DeviceImage& image, CUmodule* module) {
  const CUresult result = driver.ModuleLoadData(module, image.machine_code);
  switch (result) {
    case CUDA_ERROR_INVALID_IMAGE:            // an older driver's word for machine code that is too new
    case CUDA_ERROR_NO_BINARY_FOR_GPU:        // none for this GPU
    case CUDA_ERROR_UNSUPPORTED_PTX_VERSION:  // "the provided PTX was compiled with an unsupported toolchain"
      return driver.ModuleLoadData(module, image.ptx);
    default:
      return result;
  }
}

absl::Status ExplainLoad(const CudaDriver& driver, CUresult result) {
  switch (result) {
    case CUDA_ERROR_INVALID_IMAGE:
    case CUDA_ERROR_NO_BINARY_FOR_GPU:
    case CUDA_ERROR_INVALID_PTX:
    case CUDA_ERROR_UNSUPPORTED_PTX_VERSION:
      return absl::FailedPreconditionError(
          absl::StrCat("the NVIDIA driver (", CudaVersionText(driver.version),
                       ") does not take the kernels of this lgpu: cuModuleLoadData gave ",
                       driver.Name(result), ". They are built for ",
                       CudaVersionText(CudaDriver::kOldestVersion), " and newer; install a newer driver"));
    case CUDA_ERROR_JIT_COMPILER_NOT_FOUND:
      return absl::FailedPreconditionError(
          "the NVIDIA driver has to compile lgpu's kernels for this GPU and has no compiler: install its "
          "libnvidia-ptxjitcompiler.so.1 (in a container: NVIDIA_DRIVER_CAPABILITIES with compute)");
    case CUDA_ERROR_JIT_COMPILATION_DISABLED:
      return absl::FailedPreconditionError(
          "the NVIDIA driver has to compile lgpu's kernels for this GPU and may not: unset "
          "CUDA_DISABLE_PTX_JIT, or install a newer driver");
    default:
      return absl::OkStatus();
  }
}

}  // namespace lgpu
