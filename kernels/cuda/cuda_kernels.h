#ifndef LGPU_KERNELS_CUDA_CUDA_KERNELS_H_
#define LGPU_KERNELS_CUDA_CUDA_KERNELS_H_

#include <cstdint>
#include <span>

#include "absl/status/status.h"
#include "kernels/op.h"

namespace lgpu {

// Kernels on bytes; their parameter blocks are in kernel_parameters.h.
extern const DeviceKernel kFillKernel;
extern const DeviceKernel kCopyKernel;

/// Sets the grid for `threads` pieces of work.
void SpreadOver(std::uint64_t threads, KernelLaunch& launch);

// Kernel::run of ops whose code on GPUs is not that of the CPU. Inputs and output are as Op::infer checked
// them.
absl::Status RunAddNOnGpu(std::span<const TensorView> inputs, std::span<const TensorView> outputs,
                          const OpAttributes& attributes, Launcher& launcher);
absl::Status RunIdentityOnGpu(std::span<const TensorView> inputs, std::span<const TensorView> outputs,
                              const OpAttributes& attributes, Launcher& launcher);
absl::Status RunMatMulOnGpu(std::span<const TensorView> inputs, std::span<const TensorView> outputs,
                            const OpAttributes& attributes, Launcher& launcher);

}  // namespace lgpu

#endif  // LGPU_KERNELS_CUDA_CUDA_KERNELS_H_
