#ifndef LGPU_DTYPE_H_
#define LGPU_DTYPE_H_

#include <bit>
#include <cstddef>
#include <cstdint>
#include <iosfwd>
#include <string_view>

#include "lgpu/export.h"

namespace lgpu {

/// The type of a tensor's elements. The numbers are TensorFlow's DataType (framework/types.proto) and are
/// on the wire.
enum class DType : std::uint16_t {
  kInvalid = 0,
  kFloat32 = 1,
  kFloat64 = 2,
  kInt32 = 3,
  kInt64 = 9,
  kBFloat16 = 14,
  kFloat16 = 19,
};

/// IEEE 754 binary16, stored; arithmetic is done in float. A value type.
struct Half {
  std::uint16_t bits = 0;
  friend bool operator==(const Half&, const Half&) = default;
};
/// The upper half of an IEEE 754 binary32, stored; arithmetic is done in float. A value type.
struct BFloat16 {
  std::uint16_t bits = 0;
  friend bool operator==(const BFloat16&, const BFloat16&) = default;
};
/// Round to nearest, ties to even; overflow to infinity, NaN stays NaN.
LGPU_API Half FloatToHalf(float value);
LGPU_API float HalfToFloat(Half value);
LGPU_API BFloat16 FloatToBFloat16(float value);
constexpr float BFloat16ToFloat(BFloat16 value) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(value.bits) << 16);
}

/// Bytes of one element; 0 for kInvalid.
constexpr std::size_t ElementBytes(DType dtype) {
  switch (dtype) {
    case DType::kFloat32:
    case DType::kInt32:
      return 4;
    case DType::kFloat64:
    case DType::kInt64:
      return 8;
    case DType::kBFloat16:
    case DType::kFloat16:
      return 2;
    case DType::kInvalid:
      break;
  }
  return 0;
}

/// TensorFlow's short names: "float", "double", "int32", "int64", "bfloat16", "half"; "invalid".
LGPU_API std::string_view DTypeName(DType dtype);
LGPU_API std::ostream& operator<<(std::ostream& out, DType dtype);

/// The DType of a C++ element type.
template <typename T>
inline constexpr DType kDTypeOf = DType::kInvalid;
template <>
inline constexpr DType kDTypeOf<float> = DType::kFloat32;
template <>
inline constexpr DType kDTypeOf<double> = DType::kFloat64;
template <>
inline constexpr DType kDTypeOf<std::int32_t> = DType::kInt32;
template <>
inline constexpr DType kDTypeOf<std::int64_t> = DType::kInt64;
template <>
inline constexpr DType kDTypeOf<Half> = DType::kFloat16;
template <>
inline constexpr DType kDTypeOf<BFloat16> = DType::kBFloat16;

}  // namespace lgpu

#endif  // LGPU_DTYPE_H_
