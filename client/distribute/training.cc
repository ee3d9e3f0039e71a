#include "lgpu/training.h"

#include <cmath>
#include <random>
#include <utility>

#include "client/distribute/scalars.h"
#include "kernels/text.h"
#include "lgpu/ops.h"
#include "lgpu/status.h"

namespace lgpu {

using internal::Scalar;

namespace {

/// The scalar of that dtype, made once.
absl::StatusOr<Tensor> Kept(const Context& context, std::map<DType, Tensor>& kept, DType dtype,
                            double value) {
  Tensor& scalar = kept[dtype];
  if (!scalar.has_value()) {
    LGPU_ASSIGN_OR_RETURN(scalar, Scalar(context, dtype, value));
  }
  return scalar;
}

}  // namespace

absl::StatusOr<Tensor> GlorotUniform(const Context& context, const Shape& shape, std::uint32_t seed) {
  if (shape.rank() != 2) {
    return absl::InvalidArgumentError(
        Cat("the kernel of a dense layer is [inputs,units], got ", shape.ToString()));
  }
  const double limit = std::sqrt(6.0 / static_cast<double>(shape[0] + shape[1]));
  std::mt19937 random(seed);
  std::vector<float> values(static_cast<std::size_t>(shape.elements()));
  // Not std::uniform_real_distribution, whose numbers differ between libraries.
  for (float& value : values) value = static_cast<float>((random() * 0x1p-31 - 1) * limit);
  return context.Constant<float>(shape, std::span<const float>(values));
}

absl::StatusOr<Tensor> Zeros(const Context& context, const Shape& shape) {
  LGPU_ASSIGN_OR_RETURN(const Tensor zero, Scalar(context, DType::kFloat32, 0));
  return Fill(shape, zero);
}

absl::StatusOr<Tensor> Dense(const Tensor& x, const Tensor& kernel, const Tensor& bias) {
  LGPU_ASSIGN_OR_RETURN(const Tensor product, MatMul(x, kernel));
  return Add(product, bias);
}

absl::StatusOr<DenseGradients> DenseGrad(const Tensor& x, const Tensor& kernel, const Tensor& output,
                                         const DenseGradOptions& options) {
  DenseGradients gradients;
  LGPU_ASSIGN_OR_RETURN(gradients.kernel, MatMul(x, output, {.transpose_a = true}));
  LGPU_ASSIGN_OR_RETURN(gradients.bias, ReduceSum(output, {.axes = std::vector<int>{0}}));
  if (options.of_x) {
    LGPU_ASSIGN_OR_RETURN(gradients.x, MatMul(output, kernel, {.transpose_b = true}));
  }
  return gradients;
}

absl::StatusOr<Loss> MeanSquaredError(const Context& context, const Tensor& predictions,
                                      const Tensor& targets, double weight) {
  if (predictions.has_value() && targets.has_value() && predictions.shape() != targets.shape()) {
    return absl::InvalidArgumentError(Cat("MeanSquaredError of predictions ", predictions.shape().ToString(),
                                          " and targets ", targets.shape().ToString(),
                                          "; they have the same shape"));
  }
  LGPU_ASSIGN_OR_RETURN(const Tensor error, Subtract(predictions, targets));
  const auto count = static_cast<double>(error.shape().elements());
  LGPU_ASSIGN_OR_RETURN(const Tensor share, Scalar(context, error.dtype(), weight / count));
  LGPU_ASSIGN_OR_RETURN(const Tensor twice, Scalar(context, error.dtype(), 2 * weight / count));
  LGPU_ASSIGN_OR_RETURN(const Tensor squares, Multiply(error, error));
  LGPU_ASSIGN_OR_RETURN(const Tensor sum, ReduceSum(squares));
  Loss loss;
  LGPU_ASSIGN_OR_RETURN(loss.value, Multiply(sum, share));
  LGPU_ASSIGN_OR_RETURN(loss.gradient, Multiply(error, twice));
  return loss;
}

absl::StatusOr<Loss> SparseCategoricalCrossEntropy(const Context& context, const Tensor& logits,
                                                   const Tensor& labels, double weight) {
  LGPU_ASSIGN_OR_RETURN(const CrossEntropy entropy, SparseSoftmaxCrossEntropyWithLogits(logits, labels));
  const auto rows = static_cast<double>(logits.shape()[0]);
  LGPU_ASSIGN_OR_RETURN(const Tensor share, Scalar(context, logits.dtype(), weight / rows));
  LGPU_ASSIGN_OR_RETURN(const Tensor sum, ReduceSum(entropy.loss));
  Loss loss;
  LGPU_ASSIGN_OR_RETURN(loss.value, Multiply(sum, share));
  LGPU_ASSIGN_OR_RETURN(loss.gradient, Multiply(entropy.backprop, share));
  return loss;
}

Sgd::Sgd(const MirroredStrategy& strategy, const SgdOptions& options)
    : options_(options), of_(static_cast<std::size_t>(strategy.replicas())) {}

absl::StatusOr<Tensor> Sgd::Step(const Replica& replica, const Tensor& gradient, Tensor& velocity) {
  Of& own = of_[static_cast<std::size_t>(replica.id())];
  LGPU_ASSIGN_OR_RETURN(const Tensor rate,
                        Kept(replica.context(), own.rates, gradient.dtype(), -options_.learning_rate));
  LGPU_ASSIGN_OR_RETURN(Tensor step, Multiply(gradient, rate));
  if (options_.momentum == 0) return step;
  if (velocity.has_value()) {
    LGPU_ASSIGN_OR_RETURN(const Tensor momentum,
                          Kept(replica.context(), own.momenta, gradient.dtype(), options_.momentum));
    LGPU_ASSIGN_OR_RETURN(const Tensor kept, Multiply(velocity, momentum));
    LGPU_ASSIGN_OR_RETURN(step, Add(kept, step));
  }
  velocity = step;
  return step;
}

absl::Status Sgd::Apply(const Replica& replica, std::span<MirroredVariable* const> variables,
                        std::span<const Tensor> gradients) {
  if (variables.size() != gradients.size()) {
    return absl::InvalidArgumentError(Cat("Sgd::Apply takes a gradient for each variable; got ",
                                          variables.size(), " variables and ", gradients.size(),
                                          " gradients"));
  }
  if (static_cast<std::size_t>(replica.id()) >= of_.size()) {
    return absl::InvalidArgumentError(Cat("this Sgd was made for a MirroredStrategy of ", of_.size(),
                                          " replicas, and this is replica ", replica.id(),
                                          "; make an Sgd for the strategy of the step"));
  }
  Of& own = of_[static_cast<std::size_t>(replica.id())];
  std::vector<Tensor> velocities = own.velocities;
  velocities.resize(variables.size());
  std::vector<Tensor> values;
  for (std::size_t i = 0; i < variables.size(); ++i) {
    LGPU_ASSIGN_OR_RETURN(const Tensor old, replica.Read(*variables[i]));
    LGPU_ASSIGN_OR_RETURN(const Tensor step, Step(replica, gradients[i], velocities[i]));
    LGPU_ASSIGN_OR_RETURN(Tensor value, Add(old, step));
    values.push_back(std::move(value));
  }
  for (std::size_t i = 0; i < variables.size(); ++i) {
    LGPU_RETURN_IF_ERROR(replica.Assign(*variables[i], values[i]));
  }
  own.velocities = std::move(velocities);
  return absl::OkStatus();
}

}  // namespace lgpu
