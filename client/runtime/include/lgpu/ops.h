#ifndef LGPU_OPS_H_
#define LGPU_OPS_H_

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "lgpu/export.h"
#include "lgpu/tensor.h"

namespace lgpu {

// Ops run eagerly, in the context of their inputs (all of one context, else INVALID_ARGUMENT), on the
// device of this thread's innermost DeviceScope or where default placement puts them. Inputs on other
// devices are copied, as the context's device policy says. Errors: INVALID_ARGUMENT for shapes and dtypes
// that do not fit, with TensorFlow's texts; RESOURCE_EXHAUSTED with a Refusal when the output does not fit.

struct MatMulOptions {
  bool transpose_a = false;
  bool transpose_b = false;
};
/// [m,k] x [k,n] -> [m,n], all of one dtype; float16 and bfloat16 accumulate in float. int32 and int64 run on
/// the CPU only.
LGPU_API absl::StatusOr<Tensor> MatMul(const Tensor& a, const Tensor& b, const MatMulOptions& options = {});

/// The elementwise sum of one or more tensors of one shape and dtype. One input is returned unchanged.
LGPU_API absl::StatusOr<Tensor> AddN(std::span<const Tensor> inputs);
inline absl::StatusOr<Tensor> AddN(std::initializer_list<Tensor> inputs) {
  return AddN(std::span<const Tensor>(inputs.begin(), inputs.size()));
}

/// Elementwise, with TensorFlow's broadcasting: from the last dimension on, sizes are equal, or one of them
/// is 1 or not there. INVALID_ARGUMENT "Incompatible shapes: [2,3] vs. [4]". half and bfloat16 are computed
/// in float and rounded once; whole numbers wrap around. TensorFlow's AddV2, Sub, Mul, RealDiv; the last one
/// is for floating types.
LGPU_API absl::StatusOr<Tensor> Add(const Tensor& a, const Tensor& b);
LGPU_API absl::StatusOr<Tensor> Subtract(const Tensor& a, const Tensor& b);
LGPU_API absl::StatusOr<Tensor> Multiply(const Tensor& a, const Tensor& b);
LGPU_API absl::StatusOr<Tensor> Divide(const Tensor& a, const Tensor& b);
/// TensorFlow's Neg.
LGPU_API absl::StatusOr<Tensor> Negative(const Tensor& input);
/// The larger of each element and 0; NaN stays NaN. int32 and int64 run on the CPU only.
LGPU_API absl::StatusOr<Tensor> Relu(const Tensor& input);
/// `gradients` where `features` is above 0, else 0. Tensors of one shape.
LGPU_API absl::StatusOr<Tensor> ReluGrad(const Tensor& gradients, const Tensor& features);
/// The hyperbolic tangent of each element. Floating types; half and bfloat16 are computed in float.
LGPU_API absl::StatusOr<Tensor> Tanh(const Tensor& input);
/// gradients * (1 - y * y), with y = Tanh(x): the order of parameters is TensorFlow's. Tensors of one shape.
LGPU_API absl::StatusOr<Tensor> TanhGrad(const Tensor& y, const Tensor& gradients);

/// A tensor of that shape with the one element of `value` everywhere.
LGPU_API absl::StatusOr<Tensor> Fill(const Shape& shape, const Tensor& value);
/// Dimension i of the output is dimension permutation[i] of the input; without one their order is reversed.
LGPU_API absl::StatusOr<Tensor> Transpose(const Tensor& input,
                                          std::optional<std::span<const int>> permutation = {});

/// The tensors behind one another along their first dimension: TensorFlow's concat with axis 0. One dtype;
/// the other dimensions are equal.
LGPU_API absl::StatusOr<Tensor> Concat(std::span<const Tensor> inputs);
inline absl::StatusOr<Tensor> Concat(std::initializer_list<Tensor> inputs) {
  return Concat(std::span<const Tensor>(inputs.begin(), inputs.size()));
}

// No op runs for these two: they are other views of the memory of `input`, on its device, and keep it.

/// The same elements in another shape of as many.
LGPU_API absl::StatusOr<Tensor> Reshape(const Tensor& input, const Shape& shape);
/// `count` rows of the first dimension, from row `begin` on.
LGPU_API absl::StatusOr<Tensor> SliceRows(const Tensor& input, std::int64_t begin, std::int64_t count);

struct ReduceOptions {
  /// Dimensions that go; negative ones count from the end. Nothing: all.
  std::optional<std::vector<int>> axes = {};
  /// They stay, with size 1.
  bool keep_dims = false;
};
/// TensorFlow's Sum and Mean. Floating types are summed in double and rounded once; the order differs between
/// devices; the mean of nothing is NaN. The mean of int32 or int64 runs on the CPU only and is rounded
/// towards zero; that of nothing is 0.
LGPU_API absl::StatusOr<Tensor> ReduceSum(const Tensor& input, const ReduceOptions& options = {});
LGPU_API absl::StatusOr<Tensor> ReduceMean(const Tensor& input, const ReduceOptions& options = {});

struct CrossEntropy {
  Tensor loss;      // [rows]
  Tensor backprop;  // [rows,classes]: the gradient of each row's loss
};
/// TensorFlow's op of that name: logits are [rows,classes] of a floating type, labels [rows] of int32 or
/// int64. A label that is no class makes its row NaN, on every device; TensorFlow's CPU reports an error.
LGPU_API absl::StatusOr<CrossEntropy> SparseSoftmaxCrossEntropyWithLogits(const Tensor& logits,
                                                                          const Tensor& labels);

/// The same values in another dtype. To a floating type: rounded once, to nearest even; too large becomes
/// infinity. From a floating to a whole type: towards zero; NaN becomes 0, and a value out of range becomes
/// the nearest end of the range. int64 to int32: the low bits. On the CPU only, unless
/// ContextOptions::cast_on_gpu.
LGPU_API absl::StatusOr<Tensor> Cast(const Tensor& input, DType to);

/// The tensor on the named device: itself, or a copy. It is no op: policies and scopes do not apply.
/// INVALID_ARGUMENT
/// "/job:localhost/replica:0/task:0/device:GPU:2 unknown device." where there is none.
LGPU_API absl::StatusOr<Tensor> CopyToDevice(const Tensor& input, std::string_view device);

/// A copy of the tensor on the device of this thread's scope: the explicit copy between devices.
LGPU_API absl::StatusOr<Tensor> Identity(const Tensor& input);

/// The shape, the number of elements, and the number of dimensions of a tensor, as int32. They read no
/// values: nothing is copied for them, and where no scope asks for a device they run where their input is.
LGPU_API absl::StatusOr<Tensor> ShapeOf(const Tensor& input);
LGPU_API absl::StatusOr<Tensor> SizeOf(const Tensor& input);
LGPU_API absl::StatusOr<Tensor> RankOf(const Tensor& input);

}  // namespace lgpu

