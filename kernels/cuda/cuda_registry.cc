#include "kernels/cuda/cuda_kernels.h"
#include "kernels/launchers/common_kernels.h"
#include "kernels/registry.h"

namespace lgpu {

namespace {

/// The GPU's kernel in place of the kernel for simulated GPUs.
Kernel GpuKernel(const Kernel& simulated) {
  Kernel kernel = simulated;
  if (kernel.op == &AddNOp()) kernel.run = RunAddNOnGpu;
  // EagerConst is a copy from the host, which the executor does.
  if (kernel.op == &IdentityOp() || kernel.op == &EagerConstOp()) kernel.run = RunIdentityOnGpu;
  if (kernel.op == &MatMulOp()) {
    kernel.run = RunMatMulOnGpu;
    kernel.needs_library = true;
  }
  return kernel;  // kernels of kernels/launchers and of metadata are the same
}

}  // namespace

KernelRegistry KernelRegistry::ForCudaDevices(const Options& options) {
  const KernelRegistry simulated = ForSimulatedDevices(options);
  KernelRegistry registry;
  for (const Kernel& kernel : simulated.kernels_) {
    registry.Add(kernel.device == DeviceType::kGpu ? GpuKernel(kernel) : kernel);
  }
  return registry;
}

}  // namespace lgpu
