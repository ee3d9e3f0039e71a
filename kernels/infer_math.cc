// The outputs of the ops that training needs, with TensorFlow's errors.

#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include "kernels/axes.h"
#include "kernels/infer.h"
#include "kernels/text.h"

namespace lgpu {

absl::StatusOr<std::uint32_t> ReducedAxes(const Shape& shape, const AxisList& axes) {
  if (axes.all) return (std::uint32_t{1} << shape.rank()) - 1;
  std::uint32_t reduced = 0;
  for (int i = 0; i < axes.count; ++i) {
    const std::int32_t axis = axes.values[static_cast<std::size_t>(i)];
    const std::int32_t from_start = axis < 0 ? axis + shape.rank() : axis;
    if (from_start < 0 || from_start >= shape.rank()) {
      return absl::InvalidArgumentError(
          Cat("Invalid reduction dimension (", axis, " for input with ", shape.rank(), " dimension(s)"));
    }
    const std::uint32_t bit = std::uint32_t{1} << from_start;
    if ((reduced & bit) != 0) {
      return absl::InvalidArgumentError(
          Cat("Invalid reduction arguments: Axes contains duplicate dimension: ", axis));
    }
    reduced |= bit;
  }
  return reduced;
}

AxisList TransposedOrder(const Shape& shape, const AxisList& axes) {
  if (!axes.all) return axes;
  AxisList reversed;
  for (int d = shape.rank() - 1; d >= 0; --d) reversed.values[static_cast<std::size_t>(reversed.count++)] = d;
  return reversed;
}

absl::StatusOr<TensorSpec> InferSame(const Op& op, Specs inputs, const OpAttributes&) {
  if (absl::Status status = CheckInputCount(op.name, 1, inputs.size()); !status.ok()) return status;
  return inputs[0];
}

absl::StatusOr<TensorSpec> InferBroadcast(const Op& op, Specs inputs, const OpAttributes&) {
  if (absl::Status status = CheckInputCount(op.name, 2, inputs.size()); !status.ok()) return status;
  const TensorSpec& a = inputs[0];
  const TensorSpec& b = inputs[1];
  if (a.dtype != b.dtype) return WrongDType(op.name, 1, a.dtype, b.dtype);
  const int rank = std::max(a.shape.rank(), b.shape.rank());
  std::vector<std::int64_t> dimensions(static_cast<std::size_t>(rank), 1);
  for (int d = 1; d <= rank; ++d) {  // from the last one
    const std::int64_t in_a = d <= a.shape.rank() ? a.shape[a.shape.rank() - d] : 1;
    const std::int64_t in_b = d <= b.shape.rank() ? b.shape[b.shape.rank() - d] : 1;
    if (in_a != in_b && in_a != 1 && in_b != 1) {
      return absl::InvalidArgumentError(
          Cat("Incompatible shapes: ", a.shape.ToString(), " vs. ", b.shape.ToString()));
    }
    dimensions[static_cast<std::size_t>(rank - d)] = in_a == 1 ? in_b : in_a;
  }
  absl::StatusOr<Shape> shape = Shape::Make(dimensions);
  if (!shape.ok()) return shape.status();
  return TensorSpec{a.dtype, *shape};
}

absl::StatusOr<TensorSpec> InferReduce(const Op& op, Specs inputs, const OpAttributes& attributes) {
  if (absl::Status status = CheckInputCount(op.name, 1, inputs.size()); !status.ok()) return status;
  const Shape& shape = inputs[0].shape;
  const absl::StatusOr<std::uint32_t> reduced = ReducedAxes(shape, attributes.axes);
  if (!reduced.ok()) return reduced.status();
  std::vector<std::int64_t> dimensions;
  for (int d = 0; d < shape.rank(); ++d) {
    if ((*reduced >> d & 1U) == 0) {
      dimensions.push_back(shape[d]);
    } else if (attributes.keep_dims) {
      dimensions.push_back(1);
    }
  }
  absl::StatusOr<Shape> kept = Shape::Make(dimensions);
  if (!kept.ok()) return kept.status();
  return TensorSpec{inputs[0].dtype, *kept};
}

absl::StatusOr<TensorSpec> InferConcat(const Op& op, Specs inputs, const OpAttributes&) {
  if (inputs.empty()) return absl::InvalidArgumentError("Concat needs at least one tensor");
  const TensorSpec& first = inputs[0];
  if (first.shape.rank() == 0) {
    return absl::InvalidArgumentError("ConcatOp : Can't concatenate scalars (use tf.stack instead)");
  }
  std::vector<std::int64_t> dimensions(first.shape.dimensions().begin(), first.shape.dimensions().end());
  dimensions[0] = 0;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const Shape& shape = inputs[i].shape;
    if (inputs[i].dtype != first.dtype) return WrongDType(op.name, i, first.dtype, inputs[i].dtype);
    const std::string shapes =
        Cat("shape[0] = ", first.shape.ToString(), " vs. shape[", i, "] = ", shape.ToString());
    if (shape.rank() != first.shape.rank()) {
      return absl::InvalidArgumentError(Cat("ConcatOp : Ranks of all input tensors should match: ", shapes));
    }
    for (int d = 1; d < shape.rank(); ++d) {
      if (shape[d] == first.shape[d]) continue;
      return absl::InvalidArgumentError(
          Cat("ConcatOp : Dimension ", d, " in both shapes must be equal: ", shapes));
    }
    dimensions[0] += shape[0];
  }
  absl::StatusOr<Shape> shape = Shape::Make(dimensions);
  if (!shape.ok()) return shape.status();
  return TensorSpec{first.dtype, *shape};
}

