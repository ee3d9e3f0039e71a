#ifndef LGPU_KERNELS_INFER_H_
#define LGPU_KERNELS_INFER_H_

#include <cstddef>
#include <span>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/op.h"

namespace lgpu {

// Op::infer of the table in ops.cc, and its helpers.

absl::Status WrongDType(std::string_view op, std::size_t input, DType expected, DType actual);
absl::Status CheckInputCount(std::string_view op, std::size_t expected, std::size_t actual);

using Specs = std::span<const TensorSpec>;
absl::StatusOr<TensorSpec> InferNeg(Specs inputs, const OpAttributes& attributes);
absl::StatusOr<TensorSpec> InferRelu(Specs inputs, const OpAttributes& attributes);
absl::StatusOr<TensorSpec> InferConcat(Specs inputs, const OpAttributes& attributes);
absl::StatusOr<TensorSpec> InferReluGrad(Specs inputs, const OpAttributes& attributes);
absl::StatusOr<TensorSpec> InferAddV2(Specs inputs, const OpAttributes& attributes);
absl::StatusOr<TensorSpec> InferSub(Specs inputs, const OpAttributes& attributes);
absl::StatusOr<TensorSpec> InferMul(Specs inputs, const OpAttributes& attributes);
absl::StatusOr<TensorSpec> InferRealDiv(Specs inputs, const OpAttributes& attributes);
absl::StatusOr<TensorSpec> InferFill(Specs inputs, const OpAttributes& attributes);
absl::StatusOr<TensorSpec> InferTranspose(Specs inputs, const OpAttributes& attributes);
absl::StatusOr<TensorSpec> InferSum(Specs inputs, const OpAttributes& attributes);
absl::StatusOr<TensorSpec> InferMean(Specs inputs, const OpAttributes& attributes);
/// The losses; the gradient is of the logits' shape.
absl::StatusOr<TensorSpec> InferSoftmaxCrossEntropy(Specs inputs, const OpAttributes& attributes);
TensorSpec InferSoftmaxGradient(Specs inputs, const OpAttributes& attributes);

}  // namespace lgpu

#endif  // LGPU_KERNELS_INFER_H_
