#ifndef LGPU_BENCH_WORKLOADS_RANDOM_H_
#define LGPU_BENCH_WORKLOADS_RANDOM_H_

#include <cstdint>

#include "lgpu/bytes.h"

namespace lgpu::bench {

/// A Random is a small generator (SplitMix64) whose sequence depends on its seed alone.
class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}

  std::uint64_t Next();
  /// A number from [0, bound); `bound` is not zero.
  std::uint64_t Below(std::uint64_t bound);
  /// A number from [low, high], every doubling equally likely.
  Bytes LogUniform(Bytes low, Bytes high);

 private:
  std::uint64_t state_;
};

}  // namespace lgpu::bench

#endif  // LGPU_BENCH_WORKLOADS_RANDOM_H_
