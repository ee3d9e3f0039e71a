// In a build without a CUDA toolkit: real GPUs have memory and no kernels.

#include "kernels/matmul_library.h"
#include "kernels/registry.h"

namespace lgpu {

KernelRegistry KernelRegistry::ForCudaDevices(const Options& options) {
  const KernelRegistry simulated = ForSimulatedDevices(options);
  KernelRegistry registry;
  for (const Kernel& kernel : simulated.kernels_) {
    // A constant is a copy from the host, which the executor does; ops that read only a shape run anywhere.
    const bool needs_no_code = kernel.op == &EagerConstOp() || kernel.op->metadata;
    if (kernel.device == DeviceType::kCpu || needs_no_code) registry.Add(kernel);
  }
  registry.lacking_ =
      "this lgpu was built without a CUDA toolkit: it serves the memory of GPUs and has no kernels for them; "
      "a build with -DLGPU_CUDA=ON has";
  return registry;
}

std::unique_ptr<MatMulLibrary> MatMulLibrary::Make(const Options&) { return nullptr; }

}  // namespace lgpu
