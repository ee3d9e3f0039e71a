#include "allocator/device/simulated_backend.h"
#include "tests/kernels/device_runner.h"

namespace lgpu::testing {

KernelRunner& ThisRunner() {
  static const std::unique_ptr<KernelRunner> runner = MakeDeviceRunner(
      MakeSimulatedBackend({.devices = {SimulatedDevice(0, 256_MiB, "kernels")}, .asynchronous = true}),
      KernelRegistry::ForSimulatedDevices({.cast_on_gpu = true}));
  return *runner;
}

}  // namespace lgpu::testing
