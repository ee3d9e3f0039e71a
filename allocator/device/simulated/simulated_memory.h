#ifndef LGPU_ALLOCATOR_DEVICE_SIMULATED_SIMULATED_MEMORY_H_
#define LGPU_ALLOCATOR_DEVICE_SIMULATED_SIMULATED_MEMORY_H_

#include <memory>
#include <string>
#include <vector>

#include "allocator/device/device_memory.h"

namespace lgpu {

struct SimulatedBackendOptions {
  std::vector<PhysicalDevice> devices;  // as they are to be reported; sorted by pci_bus_id here
  /// Chunks take memory only when they are touched: simulates more than the machine has.
  bool sparse = false;
  /// Test mode: ops run on a thread per stream, in stream order, and device memory is not accessible to
  /// the host outside kernels and copies.
  bool asynchronous = false;
};

/// The memory of simulated GPUs, for a daemon. Chunks are memfds named "lgpu-chunk:UUID" (really allocated,
/// sealed against growing, so that what was reclaimed cannot come back); regions are reserved address ranges,
/// which forked children do not inherit.
std::unique_ptr<DeviceMemory> MakeSimulatedMemory(SimulatedBackendOptions options);

/// A device as `--simulate` makes it: `index` gives name order, a PCI bus id and, with `seed` (say, the
/// runtime directory), a UUID that is the same every time.
PhysicalDevice SimulatedDevice(int index, Bytes memory, const std::string& seed);

}  // namespace lgpu

#endif  // LGPU_ALLOCATOR_DEVICE_SIMULATED_SIMULATED_MEMORY_H_
