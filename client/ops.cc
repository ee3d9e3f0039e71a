#include "lgpu/ops.h"

#include <array>

#include "client/executor.h"
#include "kernels/registry.h"

namespace lgpu {

absl::StatusOr<Tensor> MatMul(const Tensor& a, const Tensor& b, const MatMulOptions& options) {
  const std::array<Tensor, 2> inputs = {a, b};
  return internal::Execute(MatMulOp(), inputs,
                           {.transpose_a = options.transpose_a, .transpose_b = options.transpose_b});
}

absl::StatusOr<Tensor> AddN(std::span<const Tensor> inputs) {
  if (inputs.empty()) return AddNOp().infer({}, {}).status();
  if (inputs.size() == 1 && inputs[0].has_value()) return inputs[0];
  return internal::Execute(AddNOp(), inputs, {});
}

absl::StatusOr<Tensor> Cast(const Tensor& input, DType to) {
  return internal::Execute(CastOp(), {&input, 1}, {.cast_to = to});
}

absl::StatusOr<Tensor> Identity(const Tensor& input) {
  return internal::Execute(IdentityOp(), {&input, 1}, {});
}

}  // namespace lgpu
