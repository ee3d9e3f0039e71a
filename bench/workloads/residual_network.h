#ifndef LGPU_BENCH_WORKLOADS_RESIDUAL_NETWORK_H_
#define LGPU_BENCH_WORKLOADS_RESIDUAL_NETWORK_H_

#include <cstdint>
#include <string>

#include "bench/workloads/trace.h"

namespace lgpu::bench {

/// Training of a residual network of 50 layers (53 convolutions with the shortcuts) on images of 224 x
/// 224, activations in 2 bytes, weights and momentum in 4. A convolution: its weights in 2 bytes, its
/// output, for kernels larger than 1x1 a scratch buffer of uneven size, then the normalised copy, the
/// statistics and the mask of the activation; backward takes the kept ones in reverse.
///
/// Simplified: no pooling layers, scratch sizes are small multiples of the input in a fixed pattern.
struct ResidualNetworkTraining {
  std::uint64_t batch = 0;  // the largest
  std::uint32_t steps = 0;
  bool varying_batch = false;  // each step has another one, from half the largest on
};
Trace TrainResidualNetwork(std::string name, std::string what, const ResidualNetworkTraining& run,
                           std::uint64_t seed);

}  // namespace lgpu::bench

#endif  // LGPU_BENCH_WORKLOADS_RESIDUAL_NETWORK_H_
