#ifndef LGPU_KERNELS_CUDA_KERNEL_PARAMETERS_H_
#define LGPU_KERNELS_CUDA_KERNEL_PARAMETERS_H_

// The parameter blocks of memory.cu, for the host, nvcc and the fake driver of the tests. Plain types only.

#include <cstdint>

namespace lgpu {

/// lgpu_fill: writes `value` into `count` bytes at `to`.
struct FillParameters {
  std::uint8_t* to;
  std::uint64_t count;
  std::uint8_t value;
};

/// lgpu_copy: `bytes` bytes; the ranges do not overlap.
struct CopyParameters {
  std::uint8_t* to;
  const std::uint8_t* from;
  std::uint64_t bytes;
};

}  // namespace lgpu

#endif  // LGPU_KERNELS_CUDA_KERNEL_PARAMETERS_H_
