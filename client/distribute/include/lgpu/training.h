#ifndef LGPU_TRAINING_H_
#define LGPU_TRAINING_H_

#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "lgpu/context.h"
#include "lgpu/export.h"
#include "lgpu/mirrored_strategy.h"
#include "lgpu/tensor.h"

namespace lgpu {

// What a small network needs to be trained: a dense layer, two losses and SGD, with gradients. They are made
// of the ops of ops.h, so each runs on the CPU and on GPUs, where those run; the errors are theirs. All
// tensors are of one floating dtype. Rows are examples.

/// Keras' glorot_uniform for a kernel of that shape [inputs,units]: even in +-sqrt(6 / (inputs + units)), the
/// same for the same seed, as float on the device of this thread's scope.
LGPU_API absl::StatusOr<Tensor> GlorotUniform(const Context& context, const Shape& shape, std::uint32_t seed);
/// As float, on the device of this thread's scope.
LGPU_API absl::StatusOr<Tensor> Zeros(const Context& context, const Shape& shape);

/// x [rows,inputs] times kernel [inputs,units], plus bias [units]: [rows,units].
LGPU_API absl::StatusOr<Tensor> Dense(const Tensor& x, const Tensor& kernel, const Tensor& bias);
struct DenseGradients {
  Tensor x;       // [rows,inputs]; without value unless it was asked for
  Tensor kernel;  // [inputs,units]
  Tensor bias;    // [units]
};
struct DenseGradOptions {
  bool of_x = true;  // false: for the first layer of a network
};
/// `output`: the gradient of the loss by what Dense returned, [rows,units].
LGPU_API absl::StatusOr<DenseGradients> DenseGrad(const Tensor& x, const Tensor& kernel, const Tensor& output,
                                                  const DenseGradOptions& options = {});

/// A loss, and its gradient by the predictions. `weight` multiplies both (Replica::LossWeight).
struct Loss {
  Tensor value;     // no dimensions
  Tensor gradient;  // of the predictions' shape
};
/// Keras' "mse": the mean of the squared differences. Tensors of one shape.
LGPU_API absl::StatusOr<Loss> MeanSquaredError(const Context& context, const Tensor& predictions,
                                               const Tensor& targets, double weight = 1);
/// The mean over rows of SparseSoftmaxCrossEntropyWithLogits.
LGPU_API absl::StatusOr<Loss> SparseCategoricalCrossEntropy(const Context& context, const Tensor& logits,
                                                            const Tensor& labels, double weight = 1);

struct SgdOptions {
  double learning_rate = 0.01;
  double momentum = 0;
};
/// Keras' SGD: without momentum w -= rate * g; with it v = momentum * v - rate * g, w += v. Keeps the v of
/// each variable. Thread-safety: each replica of one strategy its own; nothing else at the same time.
class LGPU_API Sgd {
 public:
  Sgd(const MirroredStrategy& strategy, const SgdOptions& options);
  /// Within a step, with summed gradients: a new value for this replica's copy of each variable. Nothing is
  /// assigned where one of them fails. INVALID_ARGUMENT: as many gradients as variables are needed, and a
  /// replica of this strategy.
  absl::Status Apply(const Replica& replica, std::span<MirroredVariable* const> variables,
                     std::span<const Tensor> gradients);

 private:
  struct Of {  // of one replica
    std::map<DType, Tensor> rates;
    std::map<DType, Tensor> momenta;
    std::vector<Tensor> velocities;  // by variable
  };
  absl::StatusOr<Tensor> Step(const Replica& replica, const Tensor& gradient, Tensor& velocity);
  const SgdOptions options_;
  std::vector<Of> of_;
};

}  // namespace lgpu

#endif  // LGPU_TRAINING_H_
