#ifndef LGPU_TESTS_KERNELS_DEVICE_RUNNER_H_
#define LGPU_TESTS_KERNELS_DEVICE_RUNNER_H_

#include <memory>

#include "allocator/device/device_backend.h"
#include "tests/kernels/kernel_runner.h"

namespace lgpu::testing {

/// Runs kernels on the first device of a backend. Aborts where that has no memory. `matmul`: null where it
/// has none.
std::unique_ptr<KernelRunner> MakeDeviceRunner(std::unique_ptr<DeviceBackend> backend,
                                               KernelRegistry registry,
                                               std::unique_ptr<MatMulLibrary> matmul = nullptr);

}  // namespace lgpu::testing

#endif  // LGPU_TESTS_KERNELS_DEVICE_RUNNER_H_
