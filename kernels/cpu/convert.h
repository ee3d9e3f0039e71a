#ifndef LGPU_KERNELS_CPU_CONVERT_H_
#define LGPU_KERNELS_CPU_CONVERT_H_

#include <bit>
#include <cstdint>
#include <type_traits>

#include "lgpu/dtype.h"

namespace lgpu::cpu {

// half and bfloat16 as float and back, without branches, so that loops over them can be vectorised. To
// nearest, ties to even; overflow to infinity; NaN stays NaN. All other conversions are in kernels/bodies.

inline float Widen(Half value) {
  constexpr float kExponentShift = 0x1p112F;  // 2^(127-15): half's bias to float's
  const std::uint32_t bits = value.bits;
  const float scaled = std::bit_cast<float>((bits & 0x7fffU) << 13) * kExponentShift;
  const std::uint32_t infinite = (bits & 0x7c00U) == 0x7c00U ? 0x7f800000U : 0U;
  return std::bit_cast<float>(std::bit_cast<std::uint32_t>(scaled) | infinite | ((bits & 0x8000U) << 16));
}

inline Half NarrowToHalf(float value) {
  constexpr std::uint32_t kInfinity = 0x7f800000U;
  constexpr std::uint32_t kOverflow = 0x47800000U;   // 2^16
  constexpr std::uint32_t kSubnormal = 0x38800000U;  // 2^-14
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t magnitude = bits & 0x7fffffffU;
  // Adding 0.5 lines a subnormal half's last bit up with float's, and the addition rounds.
  const std::uint32_t subnormal = std::bit_cast<std::uint32_t>(std::bit_cast<float>(magnitude) + 0.5F) -
                                  std::bit_cast<std::uint32_t>(0.5F);
  const std::uint32_t normal = (magnitude - 0x38000000U + 0xfffU + ((magnitude >> 13) & 1U)) >> 13;
  const std::uint32_t large = magnitude > kInfinity ? 0x7e00U : 0x7c00U;
  const std::uint32_t small = magnitude < kSubnormal ? subnormal : normal;
  return Half{
      static_cast<std::uint16_t>((magnitude >= kOverflow ? large : small) | ((bits >> 16) & 0x8000U))};
}

inline float Widen(BFloat16 value) { return BFloat16ToFloat(value); }

inline BFloat16 NarrowToBFloat16(float value) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t rounded = (bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16;
  const std::uint32_t quiet = (bits >> 16) | 0x40U;
  return BFloat16{static_cast<std::uint16_t>((bits & 0x7fffffffU) > 0x7f800000U ? quiet : rounded)};
}

template <typename T>
inline constexpr bool kIsSmallFloat = std::is_same_v<T, Half> || std::is_same_v<T, BFloat16>;

}  // namespace lgpu::cpu

#endif  // LGPU_KERNELS_CPU_CONVERT_H_
