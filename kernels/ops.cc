#include <array>
#include <limits>

#include "kernels/infer.h"
#include "kernels/registry.h"
#include "kernels/text.h"

namespace lgpu {

absl::Status WrongDType(std::string_view op, std::size_t input, DType expected, DType actual) {
  return absl::InvalidArgumentError(Cat("cannot compute ", op, " as input #", input,
                                        "(zero-based) was expected to be a ", DTypeName(expected),
                                        " tensor but is a ", DTypeName(actual), " tensor"));
}

absl::Status CheckInputCount(std::string_view op, std::size_t expected, std::size_t actual) {
  if (actual == expected) return absl::OkStatus();
  return absl::InvalidArgumentError(Cat(op, " takes ", expected, " inputs, got ", actual));
}

namespace {

absl::StatusOr<TensorSpec> InferMatMul(std::span<const TensorSpec> inputs, const OpAttributes& attributes) {
  if (absl::Status status = CheckInputCount("MatMul", 2, inputs.size()); !status.ok()) return status;
  const TensorSpec& a = inputs[0];
  const TensorSpec& b = inputs[1];
  if (a.dtype != b.dtype) return WrongDType("MatMul", 1, a.dtype, b.dtype);
  if (a.shape.rank() != b.shape.rank()) {
    return absl::InvalidArgumentError(
        Cat("In[0] and In[1] has different ndims: ", a.shape.ToString(), " vs. ", b.shape.ToString()));
  }
  if (a.shape.rank() != 2) {
    return absl::InvalidArgumentError(Cat("In[0] and In[1] ndims must be == 2: ", a.shape.rank()));
  }
  const int a_row = attributes.transpose_a ? 1 : 0;
  const int b_row = attributes.transpose_b ? 1 : 0;
  if (a.shape[1 - a_row] != b.shape[b_row]) {
    return absl::InvalidArgumentError(
        Cat("Matrix size-incompatible: In[0]: ", a.shape.ToString(), ", In[1]: ", b.shape.ToString()));
  }
  for (const TensorSpec& input : inputs) {
    for (const std::int64_t dimension : input.shape.dimensions()) {
      if (dimension > std::numeric_limits<std::int32_t>::max()) {  // what BLAS can count
        return absl::InvalidArgumentError(
            Cat("MatMul takes dimensions up to ", std::numeric_limits<std::int32_t>::max(),
                ", got a matrix of shape ", input.shape.ToString(), "; split it"));
      }
    }
  }
  return TensorSpec{a.dtype, Shape{a.shape[a_row], b.shape[1 - b_row]}};
}

absl::StatusOr<TensorSpec> InferAddN(std::span<const TensorSpec> inputs, const OpAttributes&) {
  if (inputs.empty()) {
    return absl::InvalidArgumentError(
        "Inputs must be an iterable of at least one Tensor/IndexedSlices with the same dtype and shape.");
  }
  const TensorSpec& first = inputs[0];
  for (std::size_t i = 1; i < inputs.size(); ++i) {
    if (inputs[i].dtype != first.dtype) return WrongDType("AddN", i, first.dtype, inputs[i].dtype);
    if (inputs[i].shape != first.shape) {
      return absl::InvalidArgumentError(
          Cat("Inputs to operation AddN of type AddN must have the same size and shape.  Input 0: ",
              first.shape.ToString(), " != input ", i, ": ", inputs[i].shape.ToString()));
    }
  }
  return first;
}

absl::StatusOr<TensorSpec> InferCast(std::span<const TensorSpec> inputs, const OpAttributes& attributes) {
  if (absl::Status status = CheckInputCount("Cast", 1, inputs.size()); !status.ok()) return status;
  if (ElementBytes(attributes.cast_to) == 0) {
    return absl::InvalidArgumentError(Cat("Cast of a ", DTypeName(inputs[0].dtype),
                                          " tensor to dtype number ", static_cast<int>(attributes.cast_to),
                                          ", which lgpu does not have"));
  }
  return TensorSpec{attributes.cast_to, inputs[0].shape};
}

absl::StatusOr<TensorSpec> InferIdentity(std::span<const TensorSpec> inputs, const OpAttributes&) {
  if (absl::Status status = CheckInputCount("Identity", 1, inputs.size()); !status.ok()) return status;
  return inputs[0];
}

absl::StatusOr<TensorSpec> InferEagerConst(std::span<const TensorSpec> inputs, const OpAttributes&) {
  if (absl::Status status = CheckInputCount("_EagerConst", 1, inputs.size()); !status.ok()) return status;
  return inputs[0];
}

absl::StatusOr<TensorSpec> InferShape(std::span<const TensorSpec> inputs, const OpAttributes&) {
  if (absl::Status status = CheckInputCount("Shape", 1, inputs.size()); !status.ok()) return status;
  const Shape& shape = inputs[0].shape;
  for (int axis = 0; axis < shape.rank(); ++axis) {
    if (shape[axis] > std::numeric_limits<std::int32_t>::max()) {
      return absl::InvalidArgumentError(
          Cat("Shape output type is 32-bit  but dim ", axis, " is ", shape[axis]));
    }
  }
  return TensorSpec{DType::kInt32, Shape{shape.rank()}};
}

absl::StatusOr<TensorSpec> InferSize(std::span<const TensorSpec> inputs, const OpAttributes&) {
  if (absl::Status status = CheckInputCount("Size", 1, inputs.size()); !status.ok()) return status;
  if (inputs[0].shape.elements() > std::numeric_limits<std::int32_t>::max()) {
    return absl::InvalidArgumentError(
        "Number of elements was larger than representable by 32-bit output type");
  }
  return TensorSpec{DType::kInt32, Shape{}};
}

absl::StatusOr<TensorSpec> InferRank(std::span<const TensorSpec> inputs, const OpAttributes&) {
  if (absl::Status status = CheckInputCount("Rank", 1, inputs.size()); !status.ok()) return status;
  return TensorSpec{DType::kInt32, Shape{}};
}

constexpr std::array<Op, 21> kOps = {{
    {"MatMul", 2, 2, InferMatMul, 0},
    {"AddN", 1, -1, InferAddN, 1},
    {"Cast", 1, 1, InferCast, 2},
    {"Identity", 1, 1, InferIdentity, 3},
    {"_EagerConst", 1, 1, InferEagerConst, 4},
    {"Shape", 1, 1, InferShape, 5, true},
    {"Size", 1, 1, InferSize, 6, true},
    {"Rank", 1, 1, InferRank, 7, true},
    {"Neg", 1, 1, InferNeg, 8},
    {"Relu", 1, 1, InferRelu, 9},
    {"ReluGrad", 2, 2, InferReluGrad, 10},
    {"AddV2", 2, 2, InferAddV2, 11},
    {"Sub", 2, 2, InferSub, 12},
    {"Mul", 2, 2, InferMul, 13},
    {"RealDiv", 2, 2, InferRealDiv, 14},
    {"Fill", 1, 1, InferFill, 15},
    {"Transpose", 1, 1, InferTranspose, 16},
    {"Sum", 1, 1, InferSum, 17},
    {"Mean", 1, 1, InferMean, 18},
    {"SparseSoftmaxCrossEntropyWithLogits", 2, 2, InferSoftmaxCrossEntropy, 19, false, InferSoftmaxGradient},
    {"ConcatV2", 1, -1, InferConcat, 20},
}};

}  // namespace

std::string_view DeviceTypeName(DeviceType type) { return type == DeviceType::kGpu ? "GPU" : "CPU"; }

std::span<const Op> AllOps() { return kOps; }
const Op& MatMulOp() { return kOps[0]; }
const Op& AddNOp() { return kOps[1]; }
const Op& CastOp() { return kOps[2]; }
const Op& IdentityOp() { return kOps[3]; }
const Op& EagerConstOp() { return kOps[4]; }
const Op& ShapeOp() { return kOps[5]; }
const Op& SizeOp() { return kOps[6]; }
const Op& RankOp() { return kOps[7]; }
const Op& NegOp() { return kOps[8]; }
const Op& ReluOp() { return kOps[9]; }
const Op& ReluGradOp() { return kOps[10]; }
const Op& AddV2Op() { return kOps[11]; }
const Op& SubOp() { return kOps[12]; }
const Op& MulOp() { return kOps[13]; }
const Op& RealDivOp() { return kOps[14]; }
const Op& FillOp() { return kOps[15]; }
const Op& TransposeOp() { return kOps[16]; }
const Op& SumOp() { return kOps[17]; }
const Op& MeanOp() { return kOps[18]; }
const Op& SoftmaxCrossEntropyOp() { return kOps[19]; }
const Op& ConcatOp() { return kOps[20]; }

std::vector<TensorSpec> ExampleInputs(const Op& op, DType dtype) {
  if (&op == &FillOp()) return {{dtype, {}}};
  if (&op == &SoftmaxCrossEntropyOp()) return {{dtype, {1, 1}}, {DType::kInt32, {1}}};
  const int count = &op == &AddNOp() ? 2 : op.min_inputs;
  return std::vector<TensorSpec>(static_cast<std::size_t>(count), {dtype, {1, 1}});
}

const Op* FindOp(std::string_view name) {
  for (const Op& op : kOps) {
    if (op.name == name) return &op;
  }
  return nullptr;
}

}  // namespace lgpu
