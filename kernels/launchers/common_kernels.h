#ifndef LGPU_KERNELS_LAUNCHERS_COMMON_KERNELS_H_
#define LGPU_KERNELS_LAUNCHERS_COMMON_KERNELS_H_

#include <span>

#include "absl/status/status.h"
#include "kernels/op.h"

namespace lgpu {

/// An op whose code is the same on all devices (kernels/bodies): each of its launches has both halves, the
/// host's function and the GPU's kernel.
struct CommonKernel {
  const Op* op;
  decltype(Kernel::run) run;
};
std::span<const CommonKernel> CommonKernels();

// Kernel::run of some of them. Inputs and outputs are as Op::infer checked them.
absl::Status RunCast(std::span<const TensorView> inputs, std::span<const TensorView> outputs,
                     const OpAttributes& attributes, Launcher& launcher);
absl::Status RunTranspose(std::span<const TensorView> inputs, std::span<const TensorView> outputs,
                          const OpAttributes& attributes, Launcher& launcher);
absl::Status RunSum(std::span<const TensorView> inputs, std::span<const TensorView> outputs,
                    const OpAttributes& attributes, Launcher& launcher);
absl::Status RunMean(std::span<const TensorView> inputs, std::span<const TensorView> outputs,
                     const OpAttributes& attributes, Launcher& launcher);
absl::Status RunSoftmaxCrossEntropy(std::span<const TensorView> inputs, std::span<const TensorView> outputs,
                                    const OpAttributes& attributes, Launcher& launcher);

}  // namespace lgpu

#endif  // LGPU_KERNELS_LAUNCHERS_COMMON_KERNELS_H_
