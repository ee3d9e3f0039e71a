#ifndef LGPU_ALLOCATOR_DEVICE_CUDA_CUDA_IMAGE_H_
#define LGPU_ALLOCATOR_DEVICE_CUDA_CUDA_IMAGE_H_

#include "absl/status/status.h"
#include "allocator/device/cuda/cuda_driver.h"
#include "allocator/device/device_work.h"

namespace lgpu {

/// The oldest compute capability that lgpu's kernels are compiled for, times 10.
inline constexpr int kOldestComputeCapability = 75;

/// Loads the machine code of `image` into the current context, or its PTX where the driver cannot use the
/// machine code (newer than the driver, or not for this GPU).
CUresult LoadImage(const CudaDriver& driver, const DeviceImage& image, CUmodule* module);

/// FAILED_PRECONDITION, with what to do, if this result of LoadImage means that the driver takes neither
/// form; else OK.
absl::Status ExplainLoad(const CudaDriver& driver, CUresult result);

}  // namespace lgpu

#endif  // LGPU_ALLOCATOR_DEVICE_CUDA_CUDA_IMAGE_H_
