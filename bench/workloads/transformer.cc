#include "bench/workloads/transformer.h"

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

#include "bench/workloads/random.h"

namespace lgpu::bench {
namespace {

// The widths of stored numbers.
constexpr std::uint64_t kHalf = 2;
constexpr std::uint64_t kFloat = 4;
constexpr std::uint64_t kInteger = 8;
constexpr std::uint64_t kAdapterShare = 256;
constexpr std::size_t kUpdateScratch = 64;

class Trainer {
 public:
  Trainer(TraceBuilder& trace, const TransformerTraining& run, std::uint64_t seed);
  void Run();

 private:
  // The blocks that a layer keeps from forward to backward.
  struct Saved {
    Slot input = 0;
    Slot norm = 0, norm_statistics = 0;
    Slot qkv = 0, rotated = 0;
    Slot attention = 0, log_sums = 0;
    Slot residual = 0;
    Slot middle_norm = 0, middle_statistics = 0;
    Slot gate = 0, up = 0, product = 0;
  };
  // The numbers of a layer's parameters.
  struct Parameters {
    std::uint64_t norm, qkv, projection, middle_norm, gate, up, down;
    std::vector<std::uint64_t> InOrder() const {
      return {norm, qkv, projection, middle_norm, gate, up, down};
    }
  };

  Slot Take(std::uint64_t bytes) { return trace_.Allocate(Bytes(bytes)); }
  Slot Activation() { return Take(activation_); }
  void Drop(std::initializer_list<Slot> slots) {
    for (const Slot slot : slots) trace_.Free(slot);
  }
  std::uint64_t Share(std::uint64_t numbers) const {
    return std::max<std::uint64_t>(1, numbers / run_.shards);
  }
  std::uint64_t AdapterShare(std::uint64_t numbers) const {
    return std::max<std::uint64_t>(64, numbers / kAdapterShare);
  }

  void ChooseLength();
  void Step();
  void Gather();
  void Scatter();
  Slot Layer(Slot input, Saved& saved);
  void ForgetAllButInput(const Saved& saved);
  Slot Loss(Slot output);
  void AddGradient(std::uint64_t numbers);
  Slot LayerBackward(const Saved& saved, Slot gradient);
  void Update();

