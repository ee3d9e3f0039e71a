#ifndef LGPU_KERNELS_CPU_CONVERT_H_
#define LGPU_KERNELS_CPU_CONVERT_H_

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "lgpu/dtype.h"

namespace lgpu::cpu {

// Conversions of one element, without branches where loops over them should be vectorised. The rules:
//   to a floating type      nearest, ties to even, rounded once; overflow to infinity; NaN stays NaN
//   floating to whole       towards zero; NaN gives 0; out of range gives the nearest end of the range
//   whole to narrower whole the low bits (modulo 2^32)

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

/// `value` in float, rounded to odd: a further rounding to a type with at least two bits less gives
/// what one rounding of `value` would have given.
inline float RoundToOdd(double value) {
  const float nearest = static_cast<float>(value);
  if (static_cast<double>(nearest) == value || std::isnan(value)) return nearest;
  std::uint32_t bits = std::bit_cast<std::uint32_t>(nearest);
  if (std::fabs(static_cast<double>(nearest)) > std::fabs(value)) --bits;  // one step towards zero
  return std::bit_cast<float>(bits | 1U);
}
inline float RoundToOdd(std::int64_t value) {
  std::uint64_t magnitude =
      value < 0 ? 0 - static_cast<std::uint64_t>(value) : static_cast<std::uint64_t>(value);
  const int surplus = std::bit_width(magnitude) - std::numeric_limits<float>::digits;
  int exponent = 0;
  if (surplus > 0) {
    const bool inexact = (magnitude & ((std::uint64_t{1} << surplus) - 1)) != 0;
    magnitude = (magnitude >> surplus) | (inexact ? 1U : 0U);
    exponent = surplus;
  }
  const float result = std::ldexp(static_cast<float>(magnitude), exponent);
  return value < 0 ? -result : result;
}
inline float RoundToOdd(std::int32_t value) { return RoundToOdd(static_cast<double>(value)); }
inline float RoundToOdd(float value) { return value; }
inline float RoundToOdd(Half value) { return Widen(value); }
inline float RoundToOdd(BFloat16 value) { return Widen(value); }

template <typename To, typename From>
To SaturateToWhole(From value) {
  constexpr From kEnd = -static_cast<From>(std::numeric_limits<To>::min());  // 2^31 or 2^63, exact
  if (value != value) return 0;
  if (value >= kEnd) return std::numeric_limits<To>::max();
  if (value < -kEnd) return std::numeric_limits<To>::min();
  return static_cast<To>(value);
}

template <typename T>
inline constexpr bool kIsSmallFloat = std::is_same_v<T, Half> || std::is_same_v<T, BFloat16>;

template <typename To, typename From>
To Convert(From value) {
  if constexpr (std::is_same_v<To, From>) {
    return value;
  } else if constexpr (std::is_same_v<To, Half>) {
    return NarrowToHalf(RoundToOdd(value));
  } else if constexpr (std::is_same_v<To, BFloat16>) {
    return NarrowToBFloat16(RoundToOdd(value));
  } else if constexpr (kIsSmallFloat<From>) {
    return Convert<To>(Widen(value));
  } else if constexpr (std::is_integral_v<To> && std::is_floating_point_v<From>) {
    return SaturateToWhole<To>(value);
  } else {
    return static_cast<To>(value);
  }
}

}  // namespace lgpu::cpu

#endif  // LGPU_KERNELS_CPU_CONVERT_H_
