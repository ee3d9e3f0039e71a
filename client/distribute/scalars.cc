#include "client/distribute/scalars.h"

#include <span>

#include "kernels/text.h"
#include "lgpu/shape.h"

namespace lgpu::internal {

absl::StatusOr<Tensor> Scalar(const Context& context, DType dtype, double value) {
  const auto make = [&context]<typename T>(const T& element) {
    return context.Constant<T>(Shape{}, std::span<const T>(&element, 1));
  };
  switch (dtype) {
    case DType::kFloat32:
      return make(static_cast<float>(value));
    case DType::kFloat64:
      return make(value);
    case DType::kFloat16:
      return make(FloatToHalf(static_cast<float>(value)));
    case DType::kBFloat16:
      return make(FloatToBFloat16(static_cast<float>(value)));
    default:
      return absl::InvalidArgumentError(
          Cat("a floating type is needed here, got a ", DTypeName(dtype), " tensor"));
  }
}

}  // namespace lgpu::internal
