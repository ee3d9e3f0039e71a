#include "allocator/device/cuda/cuda_backend.h"
#include "base/check.h"
#include "tests/kernels/device_runner.h"

namespace lgpu::testing {

// On the libcuda.so.1 that the loader finds: a fake one in the tests (fake_cuda_run), a real one on a machine
// with a GPU.
std::unique_ptr<KernelRunner> MakeRunner() {
  absl::StatusOr<std::unique_ptr<DeviceBackend>> backend = OpenCudaBackend();
  LGPU_CHECK(backend.ok());
  return MakeDeviceRunner(*std::move(backend), KernelRegistry::ForCudaDevices({.cast_on_gpu = true}),
                          MatMulLibrary::Make({}));
}

}  // namespace lgpu::testing