// clang-format off
// For bindings to other languages: the calls above that take one tensor, or two, and nothing else.
// X(call in C++, call in C (after lgpu_) and Python, op, parameters of Python..., text for Python's help)
#define LGPU_CALLS_OF_ONE(X)                                                                          \
  X(Negative, negative, Neg, "input", "The elements with their signs changed.")                        \
  X(Relu, relu, Relu, "input", "The larger of each element and 0.")                                    \
  X(Tanh, tanh, Tanh, "input", "The hyperbolic tangent of each element; floating types.")              \
  X(Identity, identity, Identity, "input", "A copy on the device of the scope.")                       \
  X(ShapeOf, shape_of, Shape, "input", "The shape as an int32 tensor: the op Shape.")                  \
  X(SizeOf, size_of, Size, "input", "The number of elements as an int32 tensor: the op Size.")         \
  X(RankOf, rank_of, Rank, "input", "The number of dimensions as an int32 tensor: the op Rank.")
#define LGPU_CALLS_OF_TWO(X)                                                                          \
  X(Add, add, AddV2, "a", "b", "Elementwise, with broadcasting.")                                      \
  X(Subtract, subtract, Sub, "a", "b", "Elementwise, with broadcasting.")                              \
  X(Multiply, multiply, Mul, "a", "b", "Elementwise, with broadcasting.")                              \
  X(Divide, divide, RealDiv, "a", "b", "Elementwise, with broadcasting; floating types.")              \
  X(ReluGrad, relu_grad, ReluGrad, "gradients", "features",                                            \
    "The gradients where the features are above 0, else 0.")                                           \
  X(TanhGrad, tanh_grad, TanhGrad, "y", "gradients", "The gradient of tanh: gradients * (1 - y * y), with y = tanh(x).")
// clang-format on

#endif  // LGPU_OPS_H_
