#ifndef LGPU_KERNELS_INFER_H_
#define LGPU_KERNELS_INFER_H_

#include <cstddef>
#include <span>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/op.h"

namespace lgpu {

// Op::infer of the ops, and its helpers.

absl::Status WrongDType(std::string_view op, std::size_t input, DType expected, DType actual);
absl::Status CheckInputCount(std::string_view op, std::size_t expected, std::size_t actual);

using Specs = std::span<const TensorSpec>;
/// The output is as the input.
absl::StatusOr<TensorSpec> InferSame(const Op& op, Specs inputs, const OpAttributes& attributes);
/// The output is as each of two inputs.
absl::StatusOr<TensorSpec> InferSameOfTwo(const Op& op, Specs inputs, const OpAttributes& attributes);
/// Two inputs, with TensorFlow's broadcasting.
absl::StatusOr<TensorSpec> InferBroadcast(const Op& op, Specs inputs, const OpAttributes& attributes);
absl::StatusOr<TensorSpec> InferReduce(const Op& op, Specs inputs, const OpAttributes& attributes);
absl::StatusOr<TensorSpec> InferConcat(const Op& op, Specs inputs, const OpAttributes& attributes);
absl::StatusOr<TensorSpec> InferFill(const Op& op, Specs inputs, const OpAttributes& attributes);
absl::StatusOr<TensorSpec> InferTranspose(const Op& op, Specs inputs, const OpAttributes& attributes);
/// The losses; the gradient is of the logits' shape.
absl::StatusOr<TensorSpec> InferSoftmaxCrossEntropy(const Op& op, Specs inputs,
                                                    const OpAttributes& attributes);
TensorSpec InferSoftmaxGradient(Specs inputs, const OpAttributes& attributes);

}  // namespace lgpu

#endif  // LGPU_KERNELS_INFER_H_
