#include "kernels/cuda/cuda_kernels.h"
#include "kernels/registry.h"

namespace lgpu {

KernelRegistry KernelRegistry::ForCudaDevices() {
  const KernelRegistry simulated = ForSimulatedDevices({});
  KernelRegistry registry;
  for (const Kernel& kernel : simulated.kernels_) {
    if (kernel.device == DeviceType::kCpu) registry.Add(kernel);
    // EagerConst is a copy from the host, which the executor does.
    const bool copies = kernel.op == &IdentityOp() || kernel.op == &EagerConstOp();
    if (kernel.device == DeviceType::kGpu && copies) {
      registry.Add({kernel.op, DeviceType::kGpu, kernel.dtype, 0, RunIdentityOnGpu});
    }
    if (kernel.device == DeviceType::kGpu && kernel.op == &AddNOp()) {
      registry.Add({kernel.op, DeviceType::kGpu, kernel.dtype, 0, RunAddNOnGpu});
    }
    if (kernel.device == DeviceType::kGpu && kernel.op == &MatMulOp()) {
      registry.Add({kernel.op, DeviceType::kGpu, kernel.dtype, 0, RunMatMulOnGpu, true});
    }
    if (kernel.device == DeviceType::kGpu && kernel.op->metadata) registry.Add(kernel);
  }
  return registry;
}

}  // namespace lgpu
