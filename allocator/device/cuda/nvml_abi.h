#ifndef LGPU_ALLOCATOR_DEVICE_CUDA_NVML_ABI_H_
#define LGPU_ALLOCATOR_DEVICE_CUDA_NVML_ABI_H_

// The part of NVML's binary interface that lgpu uses. A toolkit need not have nvml.h, and the layout of these
// versions is fixed.

#include <cstdint>

namespace lgpu::nvml {

using Result = int;
constexpr Result kSuccess = 0;
constexpr Result kInsufficientSize = 7;
using DeviceHandle = struct DeviceOpaque*;

struct MemoryV2 {
  static constexpr unsigned kVersion = sizeof(std::uint64_t) * 5 | (2u << 24);
  unsigned version;
  unsigned long long total, reserved, free, used;
};
static_assert(sizeof(MemoryV2) == 40);

struct PciInfoV3 {
  char bus_id_legacy[16];
  unsigned domain, bus, device, pci_device_id, pci_subsystem_id;
  char bus_id[32];
};
static_assert(sizeof(PciInfoV3) == 68);

struct ProcessInfoV2 {
  static constexpr unsigned long long kNotAvailable = ~0ULL;
  unsigned pid;
  unsigned long long used_gpu_memory;
  unsigned gpu_instance_id, compute_instance_id;
};
static_assert(sizeof(ProcessInfoV2) == 24);

// Symbol and type of every call.
#define LGPU_NVML_SYMBOLS(X)                                                                      \
  X(Init, "nvmlInit_v2", Result (*)())                                                            \
  X(Shutdown, "nvmlShutdown", Result (*)())                                                       \
  X(ErrorString, "nvmlErrorString", const char* (*)(Result))                                      \
  X(SystemGetDriverVersion, "nvmlSystemGetDriverVersion", Result (*)(char*, unsigned))            \
  X(DeviceGetCount, "nvmlDeviceGetCount_v2", Result (*)(unsigned*))                               \
  X(DeviceGetHandleByIndex, "nvmlDeviceGetHandleByIndex_v2", Result (*)(unsigned, DeviceHandle*)) \
  X(DeviceGetHandleByUUID, "nvmlDeviceGetHandleByUUID", Result (*)(const char*, DeviceHandle*))   \
  X(DeviceGetUUID, "nvmlDeviceGetUUID", Result (*)(DeviceHandle, char*, unsigned))                \
  X(DeviceGetName, "nvmlDeviceGetName", Result (*)(DeviceHandle, char*, unsigned))                \
  X(DeviceGetPciInfo, "nvmlDeviceGetPciInfo_v3", Result (*)(DeviceHandle, PciInfoV3*))            \
  X(DeviceGetMemoryInfo, "nvmlDeviceGetMemoryInfo_v2", Result (*)(DeviceHandle, MemoryV2*))       \
  X(DeviceGetCudaComputeCapability, "nvmlDeviceGetCudaComputeCapability",                         \
    Result (*)(DeviceHandle, int*, int*))                                                         \
  X(DeviceGetComputeRunningProcesses, "nvmlDeviceGetComputeRunningProcesses_v3",                  \
    Result (*)(DeviceHandle, unsigned*, ProcessInfoV2*))                                          \
  X(DeviceGetComputeMode, "nvmlDeviceGetComputeMode", Result (*)(DeviceHandle, int*))

}  // namespace lgpu::nvml

#endif  // LGPU_ALLOCATOR_DEVICE_CUDA_NVML_ABI_H_
