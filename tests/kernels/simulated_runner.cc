#include "allocator/device/simulated/simulated_backend.h"
#include "tests/kernels/device_runner.h"

namespace lgpu::testing {

std::unique_ptr<KernelRunner> MakeRunner() {
  return MakeDeviceRunner(
      MakeSimulatedBackend({.devices = {SimulatedDevice(0, 256_MiB, "kernels")}, .asynchronous = true}),
      KernelRegistry::ForSimulatedDevices({.cast_on_gpu = true}));
}

}  // namespace lgpu::testing
