#ifndef LGPU_ALLOCATOR_DEVICE_SIMULATED_SIMULATED_BACKEND_H_
#define LGPU_ALLOCATOR_DEVICE_SIMULATED_SIMULATED_BACKEND_H_

#include <memory>
#include <string>
#include <vector>

#include "allocator/device/device_backend.h"

namespace lgpu {

struct SimulatedBackendOptions {
  std::vector<PhysicalDevice> devices;  // as they are to be reported; sorted by pci_bus_id here
  /// Chunks take memory only when they are touched: simulates more than the machine has.
  bool sparse = false;
  /// Test mode: ops run on a thread per stream, in stream order, and device memory is not accessible to
  /// the host outside kernels and copies.
  bool asynchronous = false;
};

/// A simulated GPU: chunks are memfds named "lgpu-chunk:UUID" (really allocated, sealed against growing, so
/// that what was reclaimed cannot come back), regions are reserved address ranges, kernels run on the CPU. It
/// obeys the real driver's rules. Regions are not inherited by forked children.
std::unique_ptr<DeviceBackend> MakeSimulatedBackend(SimulatedBackendOptions options);

/// A device as `--simulate` makes it: `index` gives name order, a PCI bus id and, with `seed` (say, the
/// runtime directory), a UUID that is the same every time.
PhysicalDevice SimulatedDevice(int index, Bytes memory, const std::string& seed);

}  // namespace lgpu

#endif  // LGPU_ALLOCATOR_DEVICE_SIMULATED_SIMULATED_BACKEND_H_
