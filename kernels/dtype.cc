#include "lgpu/dtype.h"

#include <ostream>

#include "kernels/cpu/convert.h"

namespace lgpu {

Half FloatToHalf(float value) { return cpu::NarrowToHalf(value); }
float HalfToFloat(Half value) { return cpu::Widen(value); }
BFloat16 FloatToBFloat16(float value) { return cpu::NarrowToBFloat16(value); }

std::string_view DTypeName(DType dtype) {
  switch (dtype) {
    case DType::kFloat32:
      return "float";
    case DType::kFloat64:
      return "double";
    case DType::kInt32:
      return "int32";
    case DType::kInt64:
      return "int64";
    case DType::kBFloat16:
      return "bfloat16";
    case DType::kFloat16:
      return "half";
    case DType::kInvalid:
      break;
  }
  return "invalid";
}

std::ostream& operator<<(std::ostream& out, DType dtype) { return out << DTypeName(dtype); }

}  // namespace lgpu
