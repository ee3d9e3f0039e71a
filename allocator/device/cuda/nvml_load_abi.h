#ifndef LGPU_ALLOCATOR_DEVICE_CUDA_NVML_LOAD_ABI_H_
#define LGPU_ALLOCATOR_DEVICE_CUDA_NVML_LOAD_ABI_H_

// The part of NVML's binary interface about the load of GPUs, as nvml_abi.h has the rest.

#include "allocator/device/cuda/nvml_abi.h"

namespace lgpu::nvml {

struct Utilization {
  unsigned gpu, memory;
};
static_assert(sizeof(Utilization) == 8);

struct ProcessUtilization {
  unsigned pid;
  unsigned long long at;  // microseconds since 1970
  unsigned sm, memory, encoder, decoder;
};
static_assert(sizeof(ProcessUtilization) == 32);

}  // namespace lgpu::nvml

#endif  // LGPU_ALLOCATOR_DEVICE_CUDA_NVML_LOAD_ABI_H_
