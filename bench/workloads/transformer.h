#ifndef LGPU_BENCH_WORKLOADS_TRANSFORMER_H_
#define LGPU_BENCH_WORKLOADS_TRANSFORMER_H_

#include <cstdint>
#include <string>

#include "bench/workloads/trace.h"

namespace lgpu::bench {

/// A decoder-only transformer with gated feed-forward layers; input and output embeddings are separate.
struct TransformerShape {
  std::uint64_t layers = 0;
  std::uint64_t hidden = 0;
  std::uint64_t heads = 0;
  std::uint64_t feed_forward = 0;
  std::uint64_t vocabulary = 32000;

  static TransformerShape Of1B3() {
    return {.layers = 24, .hidden = 2048, .heads = 16, .feed_forward = 5504};
  }
  static TransformerShape Of7B() {
    return {.layers = 32, .hidden = 4096, .heads = 32, .feed_forward = 11008};
  }
  static TransformerShape Of13B() {
    return {.layers = 40, .hidden = 5120, .heads = 40, .feed_forward = 13824};
  }
};

/// Training in mixed precision with Adam, in the order in which an eager framework allocates:
///
///   kept     weights (2 bytes), a library workspace of 32 MiB; after the first step 4-byte master
///            weights and two moments
///   forward  per layer, 2 bytes x tokens x hidden unless said otherwise: norm and its statistics (4
///            bytes a token), q k v (3x), rotated q k (2x), attention and its log-sums (4 bytes x heads),
///            projection (temporary), residual, norm and statistics, gate, up, product (feed-forward
///            wide), down (temporary), output
///   loss     logits in 2 bytes, in 4 bytes, their gradient in 4 bytes and in 2: usually the peak
///   backward layer by layer from the last: what forward kept is freed while gradients are allocated
///   update   short-lived scratch; then the gradients go
///
/// Simplified: one stream, no bucketing of gradients, no dropout, attention without score matrices.
struct TransformerTraining {
  TransformerShape shape;
  std::uint64_t batch = 1;
  std::uint64_t sequence = 0;  // the longest
  std::uint32_t steps = 0;
  /// Weights, gradients and optimizer are divided; a layer's whole weights are gathered while it runs.
  std::uint64_t shards = 1;
  /// Forward keeps a layer's input only; backward runs the layer again.
  bool recompute = false;
  /// Low-rank adapters: the base is frozen, gradients and optimizer are 1/256.
  bool adapters = false;
  /// Each step has another length, from a quarter of the longest on.
  bool varying_length = false;
};
Trace TrainTransformer(std::string name, std::string what, const TransformerTraining& run,
                       std::uint64_t seed);

/// Eager inference with an 8B model (32 layers, hidden 4096, 8 of 32 key heads, vocabulary 128256):
/// every request has a batch of 1 to 8 and 16 to 2015 tokens, keeps its keys and values until up to 12
/// requests later, and frees everything else as soon as it is used.
Trace InferTransformer(std::string name, std::string what, std::uint32_t requests, std::uint64_t seed);

}  // namespace lgpu::bench

#endif  // LGPU_BENCH_WORKLOADS_TRANSFORMER_H_
