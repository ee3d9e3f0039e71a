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

/// Drivers before R510 have this in place of MemoryV2.
struct MemoryV1 {
  unsigned long long total, free, used;
};
static_assert(sizeof(MemoryV1) == 24);

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
/// The first drivers of R535 wrote one field more, by the same symbol.
struct ProcessInfoLong {
  ProcessInfoV2 info;
  unsigned long long used_protected_memory;
};
static_assert(sizeof(ProcessInfoLong) == 32);

// Symbol and type of every call. Without a NEEDED call NVML cannot be used; without an OPTIONAL call its
// figure is missing.
#define LGPU_NVML_NEEDED(X)                                                                       \
  X(Init, "nvmlInit_v2", Result (*)())                                                            \
  X(Shutdown, "nvmlShutdown", Result (*)())                                                       \
  X(ErrorString, "nvmlErrorString", const char* (*)(Result))                                      \
  X(DeviceGetCount, "nvmlDeviceGetCount_v2", Result (*)(unsigned*))                               \
  X(DeviceGetHandleByIndex, "nvmlDeviceGetHandleByIndex_v2", Result (*)(unsigned, DeviceHandle*)) \
  X(DeviceGetHandleByUUID, "nvmlDeviceGetHandleByUUID", Result (*)(const char*, DeviceHandle*))   \
  X(DeviceGetUUID, "nvmlDeviceGetUUID", Result (*)(DeviceHandle, char*, unsigned))                \
  X(DeviceGetName, "nvmlDeviceGetName", Result (*)(DeviceHandle, char*, unsigned))                \
  X(DeviceGetPciInfo, "nvmlDeviceGetPciInfo_v3", Result (*)(DeviceHandle, PciInfoV3*))
#define LGPU_NVML_OPTIONAL(X)                                                               \
  X(SystemGetDriverVersion, "nvmlSystemGetDriverVersion", Result (*)(char*, unsigned))      \
  X(DeviceGetMemoryInfo, "nvmlDeviceGetMemoryInfo_v2", Result (*)(DeviceHandle, MemoryV2*)) \
  X(DeviceGetMemoryInfoV1, "nvmlDeviceGetMemoryInfo", Result (*)(DeviceHandle, MemoryV1*))  \
  X(DeviceGetCudaComputeCapability, "nvmlDeviceGetCudaComputeCapability",                   \
    Result (*)(DeviceHandle, int*, int*))                                                   \
  X(DeviceGetMinorNumber, "nvmlDeviceGetMinorNumber", Result (*)(DeviceHandle, unsigned*))  \
  X(DeviceGetComputeRunningProcesses, "nvmlDeviceGetComputeRunningProcesses_v3",            \
    Result (*)(DeviceHandle, unsigned*, void*))                                             \
  X(DeviceGetComputeRunningProcessesV2, "nvmlDeviceGetComputeRunningProcesses_v2",          \
    Result (*)(DeviceHandle, unsigned*, void*))                                             \
  X(DeviceGetComputeMode, "nvmlDeviceGetComputeMode", Result (*)(DeviceHandle, int*))

}  // namespace lgpu::nvml

#endif  // LGPU_ALLOCATOR_DEVICE_CUDA_NVML_ABI_H_
