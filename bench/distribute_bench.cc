// Measures MirroredStrategy's part of a step: two layers on a batch of 256 images of 8x8, on one simulated
// GPU, on two under the strategy, and on two by hand (one thread, device after device), on the same cores in
// the same run. And a sum of 64 Mi floats over four logical devices of one card, with the bytes that it moved
// over the fewest possible.

#include <benchmark/benchmark.h>
#include <sched.h>

#include <array>
#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <span>
#include <string>
#include <vector>

#include "lgpu/lgpu.h"
#include "lgpu/mirrored_strategy.h"
#include "lgpu/status.h"
#include "lgpu/training.h"

namespace lgpu {
namespace {

constexpr std::int64_t kRows = 256, kPixels = 64, kHidden = 128, kClasses = 10;
constexpr double kRate = 0.01;

/// Ends the program on an error: a figure of a step that failed means nothing.
template <typename T>
T Must(absl::StatusOr<T> value) {
  if (value.ok()) return *std::move(value);
  std::cerr << "distribute_bench: " << value.status() << "\n";
  std::exit(1);
}

void MustBeOk(const absl::Status& status) { Must(status.ok() ? absl::StatusOr<int>(0) : status); }

void UseCores(std::int64_t count) {
  cpu_set_t set;
  CPU_ZERO(&set);
  for (int core = 0; core < count; ++core) CPU_SET(core, &set);
  if (sched_setaffinity(0, sizeof(set), &set) != 0) {
    std::cerr << "distribute_bench: this machine has fewer cores\n";
  }
}

Context Open(int devices, Bytes memory) {
  return Must(Context::Create({.logical_devices = std::vector<LogicalDeviceOptions>(
                                   static_cast<std::size_t>(devices), {.memory_limit = memory}),
                               .endpoint = "local:1x6GiB"}));
}

struct Network {
  MirroredVariable kernel1, bias1, kernel2, bias2;
  std::array<MirroredVariable*, 4> variables() { return {&kernel1, &bias1, &kernel2, &bias2}; }
};

Network MakeNetwork(const Context& context, const MirroredStrategy& strategy) {
  return {Must(strategy.Variable(Must(GlorotUniform(context, Shape{kPixels, kHidden}, 1)))),
          Must(strategy.Variable(Must(Zeros(context, Shape{kHidden})))),
          Must(strategy.Variable(Must(GlorotUniform(context, Shape{kHidden, kClasses}, 2)))),
          Must(strategy.Variable(Must(Zeros(context, Shape{kClasses}))))};
}

struct Batch {
  PerReplica pixels, labels;
};

Batch MakeBatch(const Context& context, const MirroredStrategy& strategy) {
  std::vector<float> pixels;
  std::vector<std::int32_t> labels;
  for (std::int64_t i = 0; i < kRows * kPixels; ++i) pixels.push_back(static_cast<float>(i * 7 % 17) / 16);
  for (std::int64_t i = 0; i < kRows; ++i) labels.push_back(static_cast<std::int32_t>(i % kClasses));
  const DeviceScope cpu(context, "/CPU:0");
  return {
      Must(strategy.Split(Must(context.Constant<float>({kRows, kPixels}, std::span<const float>(pixels))))),
      Must(strategy.Split(
          Must(context.Constant<std::int32_t>({kRows}, std::span<const std::int32_t>(labels)))))};
}

/// The gradients of one replica's part of the batch, in the scope of its device.
absl::StatusOr<std::vector<Tensor>> Gradients(const Context& context, Network& network, const Batch& batch,
                                              int replica, double weight) {
  const Tensor& x = batch.pixels[replica];
  LGPU_ASSIGN_OR_RETURN(const Tensor before,
                        Dense(x, network.kernel1.value(replica), network.bias1.value(replica)));
  LGPU_ASSIGN_OR_RETURN(const Tensor hidden, Relu(before));
  LGPU_ASSIGN_OR_RETURN(const Tensor logits,
                        Dense(hidden, network.kernel2.value(replica), network.bias2.value(replica)));
  LGPU_ASSIGN_OR_RETURN(const Loss loss,
                        SparseCategoricalCrossEntropy(context, logits, batch.labels[replica], weight));
  LGPU_ASSIGN_OR_RETURN(const DenseGradients second,
                        DenseGrad(hidden, network.kernel2.value(replica), loss.gradient));
  LGPU_ASSIGN_OR_RETURN(const Tensor of_before, ReluGrad(second.x, before));
  LGPU_ASSIGN_OR_RETURN(const DenseGradients first,
                        DenseGrad(x, network.kernel1.value(replica), of_before, {.of_x = false}));
  return std::vector<Tensor>{first.kernel, first.bias, second.kernel, second.bias};
}

void BM_Step(benchmark::State& state, int devices) {
  UseCores(state.range(0));
  const Context context = Open(devices, 64_MiB);
  const MirroredStrategy strategy = Must(MirroredStrategy::Create(context));
  Network network = MakeNetwork(context, strategy);
  const Batch batch = MakeBatch(context, strategy);
  Sgd sgd(strategy, {.learning_rate = kRate});
  for (auto _ : state) {
    MustBeOk(strategy.Run([&](Replica& replica) -> absl::Status {
      LGPU_ASSIGN_OR_RETURN(const std::vector<Tensor> own, Gradients(context, network, batch, replica.id(),
                                                                     replica.LossWeight(batch.pixels)));
      LGPU_ASSIGN_OR_RETURN(const std::vector<Tensor> sums, replica.AllReduce(ReduceOp::kSum, own));
      return sgd.Apply(replica, network.variables(), sums);
    }));
  }
}

/// As examples/06_towers.cc would do it: no threads, each gradient added on the first device and copied back.
absl::Status StepByHand(const Context& context, const MirroredStrategy& strategy, Network& network,
                        std::vector<std::vector<Tensor>>& values, const Batch& batch, const Tensor& rate) {
  std::vector<std::vector<Tensor>> gradients;
  for (int i = 0; i < strategy.replicas(); ++i) {
    const DeviceScope scope(context, strategy.devices()[static_cast<std::size_t>(i)]);
    LGPU_ASSIGN_OR_RETURN(std::vector<Tensor> own, Gradients(context, network, batch, i, 0.5));
    gradients.push_back(std::move(own));
  }
  for (std::size_t v = 0; v < gradients[0].size(); ++v) {
    const DeviceScope first(context, strategy.devices()[0]);
    LGPU_ASSIGN_OR_RETURN(const Tensor sum, AddN({gradients[0][v], gradients[1][v]}));
    for (std::size_t i = 0; i < gradients.size(); ++i) {
      const DeviceScope scope(context, strategy.devices()[i]);
      LGPU_ASSIGN_OR_RETURN(const Tensor there, CopyToDevice(sum, strategy.devices()[i]));
      LGPU_ASSIGN_OR_RETURN(const Tensor step, Multiply(there, rate));
      LGPU_ASSIGN_OR_RETURN(values[i][v], Subtract(values[i][v], step));
    }
  }
  return absl::OkStatus();
}

void BM_StepByHand(benchmark::State& state) {
  UseCores(state.range(0));
  const Context context = Open(2, 64_MiB);
  const MirroredStrategy strategy = Must(MirroredStrategy::Create(context));
  Network network = MakeNetwork(context, strategy);
  std::vector<std::vector<Tensor>> values(2);
  for (int i = 0; i < 2; ++i) {
    for (const MirroredVariable* variable : network.variables()) {
      values[static_cast<std::size_t>(i)].push_back(variable->value(i));
    }
  }
  const Batch batch = MakeBatch(context, strategy);
  const Tensor rate = Must(context.Constant<float>(static_cast<float>(kRate)));
  for (auto _ : state) MustBeOk(StepByHand(context, strategy, network, values, batch, rate));
}

void BM_AllReduce64Mi(benchmark::State& state) {
  UseCores(2);
  constexpr std::int64_t kElements = std::int64_t{64} << 20;
  const Context context = Open(4, 1536_MiB);
  const MirroredStrategy strategy = Must(MirroredStrategy::Create(context));
  const PerReplica values = Must(strategy.Broadcast(Must(context.Fill<float>({kElements}, 1))));
  const Context::CopyCount before = context.CopyCounts();
  for (auto _ : state) {
    MustBeOk(strategy.Run(
        [&](Replica& replica) { return replica.AllReduce(ReduceOp::kSum, values[replica.id()]).status(); }));
  }
  const double moved = static_cast<double>((context.CopyCounts().bytes - before.bytes).count()) /
                       static_cast<double>(state.iterations());
  state.counters["moved_over_least"] = moved / (2.0 * 3 * kElements * sizeof(float));
}

void BM_AddN4x64Mi(benchmark::State& state) {
  UseCores(2);
  constexpr std::int64_t kElements = std::int64_t{64} << 20;
  const Context context = Open(1, 2560_MiB);
  const std::vector<Tensor> values(4, Must(context.Fill<float>({kElements}, 1)));
  for (auto _ : state) benchmark::DoNotOptimize(AddN(values));
}

}  // namespace
}  // namespace lgpu

int main(int argc, char** argv) {
  // A BLAS with threads of its own would use the cores that the replicas are to share.
  setenv("OPENBLAS_NUM_THREADS", "1", 1);
  using lgpu::BM_Step;
  for (const int cores : {1, 2}) {
    benchmark::RegisterBenchmark("BM_Step/one_device", BM_Step, 1)
        ->Arg(cores)
        ->ArgName("cores")
        ->UseRealTime();
    benchmark::RegisterBenchmark("BM_Step/two_devices", BM_Step, 2)
        ->Arg(cores)
        ->ArgName("cores")
        ->UseRealTime();
    benchmark::RegisterBenchmark("BM_Step/by_hand", lgpu::BM_StepByHand)
        ->Arg(cores)
        ->ArgName("cores")
        ->UseRealTime();
  }
  benchmark::RegisterBenchmark("BM_AllReduce64Mi", lgpu::BM_AllReduce64Mi)
      ->UseRealTime()
      ->Unit(benchmark::kMillisecond);
  benchmark::RegisterBenchmark("BM_AddN4x64Mi", lgpu::BM_AddN4x64Mi)
      ->UseRealTime()
      ->Unit(benchmark::kMillisecond);
  benchmark::Initialize(&argc, argv);
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
