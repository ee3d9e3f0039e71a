// In a build without CUDA no real GPU can be opened, and no kernel is asked for.

#include "kernels/matmul_library.h"
#include "kernels/registry.h"

namespace lgpu {

KernelRegistry KernelRegistry::ForCudaDevices(const Options& options) {
  const KernelRegistry simulated = ForSimulatedDevices(options);
  KernelRegistry registry;
  for (const Kernel& kernel : simulated.kernels_) {
    if (kernel.device == DeviceType::kCpu) registry.Add(kernel);
  }
  return registry;
}

std::unique_ptr<MatMulLibrary> MatMulLibrary::Make(const Options&) { return nullptr; }

}  // namespace lgpu
