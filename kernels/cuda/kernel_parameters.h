#ifndef LGPU_KERNELS_CUDA_KERNEL_PARAMETERS_H_
#define LGPU_KERNELS_CUDA_KERNEL_PARAMETERS_H_

// The parameter blocks of the GPU kernels, for the host, nvcc and the fake driver of the tests. Plain types
// only.

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

/// lgpu_add_n_float: the sum of `count` inputs, over what the output holds if `accumulate`.
struct AddNParameters {
  static constexpr int kMaxInputs = 8;
  float* output;
  std::uint64_t elements;
  std::int32_t count;
  std::int32_t accumulate;
  const float* inputs[kMaxInputs];
};

}  // namespace lgpu

#endif  // LGPU_KERNELS_CUDA_KERNEL_PARAMETERS_H_