  TraceBuilder& trace_;
  const TransformerTraining& run_;
  Random random_;
  Parameters layer_;
  std::uint64_t embedding_;
  std::vector<std::uint64_t> all_parameters_;
  bool has_optimizer_ = false;
  // Sizes of the running step.
  std::uint64_t tokens_ = 0;
  std::uint64_t activation_ = 0;       // bytes, hidden wide
  std::uint64_t wide_activation_ = 0;  // feed-forward wide
  std::uint64_t log_sums_ = 0;
  std::vector<Slot> gathered_;
  std::vector<Slot> gradients_;
};

Trainer::Trainer(TraceBuilder& trace, const TransformerTraining& run, std::uint64_t seed)
    : trace_(trace), run_(run), random_(seed) {
  const std::uint64_t hidden = run.shape.hidden;
  const std::uint64_t wide = run.shape.feed_forward;
  layer_ = {.norm = hidden,
            .qkv = 3 * hidden * hidden,
            .projection = hidden * hidden,
            .middle_norm = hidden,
            .gate = hidden * wide,
            .up = hidden * wide,
            .down = wide * hidden};
  embedding_ = run.shape.vocabulary * hidden;
  all_parameters_.push_back(embedding_);
  for (std::uint64_t i = 0; i < run.shape.layers; ++i) {
    const std::vector<std::uint64_t> of_layer = layer_.InOrder();
    all_parameters_.insert(all_parameters_.end(), of_layer.begin(), of_layer.end());
  }
  all_parameters_.push_back(hidden);
  all_parameters_.push_back(embedding_);
}

void Trainer::Run() {
  for (const std::uint64_t numbers : all_parameters_) Take(kHalf * Share(numbers));
  trace_.Allocate(32_MiB);
  for (std::uint32_t step = 0; step < run_.steps; ++step) {
    trace_.BeginStep();
    Step();
  }
}

void Trainer::ChooseLength() {
  std::uint64_t length = run_.sequence;
  if (run_.varying_length) {
    const std::uint64_t shortest = run_.sequence / 4;
    length = shortest + random_.Below(run_.sequence - shortest);
    length = std::max<std::uint64_t>(64, length / 64 * 64);
  }
  tokens_ = run_.batch * length;
  activation_ = kHalf * tokens_ * run_.shape.hidden;
  wide_activation_ = kHalf * tokens_ * run_.shape.feed_forward;
  log_sums_ = kFloat * run_.batch * run_.shape.heads * length;
}

void Trainer::Step() {
  ChooseLength();
  const Slot ids = Take(kInteger * tokens_);
  const Slot labels = Take(kInteger * tokens_);
  Slot output = Activation();
  std::vector<Saved> saved(run_.shape.layers);
  for (Saved& layer : saved) {
    Gather();
    output = Layer(output, layer);
    if (run_.recompute) ForgetAllButInput(layer);
    Scatter();
  }
  const Slot loss = Take(kFloat);
  Slot gradient = Loss(output);
  for (auto layer = saved.rbegin(); layer != saved.rend(); ++layer) {
    Gather();
    if (run_.recompute) trace_.Free(Layer(layer->input, *layer));
    gradient = LayerBackward(*layer, gradient);
    Scatter();
  }
  AddGradient(embedding_);
  Drop({gradient, ids, labels, loss});
  Update();
}

void Trainer::Gather() {
  if (run_.shards > 1) {
    for (const std::uint64_t numbers : layer_.InOrder()) gathered_.push_back(Take(kHalf * numbers));
  }
}

void Trainer::Scatter() {
  for (const Slot weights : std::exchange(gathered_, {})) trace_.Free(weights);
}

Slot Trainer::Layer(Slot input, Saved& saved) {
  saved.input = input;
  saved.norm = Activation();
  saved.norm_statistics = Take(kFloat * tokens_);
  saved.qkv = Take(3 * activation_);
  saved.rotated = Take(2 * activation_);
  saved.attention = Activation();
  saved.log_sums = Take(log_sums_);
  const Slot projected = Activation();
  saved.residual = Activation();
  trace_.Free(projected);
  saved.middle_norm = Activation();
  saved.middle_statistics = Take(kFloat * tokens_);
  saved.gate = Take(wide_activation_);
  saved.up = Take(wide_activation_);
  saved.product = Take(wide_activation_);
  const Slot down = Activation();
  const Slot output = Activation();
  trace_.Free(down);
  return output;
}

void Trainer::ForgetAllButInput(const Saved& saved) {
  Drop({saved.norm, saved.norm_statistics, saved.qkv, saved.rotated, saved.attention, saved.log_sums,
        saved.residual, saved.middle_norm, saved.middle_statistics, saved.gate, saved.up, saved.product});
}

// Takes the last layer's output and leaves the gradient that backward begins with.
Slot Trainer::Loss(Slot output) {
  const std::uint64_t logit_numbers = tokens_ * run_.shape.vocabulary;
  const Slot norm = Activation();
  const Slot logits = Take(kHalf * logit_numbers);
  const Slot wide_logits = Take(kFloat * logit_numbers);
  const Slot wide_gradient = Take(kFloat * logit_numbers);
  trace_.Free(wide_logits);
  const Slot logit_gradient = Take(kHalf * logit_numbers);
  Drop({wide_gradient, logits});
  AddGradient(embedding_);
  AddGradient(run_.shape.hidden);
  const Slot gradient = Activation();
  Drop({logit_gradient, norm, output});
  return gradient;
}

void Trainer::AddGradient(std::uint64_t numbers) {
  if (run_.adapters) {
    gradients_.push_back(Take(kHalf * AdapterShare(numbers)));
  } else if (run_.shards > 1) {
    const Slot whole = Take(kHalf * numbers);  // reduced over the shards, of which one stays here
    gradients_.push_back(Take(kHalf * Share(numbers)));
    trace_.Free(whole);
  } else {
    gradients_.push_back(Take(kHalf * numbers));
  }
}

// Takes the gradient of a layer's output, frees what forward saved, leaves the gradient of its input.
Slot Trainer::LayerBackward(const Saved& saved, Slot gradient) {
  // Feed-forward half.
  const Slot of_product = Take(wide_activation_);
  AddGradient(layer_.down);
  trace_.Free(saved.product);
  const Slot of_gate = Take(wide_activation_);
  const Slot of_up = Take(wide_activation_);
  Drop({of_product, saved.gate, saved.up});
  AddGradient(layer_.gate);
  AddGradient(layer_.up);
  const Slot of_middle_norm = Activation();
  const Slot partial_sum = Activation();
  Drop({of_gate, of_up, partial_sum});
  const Slot of_residual = Activation();
  AddGradient(layer_.middle_norm);
  Drop({of_middle_norm, saved.middle_norm, saved.middle_statistics, saved.residual, gradient});
  // Attention half.
  const Slot of_attention = Activation();
  AddGradient(layer_.projection);
  const Slot of_rotated = Take(3 * activation_);
  const Slot query_sum = Take(2 * activation_);  // in 4 bytes
  Drop({of_attention, saved.attention, saved.log_sums, saved.rotated, query_sum});
  const Slot of_qkv = Take(3 * activation_);
  Drop({of_rotated, saved.qkv});
  AddGradient(layer_.qkv);
  const Slot of_norm = Activation();
  trace_.Free(of_qkv);
  const Slot of_input = Activation();
  AddGradient(layer_.norm);
  Drop({of_norm, of_residual, saved.norm, saved.norm_statistics, saved.input});
  return of_input;
}

void Trainer::Update() {
  if (!has_optimizer_) {
    has_optimizer_ = true;
    for (const std::uint64_t numbers : all_parameters_) {
      const std::uint64_t own = run_.adapters ? AdapterShare(numbers) : Share(numbers);
      for (int i = 0; i < 3; ++i) {  // master weights, two moments
        Take(kFloat * own);
      }
    }
  }
  for (std::size_t i = 0; i < std::min(gradients_.size(), kUpdateScratch); ++i) {
    trace_.Free(Take(kFloat * Share(layer_.projection)));
  }
  for (const Slot gradient : std::exchange(gradients_, {})) trace_.Free(gradient);
}

// One request after the other through an eager model.
class Inference {
 public:
  Inference(TraceBuilder& trace, std::uint64_t seed) : trace_(trace), random_(seed) { LoadWeights(); }
  void Request(std::uint32_t number);

