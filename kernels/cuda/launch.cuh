#ifndef LGPU_KERNELS_CUDA_LAUNCH_CUH_
#define LGPU_KERNELS_CUDA_LAUNCH_CUH_

// For .cu files: which thread this is, and a kernel per type of element. The kernels are C functions, found
// by name.

#include "kernels/bodies/numbers.h"

#define LGPU_THREAD                                                                             \
  ::lgpu::code::Thread {                                                                        \
    std::uint64_t{blockIdx.x} * blockDim.x + threadIdx.x, std::uint64_t{gridDim.x} * blockDim.x \
  }

/// All kernels have blocks of 256 threads: ptxas allots registers for this size.
#define LGPU_KERNEL __global__ void __launch_bounds__(256, 4)
/// For so many blocks on a multiprocessor: 3 have 80 registers a thread, and 2 have 128, in place of 64.
#define LGPU_KERNEL_FOR(blocks) __global__ void __launch_bounds__(256, blocks)

#define LGPU_FOR_FLOATS(KERNEL)                \
  KERNEL(half, ::lgpu::code::HalfBits)         \
  KERNEL(bfloat16, ::lgpu::code::BFloat16Bits) \
  KERNEL(float, float)                         \
  KERNEL(double, double)
#define LGPU_FOR_NUMBERS(KERNEL) \
  LGPU_FOR_FLOATS(KERNEL)        \
  KERNEL(int32, std::uint32_t)   \
  KERNEL(int64, std::uint64_t)

#endif  // LGPU_KERNELS_CUDA_LAUNCH_CUH_
