#include "bench/workloads/residual_network.h"

#include <array>
#include <cstddef>
#include <utility>
#include <vector>

#include "bench/workloads/random.h"

namespace lgpu::bench {
namespace {

constexpr std::uint64_t kHalf = 2;
constexpr std::uint64_t kFloat = 4;
constexpr std::uint64_t kClasses = 1000;
constexpr std::uint64_t kFeatures = 2048;

struct Convolution {
  std::uint64_t inputs;   // channels
  std::uint64_t outputs;  // channels
  std::uint64_t kernel;   // pixels each way
  std::uint64_t side;     // of the output image, pixels

  std::uint64_t Weights() const { return inputs * outputs * kernel * kernel; }
  std::uint64_t InputBytes(std::uint64_t batch) const { return kHalf * batch * inputs * side * side; }
  std::uint64_t OutputBytes(std::uint64_t batch) const { return kHalf * batch * outputs * side * side; }
};

std::vector<Convolution> FiftyLayers() {
  struct Stage {
    std::uint64_t blocks, width, side;
  };
  constexpr std::array<Stage, 4> kStages = {{{3, 64, 56}, {4, 128, 28}, {6, 256, 14}, {3, 512, 7}}};
  std::vector<Convolution> layers = {{.inputs = 3, .outputs = 64, .kernel = 7, .side = 112}};
  std::uint64_t channels = 64;
  for (const Stage& stage : kStages) {
    for (std::uint64_t block = 0; block < stage.blocks; ++block) {
      const std::uint64_t narrow = stage.width;
      const std::uint64_t wide = 4 * stage.width;
      layers.push_back({channels, narrow, 1, stage.side});
      layers.push_back({narrow, narrow, 3, stage.side});
      layers.push_back({narrow, wide, 1, stage.side});
      if (block == 0) {
        layers.push_back({channels, wide, 1, stage.side});  // the shortcut
      }
      channels = wide;
    }
  }
  return layers;
}

class Trainer {
 public:
  explicit Trainer(TraceBuilder& trace) : trace_(trace), layers_(FiftyLayers()) { LoadWeights(); }
  void Step(std::uint64_t batch);

 private:
  struct Saved {
    Slot output, normalised, statistics, mask;
  };
  Slot Take(std::uint64_t bytes) { return trace_.Allocate(Bytes(bytes)); }
  void LoadWeights();
  Saved Forward(std::size_t layer, std::uint64_t batch);
  Slot Backward(std::size_t layer, std::uint64_t batch, const Saved& saved, Slot gradient);

  TraceBuilder& trace_;
  const std::vector<Convolution> layers_;
  std::vector<Slot> weight_gradients_;
};

void Trainer::LoadWeights() {
  for (const Convolution& layer : layers_) {
    Take(kFloat * layer.Weights());
    Take(kFloat * layer.Weights());  // momentum
    for (int i = 0; i < 5; ++i) {    // scale, shift, their momentum, running statistics
      Take(kFloat * layer.outputs);
    }
  }
  Take(kFloat * kFeatures * kClasses);
  Take(kFloat * kFeatures * kClasses);
}

void Trainer::Step(std::uint64_t batch) {
  const Slot images = Take(kFloat * batch * 3 * 224 * 224);
  std::vector<Saved> saved;
  for (std::size_t layer = 0; layer < layers_.size(); ++layer) saved.push_back(Forward(layer, batch));
  const Slot logits = Take(kFloat * batch * kClasses);
  const Slot probabilities = Take(kFloat * batch * kClasses);
  Slot gradient = Take(kHalf * batch * kFeatures * 7 * 7);
  trace_.Free(logits);
  trace_.Free(probabilities);
  for (std::size_t layer = layers_.size(); layer-- > 0;) {
    gradient = Backward(layer, batch, saved[layer], gradient);
  }
  trace_.Free(gradient);
  trace_.Free(images);
  for (const Slot weights : std::exchange(weight_gradients_, {})) trace_.Free(weights);
}

Trainer::Saved Trainer::Forward(std::size_t layer, std::uint64_t batch) {
  const Convolution& shape = layers_[layer];
  const std::uint64_t bytes = shape.OutputBytes(batch);
  const Slot narrow_weights = Take(kHalf * shape.Weights());
  Saved saved{};
  saved.output = Take(bytes);
  if (shape.kernel > 1) trace_.Free(Take(shape.InputBytes(batch) * (1 + layer * 7 % 5)));
  trace_.Free(narrow_weights);
  saved.normalised = Take(bytes);
  saved.statistics = Take(2 * kFloat * shape.outputs);
  saved.mask = Take(bytes / 16);  // a bit for each number
  return saved;
}

Slot Trainer::Backward(std::size_t layer, std::uint64_t batch, const Saved& saved, Slot gradient) {
  const Convolution& shape = layers_[layer];
  const Slot of_normalised = Take(shape.OutputBytes(batch));
  trace_.Free(gradient);
  trace_.Free(saved.normalised);
  trace_.Free(saved.mask);
  if (shape.kernel > 1) trace_.Free(Take(shape.InputBytes(batch) * (1 + layer * 5 % 4)));
  weight_gradients_.push_back(Take(kFloat * shape.Weights()));
  const Slot of_input = Take(shape.InputBytes(batch));
  trace_.Free(of_normalised);
  trace_.Free(saved.output);
  trace_.Free(saved.statistics);
  return of_input;
}

}  // namespace

Trace TrainResidualNetwork(std::string name, std::string what, const ResidualNetworkTraining& run,
                           std::uint64_t seed) {
  TraceBuilder trace(std::move(name), std::move(what));
  Random random(seed);
  Trainer trainer(trace);
  for (std::uint32_t step = 0; step < run.steps; ++step) {
    trace.BeginStep();
    const std::uint64_t fewest = run.batch / 2;
    trainer.Step(run.varying_batch ? fewest + random.Below(run.batch - fewest + 1) : run.batch);
  }
  return std::move(trace).Finish();
}

}  // namespace lgpu::bench
