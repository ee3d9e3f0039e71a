#ifndef LGPU_KERNELS_CPU_CPU_KERNELS_H_
#define LGPU_KERNELS_CPU_CPU_KERNELS_H_

#include <span>

#include "absl/status/status.h"
#include "kernels/op.h"

namespace lgpu {

// Kernel::run of the ops, for code that runs on the host: the CPU and simulated GPUs share them. Inputs
// and output are as Op::infer checked them.
absl::Status RunMatMul(std::span<const TensorView> inputs, std::span<const TensorView> outputs,
                       const OpAttributes& attributes, Launcher& launcher);
absl::Status RunAddN(std::span<const TensorView> inputs, std::span<const TensorView> outputs,
                     const OpAttributes& attributes, Launcher& launcher);
absl::Status RunIdentity(std::span<const TensorView> inputs, std::span<const TensorView> outputs,
                         const OpAttributes& attributes, Launcher& launcher);
// Kernels of metadata ops read only the specs of their input, and write an output that lies on the host.
absl::Status RunShape(std::span<const TensorView> inputs, std::span<const TensorView> outputs,
                      const OpAttributes& attributes, Launcher& launcher);
absl::Status RunSize(std::span<const TensorView> inputs, std::span<const TensorView> outputs,
                     const OpAttributes& attributes, Launcher& launcher);
absl::Status RunRank(std::span<const TensorView> inputs, std::span<const TensorView> outputs,
                     const OpAttributes& attributes, Launcher& launcher);

/// A CpuLauncher runs a kernel at once, on the calling thread.
class CpuLauncher final : public Launcher {
 public:
  absl::Status Launch(const KernelLaunch& launch) override {
    launch.host_function(launch.arguments);
    return absl::OkStatus();
  }
};

}  // namespace lgpu

#endif  // LGPU_KERNELS_CPU_CPU_KERNELS_H_
