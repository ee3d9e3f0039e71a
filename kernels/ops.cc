#include <array>
#include <cstdint>
#include <limits>

#include "kernels/infer.h"
#include "kernels/op_list.h"
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

absl::StatusOr<TensorSpec> InferMatMul(const Op& op, Specs inputs, const OpAttributes& attributes) {
  if (absl::Status status = CheckInputCount(op.name, 2, inputs.size()); !status.ok()) return status;
  const TensorSpec& a = inputs[0];
  const TensorSpec& b = inputs[1];
  if (a.dtype != b.dtype) return WrongDType(op.name, 1, a.dtype, b.dtype);
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

absl::StatusOr<TensorSpec> InferAddN(const Op& op, Specs inputs, const OpAttributes&) {
  if (inputs.empty()) {
    return absl::InvalidArgumentError(
        "Inputs must be an iterable of at least one Tensor/IndexedSlices with the same dtype and shape.");
  }
  const TensorSpec& first = inputs[0];
  for (std::size_t i = 1; i < inputs.size(); ++i) {
    if (inputs[i].dtype != first.dtype) return WrongDType(op.name, i, first.dtype, inputs[i].dtype);
    if (inputs[i].shape != first.shape) {
      return absl::InvalidArgumentError(
          Cat("Inputs to operation AddN of type AddN must have the same size and shape.  Input 0: ",
              first.shape.ToString(), " != input ", i, ": ", inputs[i].shape.ToString()));
    }
  }
  return first;
}

absl::StatusOr<TensorSpec> InferCast(const Op& op, Specs inputs, const OpAttributes& attributes) {
  if (absl::Status status = CheckInputCount(op.name, 1, inputs.size()); !status.ok()) return status;
  if (ElementBytes(attributes.cast_to) == 0) {
    return absl::InvalidArgumentError(Cat("Cast of a ", DTypeName(inputs[0].dtype),
                                          " tensor to dtype number ", static_cast<int>(attributes.cast_to),
                                          ", which lgpu does not have"));
  }
  return TensorSpec{attributes.cast_to, inputs[0].shape};
}

absl::StatusOr<TensorSpec> InferShape(const Op& op, Specs inputs, const OpAttributes&) {
  if (absl::Status status = CheckInputCount(op.name, 1, inputs.size()); !status.ok()) return status;
  const Shape& shape = inputs[0].shape;
  for (int axis = 0; axis < shape.rank(); ++axis) {
    if (shape[axis] > std::numeric_limits<std::int32_t>::max()) {
      return absl::InvalidArgumentError(
          Cat("Shape output type is 32-bit  but dim ", axis, " is ", shape[axis]));
    }
  }
  return TensorSpec{DType::kInt32, Shape{shape.rank()}};
}

absl::StatusOr<TensorSpec> InferSize(const Op& op, Specs inputs, const OpAttributes&) {
  if (absl::Status status = CheckInputCount(op.name, 1, inputs.size()); !status.ok()) return status;
  if (inputs[0].shape.elements() > std::numeric_limits<std::int32_t>::max()) {
    return absl::InvalidArgumentError(
        "Number of elements was larger than representable by 32-bit output type");
  }
  return TensorSpec{DType::kInt32, Shape{}};
}

absl::StatusOr<TensorSpec> InferRank(const Op& op, Specs inputs, const OpAttributes&) {
  if (absl::Status status = CheckInputCount(op.name, 1, inputs.size()); !status.ok()) return status;
  return TensorSpec{DType::kInt32, Shape{}};
}

using enum DTypes;

enum class Index : std::uint16_t {
#define LGPU_OP_INDEX(op, ...) k##op,
  LGPU_OPS(LGPU_OP_INDEX)
#undef LGPU_OP_INDEX
};

constexpr auto kOps = std::to_array<Op>({
#define LGPU_OP(op, called, fewest, most, rule, gpus, cpu, ...) \
  {.name = called,                                              \
   .min_inputs = fewest,                                        \
   .max_inputs = most,                                          \
   .infer = rule,                                               \
   .index = static_cast<std::uint16_t>(Index::k##op),           \
   .on_gpus = gpus,                                             \
   .on_cpu = cpu __VA_OPT__(, ) __VA_ARGS__},
    LGPU_OPS(LGPU_OP)
#undef LGPU_OP
});

}  // namespace

std::string_view DeviceTypeName(DeviceType type) { return type == DeviceType::kGpu ? "GPU" : "CPU"; }

std::span<const Op> AllOps() { return kOps; }
#define LGPU_OP_ACCESSOR(op, ...) \
  const Op& op##Op() { return kOps[static_cast<std::size_t>(Index::k##op)]; }
LGPU_OPS(LGPU_OP_ACCESSOR)
#undef LGPU_OP_ACCESSOR

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
