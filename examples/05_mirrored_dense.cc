// TensorFlow's guide on one card with several logical GPUs: a dense layer of one unit under MirroredStrategy,
// with mean squared error and SGD(0.2). First one step from zero on an uneven batch, whose numbers can be
// checked by hand; then a line is learned.

#include <lgpu/lgpu.h>
#include <lgpu/mirrored_strategy.h>
#include <lgpu/training.h>

#include <iostream>
#include <vector>

using namespace lgpu;

namespace {

/// Rows of one column, on the CPU.
absl::StatusOr<Tensor> Column(const Context& context, const std::vector<float>& values) {
  const DeviceScope cpu(context, "/CPU:0");
  return context.Constant<float>(Shape{static_cast<std::int64_t>(values.size()), 1},
                                 std::span<const float>(values));
}

struct Model {
  MirroredVariable kernel, bias;
};

absl::StatusOr<Model> MakeModel(const Context& context, const MirroredStrategy& strategy) {
  LGPU_ASSIGN_OR_RETURN(const Tensor kernel, Zeros(context, Shape{1, 1}));
  LGPU_ASSIGN_OR_RETURN(const Tensor bias, Zeros(context, Shape{1}));
  Model model;
  LGPU_ASSIGN_OR_RETURN(model.kernel, strategy.Variable(kernel));
  LGPU_ASSIGN_OR_RETURN(model.bias, strategy.Variable(bias));
  return model;
}

/// The summed gradients of kernel and bias, on each replica.
absl::StatusOr<std::vector<Tensor>> Gradients(Replica& replica, const Model& model, const PerReplica& x,
                                              const PerReplica& y) {
  const Tensor& input = x[replica.id()];
  LGPU_ASSIGN_OR_RETURN(const Tensor kernel, replica.Read(model.kernel));
  LGPU_ASSIGN_OR_RETURN(const Tensor bias, replica.Read(model.bias));
  LGPU_ASSIGN_OR_RETURN(const Tensor predictions, Dense(input, kernel, bias));
  LGPU_ASSIGN_OR_RETURN(const Loss loss, MeanSquaredError(replica.context(), predictions, y[replica.id()],
                                                          replica.LossWeight(x)));
  LGPU_ASSIGN_OR_RETURN(const DenseGradients own, DenseGrad(input, kernel, loss.gradient, {.of_x = false}));
  return replica.AllReduce(ReduceOp::kSum, std::vector<Tensor>{own.kernel, own.bias});
}

absl::StatusOr<float> Number(const Tensor& tensor) {
  LGPU_ASSIGN_OR_RETURN(const std::vector<float> values, tensor.ToVector<float>());
  return values.at(0);
}

absl::Status FirstStep(const Context& context, bool tensorflow_weights) {
  LGPU_ASSIGN_OR_RETURN(const MirroredStrategy strategy,
                        MirroredStrategy::Create(context, {.tensorflow_weights = tensorflow_weights}));
  LGPU_ASSIGN_OR_RETURN(const Model model, MakeModel(context, strategy));
  LGPU_ASSIGN_OR_RETURN(const Tensor all_x, Column(context, {1, 2, 3}));
  LGPU_ASSIGN_OR_RETURN(const Tensor all_y, Column(context, {3, 5, 7}));
  LGPU_ASSIGN_OR_RETURN(const PerReplica x, strategy.Split(all_x));
  LGPU_ASSIGN_OR_RETURN(const PerReplica y, strategy.Split(all_y));
  return strategy.Run([&](Replica& replica) -> absl::Status {
    LGPU_ASSIGN_OR_RETURN(const std::vector<Tensor> sums, Gradients(replica, model, x, y));
    if (replica.id() != 0) return absl::OkStatus();
    LGPU_ASSIGN_OR_RETURN(const float of_kernel, Number(sums[0]));
    std::cout << "2 + 1 rows, " << (tensorflow_weights ? "weighted as in TensorFlow" : "weighted by rows")
              << ": gradient of the kernel " << of_kernel << "\n";
    return absl::OkStatus();
  });
}

absl::Status LearnALine(const Context& context) {
  LGPU_ASSIGN_OR_RETURN(const MirroredStrategy strategy, MirroredStrategy::Create(context));
  LGPU_ASSIGN_OR_RETURN(Model model, MakeModel(context, strategy));
  std::vector<float> inputs, targets;
  for (int i = 0; i < 16; ++i) {
    inputs.push_back(static_cast<float>(i) / 16);
    targets.push_back(2 * inputs.back() + 1);
  }
  LGPU_ASSIGN_OR_RETURN(const Tensor all_x, Column(context, inputs));
  LGPU_ASSIGN_OR_RETURN(const Tensor all_y, Column(context, targets));
  LGPU_ASSIGN_OR_RETURN(const PerReplica x, strategy.Split(all_x));
  LGPU_ASSIGN_OR_RETURN(const PerReplica y, strategy.Split(all_y));
  Sgd sgd(strategy, {.learning_rate = 0.2});
  MirroredVariable* const variables[] = {&model.kernel, &model.bias};
  for (int step = 0; step < 300; ++step) {
    LGPU_RETURN_IF_ERROR(strategy.Run([&](Replica& replica) -> absl::Status {
      LGPU_ASSIGN_OR_RETURN(const std::vector<Tensor> sums, Gradients(replica, model, x, y));
      return sgd.Apply(replica, variables, sums);
    }));
  }
  for (int replica = 0; replica < strategy.replicas(); ++replica) {
    LGPU_ASSIGN_OR_RETURN(const float kernel, Number(model.kernel.value(replica)));
    LGPU_ASSIGN_OR_RETURN(const float bias, Number(model.bias.value(replica)));
    std::cout << strategy.devices()[static_cast<std::size_t>(replica)] << " learned y = " << kernel << " x + "
              << bias << "\n";
  }
  return absl::OkStatus();
}

absl::Status Run() {
  LGPU_ASSIGN_OR_RETURN(
      const Context context,
      Context::Create({.logical_devices = {{.memory_limit = 64_MiB}, {.memory_limit = 64_MiB}}}));
  LGPU_RETURN_IF_ERROR(FirstStep(context, true));
  LGPU_RETURN_IF_ERROR(FirstStep(context, false));
  return LearnALine(context);
}

}  // namespace

int main() {
  if (const absl::Status status = Run(); !status.ok()) {
    std::cerr << "05_mirrored_dense: " << status.message() << "\n";
    return 1;
  }
  return 0;
}