 private:
  static constexpr std::uint64_t kLayers = 32;
  static constexpr std::uint64_t kHidden = 4096;
  static constexpr std::uint64_t kKeyWidth = kHidden / 4;
  static constexpr std::uint64_t kFeedForward = 14336;
  static constexpr std::uint64_t kVocabulary = 128256;
  struct Cached {
    std::vector<Slot> keys_and_values;
    std::uint32_t until = 0;
  };

  Slot Take(std::uint64_t bytes) { return trace_.Allocate(Bytes(bytes)); }
  void LoadWeights();
  Slot Layer(Slot input, std::uint64_t tokens, Cached& cached);

  TraceBuilder& trace_;
  Random random_;
  std::vector<Cached> cached_;
};

void Inference::LoadWeights() {
  for (std::uint64_t i = 0; i < kLayers; ++i) {
    Take(kHalf * kHidden * (kHidden + 2 * kKeyWidth));  // q k v
    Take(kHalf * kHidden * kHidden);
    Take(kHalf * kHidden * 2 * kFeedForward);  // gate and up in one
    Take(kHalf * kHidden * kFeedForward);
    Take(kHalf * kHidden);
    Take(kHalf * kHidden);
  }
  Take(kHalf * kVocabulary * kHidden);
  Take(kHalf * kVocabulary * kHidden);
}

void Inference::Request(std::uint32_t number) {
  trace_.BeginStep();
  for (std::size_t i = 0; i < cached_.size();) {
    if (cached_[i].until > number) {
      ++i;
      continue;
    }
    for (const Slot slot : cached_[i].keys_and_values) trace_.Free(slot);
    cached_[i] = std::move(cached_.back());
    cached_.pop_back();
  }
  const std::uint64_t batch = 1 + random_.Below(8);
  const std::uint64_t tokens = batch * (16 + random_.Below(2000));
  Cached cached{.keys_and_values = {}, .until = number + 1 + static_cast<std::uint32_t>(random_.Below(12))};
  Slot output = Take(kHalf * tokens * kHidden);
  for (std::uint64_t i = 0; i < kLayers; ++i) output = Layer(output, tokens, cached);
  const Slot logits = Take(kFloat * batch * kVocabulary);
  trace_.Free(output);
  trace_.Free(logits);
  cached_.push_back(std::move(cached));
}

Slot Inference::Layer(Slot input, std::uint64_t tokens, Cached& cached) {
  const std::uint64_t activation = kHalf * tokens * kHidden;
  const Slot norm = Take(activation);
  const Slot qkv = Take(kHalf * tokens * (kHidden + 2 * kKeyWidth));
  cached.keys_and_values.push_back(Take(kHalf * tokens * kKeyWidth));
  cached.keys_and_values.push_back(Take(kHalf * tokens * kKeyWidth));
  const Slot attention = Take(activation);
  trace_.Free(qkv);
  trace_.Free(norm);
  const Slot residual = Take(activation);
  trace_.Free(attention);
  trace_.Free(input);
  const Slot gate_up = Take(kHalf * tokens * 2 * kFeedForward);
  const Slot product = Take(kHalf * tokens * kFeedForward);
  trace_.Free(gate_up);
  const Slot output = Take(activation);
  trace_.Free(product);
  trace_.Free(residual);
  return output;
}

}  // namespace

Trace TrainTransformer(std::string name, std::string what, const TransformerTraining& run,
                       std::uint64_t seed) {
  TraceBuilder trace(std::move(name), std::move(what));
  Trainer(trace, run, seed).Run();
  return std::move(trace).Finish();
}

Trace InferTransformer(std::string name, std::string what, std::uint32_t requests, std::uint64_t seed) {
  TraceBuilder trace(std::move(name), std::move(what));
  Inference inference(trace, seed);
  for (std::uint32_t i = 0; i < requests; ++i) inference.Request(i);
  return std::move(trace).Finish();
}

}  // namespace lgpu::bench