absl::StatusOr<TensorSpec> InferSameOfTwo(const Op& op, Specs inputs, const OpAttributes&) {
  if (absl::Status status = CheckInputCount(op.name, 2, inputs.size()); !status.ok()) return status;
  if (inputs[0].dtype != inputs[1].dtype) return WrongDType(op.name, 1, inputs[0].dtype, inputs[1].dtype);
  if (inputs[0].shape != inputs[1].shape) {
    return absl::InvalidArgumentError(
        Cat("Inputs to operation ", op.name, " of type ", op.name,
            " must have the same size and shape.  Input 0: ", inputs[0].shape.ToString(),
            " != input 1: ", inputs[1].shape.ToString()));
  }
  return inputs[0];
}

absl::StatusOr<TensorSpec> InferFill(const Op& op, Specs inputs, const OpAttributes& attributes) {
  if (absl::Status status = CheckInputCount(op.name, 1, inputs.size()); !status.ok()) return status;
  if (inputs[0].shape.elements() != 1 || inputs[0].shape.rank() > 1) {
    return absl::InvalidArgumentError(
        Cat("value must represent a scalar, got shape ", inputs[0].shape.ToString()));
  }
  return TensorSpec{inputs[0].dtype, attributes.shape};
}

absl::StatusOr<TensorSpec> InferTranspose(const Op& op, Specs inputs, const OpAttributes& attributes) {
  if (absl::Status status = CheckInputCount(op.name, 1, inputs.size()); !status.ok()) return status;
  const Shape& shape = inputs[0].shape;
  const AxisList axes = TransposedOrder(shape, attributes.axes);
  if (axes.count != shape.rank()) {
    return absl::InvalidArgumentError(Cat("transpose expects a vector of size ", shape.rank(),
                                          ". But input(1) is a vector of size ", axes.count));
  }
  std::vector<std::int64_t> dimensions;
  std::uint32_t seen = 0;
  for (int i = 0; i < axes.count; ++i) {
    const std::int32_t axis = axes.values[static_cast<std::size_t>(i)];
    if (axis < 0 || axis >= shape.rank()) {
      return absl::InvalidArgumentError(Cat(axis, " is out of range [0 .. ", shape.rank(), ")"));
    }
    seen |= std::uint32_t{1} << axis;
    dimensions.push_back(shape[axis]);
  }
  for (int d = 0; d < shape.rank(); ++d) {
    if ((seen >> d & 1U) == 0) {
      std::string given;
      for (int i = 0; i < axes.count; ++i) {
        given += Cat(i == 0 ? "" : ",", axes.values[static_cast<std::size_t>(i)]);
      }
      return absl::InvalidArgumentError(Cat(d, " is missing from {", given, "}."));
    }
  }
  absl::StatusOr<Shape> transposed = Shape::Make(dimensions);
  if (!transposed.ok()) return transposed.status();
  return TensorSpec{inputs[0].dtype, *transposed};
}

absl::StatusOr<TensorSpec> InferSoftmaxCrossEntropy(const Op& op, Specs inputs, const OpAttributes&) {
  if (absl::Status status = CheckInputCount(op.name, 2, inputs.size()); !status.ok()) return status;
  const TensorSpec& logits = inputs[0];
  const TensorSpec& labels = inputs[1];
  if (labels.dtype != DType::kInt32 && labels.dtype != DType::kInt64) {
    return absl::InvalidArgumentError(
        Cat("cannot compute ", op.name,
            " as input #1(zero-based) was expected to be a int32 or int64 tensor but is a ",
            DTypeName(labels.dtype), " tensor"));
  }
  if (logits.shape.rank() != 2) {
    return absl::InvalidArgumentError(Cat("logits must be 2-D, but got shape ", logits.shape.ToString()));
  }
  if (labels.shape.rank() != 1) {
    return absl::InvalidArgumentError(Cat("labels must be 1-D, but got shape ", labels.shape.ToString()));
  }
  if (logits.shape[0] != labels.shape[0]) {
    return absl::InvalidArgumentError(
        Cat("logits and labels must have the same first dimension, got logits shape ",
            logits.shape.ToString(), " and labels shape ", labels.shape.ToString()));
  }
  if (logits.shape[1] == 0) {
    return absl::InvalidArgumentError(
        Cat("Must have at least one class, but got logits shape ", logits.shape.ToString()));
  }
  return TensorSpec{logits.dtype, Shape{logits.shape[0]}};
}

TensorSpec InferSoftmaxGradient(Specs inputs, const OpAttributes&) { return inputs[0]; }

}  // namespace lgpu
