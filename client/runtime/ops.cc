#include "lgpu/ops.h"

#include <array>
#include <memory>
#include <utility>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "client/runtime/executor.h"
#include "client/runtime/tensor_buffer.h"
#include "kernels/registry.h"
#include "kernels/text.h"
#include "lgpu/status.h"

namespace lgpu {

namespace {

absl::StatusOr<Tensor> OfOne(const Op& op, const Tensor& input, const OpAttributes& attributes = {}) {
  const Tensor* const only = &input;
  return internal::Execute(op, {&only, 1}, attributes);
}

absl::StatusOr<Tensor> OfTwo(const Op& op, const Tensor& a, const Tensor& b) {
  const std::array<const Tensor*, 2> inputs = {&a, &b};
  return internal::Execute(op, inputs, {});
}

absl::StatusOr<AxisList> Axes(std::span<const int> axes) {
  AxisList list;
  if (axes.size() > list.values.size()) {
    return absl::InvalidArgumentError(
        Cat("a tensor has at most ", Shape::kMaxRank, " dimensions, got ", axes.size(), " axes"));
  }
  for (const int axis : axes) list.values[static_cast<std::size_t>(list.count++)] = axis;
  return list;
}

absl::StatusOr<Tensor> Reduce(const Op& op, const Tensor& input, const ReduceOptions& options) {
  AxisList axes{.all = true};
  if (options.axes) {
    LGPU_ASSIGN_OR_RETURN(axes, Axes(*options.axes));
  }
  return OfOne(op, input, {.axes = axes, .keep_dims = options.keep_dims});
}

/// `input` has a value.
Tensor Part(const Tensor& input, const Shape& shape, Bytes offset) {
  return internal::TensorBuffer::MakeTensor(std::make_shared<internal::TensorBuffer>(
      internal::TensorBuffer::Of(input), TensorSpec{input.dtype(), shape}, offset));
}

}  // namespace

absl::StatusOr<Tensor> MatMul(const Tensor& a, const Tensor& b, const MatMulOptions& options) {
  const std::array<const Tensor*, 2> inputs = {&a, &b};
  return internal::Execute(MatMulOp(), inputs,
                           {.transpose_a = options.transpose_a, .transpose_b = options.transpose_b});
}

absl::StatusOr<Tensor> AddN(std::span<const Tensor> inputs) {
  if (inputs.empty()) return AddNOp().Infer({}, {}).status();
  if (inputs.size() == 1 && inputs[0].has_value()) return inputs[0];
  absl::InlinedVector<const Tensor*, 8> pointers;
  for (const Tensor& input : inputs) pointers.push_back(&input);
  return internal::Execute(AddNOp(), pointers, {});
}

#define LGPU_CALL(call, name, op, ...) \
  absl::StatusOr<Tensor> call(const Tensor& input) { return OfOne(op##Op(), input); }
LGPU_CALLS_OF_ONE(LGPU_CALL)
#undef LGPU_CALL
#define LGPU_CALL(call, name, op, ...) \
  absl::StatusOr<Tensor> call(const Tensor& a, const Tensor& b) { return OfTwo(op##Op(), a, b); }
LGPU_CALLS_OF_TWO(LGPU_CALL)
#undef LGPU_CALL

absl::StatusOr<Tensor> Fill(const Shape& shape, const Tensor& value) {
  return OfOne(FillOp(), value, {.shape = shape});
}

absl::StatusOr<Tensor> Transpose(const Tensor& input, std::optional<std::span<const int>> permutation) {
  AxisList axes{.all = true};
  if (permutation) {
    LGPU_ASSIGN_OR_RETURN(axes, Axes(*permutation));
  }
  return OfOne(TransposeOp(), input, {.axes = axes});
}

absl::StatusOr<Tensor> ReduceSum(const Tensor& input, const ReduceOptions& options) {
  return Reduce(SumOp(), input, options);
}
absl::StatusOr<Tensor> ReduceMean(const Tensor& input, const ReduceOptions& options) {
  return Reduce(MeanOp(), input, options);
}

absl::StatusOr<Tensor> Concat(std::span<const Tensor> inputs) {
  std::vector<const Tensor*> pointers;
  for (const Tensor& input : inputs) pointers.push_back(&input);
  if (pointers.empty()) return absl::InvalidArgumentError("Concat needs at least one tensor");
  return internal::Execute(ConcatOp(), pointers, {});
}

absl::StatusOr<Tensor> Reshape(const Tensor& input, const Shape& shape) {
  if (!input.has_value()) {
    return absl::InvalidArgumentError("input #0 of Reshape is a Tensor without a value");
  }
  if (shape.elements() != input.shape().elements()) {
    return absl::InvalidArgumentError(Cat("Input to reshape is a tensor with ", input.shape().elements(),
                                          " values, but the requested shape has ", shape.elements()));
  }
  return Part(input, shape, Bytes(0));
}

absl::StatusOr<Tensor> SliceRows(const Tensor& input, std::int64_t begin, std::int64_t count) {
  if (!input.has_value()) {
    return absl::InvalidArgumentError("input #0 of SliceRows is a Tensor without a value");
  }
  const Shape& shape = input.shape();
  if (shape.rank() == 0) return absl::InvalidArgumentError("a scalar has no rows to slice");
  if (begin < 0 || begin > shape[0]) {
    return absl::InvalidArgumentError(Cat("Expected begin[0] in [0, ", shape[0], "], but got ", begin));
  }
  if (count < 0 || count > shape[0] - begin) {
    return absl::InvalidArgumentError(
        Cat("Expected size[0] in [0, ", shape[0] - begin, "], but got ", count));
  }
  std::vector<std::int64_t> dimensions(shape.dimensions().begin(), shape.dimensions().end());
  dimensions[0] = count;
  LGPU_ASSIGN_OR_RETURN(const Shape part, Shape::Make(dimensions));
  const std::uint64_t row = shape[0] == 0 ? 0 : input.bytes().count() / static_cast<std::uint64_t>(shape[0]);
  return Part(input, part, Bytes(static_cast<std::uint64_t>(begin) * row));
}

absl::StatusOr<CrossEntropy> SparseSoftmaxCrossEntropyWithLogits(const Tensor& logits, const Tensor& labels) {
  const std::array<const Tensor*, 2> inputs = {&logits, &labels};
  LGPU_ASSIGN_OR_RETURN(internal::Outputs outputs, internal::ExecuteAll(SoftmaxCrossEntropyOp(), inputs, {}));
  return CrossEntropy{std::move(outputs[0]), std::move(outputs[1])};
}

absl::StatusOr<Tensor> Cast(const Tensor& input, DType to) { return OfOne(CastOp(), input, {.cast_to = to}); }

absl::StatusOr<Tensor> CopyToDevice(const Tensor& input, std::string_view device) {
  return internal::CopyToNamed(input, device);
}

}  // namespace lgpu
