#ifndef LGPU_KERNELS_LAUNCHERS_COMMON_LAUNCH_H_
#define LGPU_KERNELS_LAUNCHERS_COMMON_LAUNCH_H_

#include <algorithm>
#include <cstdint>

#include "allocator/device/device_work.h"
#include "kernels/bodies/numbers.h"
#include "lgpu/dtype.h"

namespace lgpu {

/// Calls `with.template operator()<T>()` for the type in which elements of `dtype` lie in memory; whole
/// numbers in types of their size.
template <typename Int32, typename Int64, typename With>
auto ForTypeWith(DType dtype, With with) {
  switch (dtype) {
    case DType::kFloat16:
      return with.template operator()<code::HalfBits>();
    case DType::kBFloat16:
      return with.template operator()<code::BFloat16Bits>();
    case DType::kFloat64:
      return with.template operator()<double>();
    case DType::kInt32:
      return with.template operator()<Int32>();
    case DType::kInt64:
      return with.template operator()<Int64>();
    default:
      return with.template operator()<float>();
  }
}
template <typename With>
auto ForElementType(DType dtype, With with) {
  return ForTypeWith<std::uint32_t, std::uint64_t>(dtype, with);
}
/// As ForTypeWith, with signed types for whole numbers.
template <typename With>
auto ForSignedType(DType dtype, With with) {
  return ForTypeWith<std::int32_t, std::int64_t>(dtype, with);
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

#endif  // LGPU_KERNELS_LAUNCHERS_COMMON_LAUNCH_H_
