#ifndef LGPU_BENCH_PEERS_LATENCY_H_
#define LGPU_BENCH_PEERS_LATENCY_H_

#include <cstdint>
#include <vector>

namespace lgpu::bench {

/// The distribution of the time of single operations, in ns. Each has the clock's own cost in it.
struct Percentiles {
  std::uint64_t count = 0;
  double p50 = 0;
  double p99 = 0;
  double p999 = 0;
  double max = 0;
};

/// A clock for operations of some ten ns: the processor's time-stamp counter where there is one.
class OperationClock {
 public:
  /// Takes some ms to learn the counter's rate.
  OperationClock();
  static std::uint64_t Now();
  double ToNanoseconds(std::uint64_t ticks) const { return static_cast<double>(ticks) * ns_per_tick_; }
  /// Reorders `ticks`.
  Percentiles Summarize(std::vector<std::uint32_t>& ticks) const;

 private:
  double ns_per_tick_ = 1;
};

/// Keeps of each operation the shorter time, as far as both passes went; an empty `least` takes all.
void MergePass(const std::vector<std::uint32_t>& pass, std::vector<std::uint32_t>& least);

}  // namespace lgpu::bench

#endif  // LGPU_BENCH_PEERS_LATENCY_H_
