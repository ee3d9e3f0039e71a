#ifndef LGPU_KERNELS_COMMON_COMMON_LAUNCH_H_
#define LGPU_KERNELS_COMMON_COMMON_LAUNCH_H_

#include <algorithm>
#include <cstdint>

#include "allocator/device/device_backend.h"
#include "kernels/code/numbers.h"
#include "lgpu/dtype.h"

namespace lgpu {

/// Calls `with.template operator()<T>()` for the type in which elements of `dtype` lie in memory.
template <typename With>
auto ForElementType(DType dtype, With with) {
  switch (dtype) {
    case DType::kFloat16:
      return with.template operator()<code::HalfBits>();
    case DType::kBFloat16:
      return with.template operator()<code::BFloat16Bits>();
    case DType::kFloat64:
      return with.template operator()<double>();
    case DType::kInt32:
      return with.template operator()<std::uint32_t>();
    case DType::kInt64:
      return with.template operator()<std::uint64_t>();
    default:
      return with.template operator()<float>();
  }
}

/// A launch with both halves, on a GPU of `blocks` blocks as far as one card can use so many.
template <typename Parameters>
KernelLaunch CommonLaunch(void (*host)(const void*), const DeviceKernel* device, const Parameters& parameters,
                          std::uint64_t blocks) {
  constexpr std::uint32_t kThreads = 256;
  constexpr std::uint64_t kMostBlocks = 4096;  // kernels stride over the rest
  KernelLaunch launch;
  launch.host_function = host;
  launch.device_kernel = device;
  launch.arguments = &parameters;
  launch.argument_bytes = sizeof(parameters);
  launch.block[0] = kThreads;
  launch.grid[0] = static_cast<std::uint32_t>(std::clamp<std::uint64_t>(blocks, 1, kMostBlocks));
  return launch;
}

}  // namespace lgpu

#endif  // LGPU_KERNELS_COMMON_COMMON_LAUNCH_H_
