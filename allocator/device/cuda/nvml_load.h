#ifndef LGPU_ALLOCATOR_DEVICE_CUDA_NVML_LOAD_H_
#define LGPU_ALLOCATOR_DEVICE_CUDA_NVML_LOAD_H_

#include <functional>

#include "allocator/device/cuda/nvml_load_abi.h"
#include "allocator/device/device_memory.h"

namespace lgpu::nvml {

/// The calls about a card's load. The figure of an absent call is missing.
struct LoadCalls {
  Result (*utilization)(DeviceHandle, Utilization*) = nullptr;
  Result (*temperature)(DeviceHandle, int sensor, unsigned*) = nullptr;
  Result (*power)(DeviceHandle, unsigned*) = nullptr;
  Result (*power_limit)(DeviceHandle, unsigned*) = nullptr;
  Result (*process_utilization)(DeviceHandle, ProcessUtilization*, unsigned*, unsigned long long) = nullptr;
};

/// `find` gives the address of a symbol, or null.
LoadCalls FindLoadCalls(const std::function<void*(const char*)>& find);

/// How busy the card is. A figure that the driver refuses is missing.
DeviceMemory::Load LoadOf(const LoadCalls& calls, DeviceHandle handle);

}  // namespace lgpu::nvml

#endif  // LGPU_ALLOCATOR_DEVICE_CUDA_NVML_LOAD_H_
