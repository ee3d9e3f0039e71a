#include "lgpu/ops.h"

#include <array>

#include "absl/container/inlined_vector.h"
#include "client/executor.h"
#include "kernels/registry.h"

namespace lgpu {

absl::StatusOr<Tensor> MatMul(const Tensor& a, const Tensor& b, const MatMulOptions& options) {
  const std::array<const Tensor*, 2> inputs = {&a, &b};
  return internal::Execute(MatMulOp(), inputs,
                           {.transpose_a = options.transpose_a, .transpose_b = options.transpose_b});
}

absl::StatusOr<Tensor> AddN(std::span<const Tensor> inputs) {
  if (inputs.empty()) return AddNOp().infer({}, {}).status();
  if (inputs.size() == 1 && inputs[0].has_value()) return inputs[0];
  absl::InlinedVector<const Tensor*, 8> pointers;
  for (const Tensor& input : inputs) pointers.push_back(&input);
  return internal::Execute(AddNOp(), pointers, {});
}

absl::StatusOr<Tensor> Cast(const Tensor& input, DType to) {
  const Tensor* const only = &input;
  return internal::Execute(CastOp(), {&only, 1}, {.cast_to = to});
}

absl::StatusOr<Tensor> CopyToDevice(const Tensor& input, std::string_view device) {
  return internal::CopyToNamed(input, device);
}

absl::StatusOr<Tensor> Identity(const Tensor& input) {
  const Tensor* const only = &input;
  return internal::Execute(IdentityOp(), {&only, 1}, {});
}

absl::StatusOr<Tensor> ShapeOf(const Tensor& input) {
  const Tensor* const only = &input;
  return internal::Execute(ShapeOp(), {&only, 1}, {});
}

absl::StatusOr<Tensor> SizeOf(const Tensor& input) {
  const Tensor* const only = &input;
  return internal::Execute(SizeOp(), {&only, 1}, {});
}

absl::StatusOr<Tensor> RankOf(const Tensor& input) {
  const Tensor* const only = &input;
  return internal::Execute(RankOp(), {&only, 1}, {});
}

}  // namespace lgpu
