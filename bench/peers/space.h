#ifndef LGPU_BENCH_PEERS_SPACE_H_
#define LGPU_BENCH_PEERS_SPACE_H_

#include <cstdint>
#include <optional>

#include "bench/peers/contenders.h"
#include "bench/workloads/churn.h"
#include "bench/workloads/trace.h"

namespace lgpu::bench {

/// The result of one replay of a trace.
struct SpaceResult {
  bool completed = false;
  std::uint64_t refusals = 0;     // their blocks are left out, and their frees
  std::size_t first_refusal = 0;  // the event
  Bytes peak_live;
  Bytes peak_held;
  PageOperations operations;
  /// The operations of the warm phase: from the middle of its steps on, of its events where it has none.
  PageOperations warm_operations;
  std::uint32_t warm_steps = 0;

  /// Pages that were taken from one place to be used at another.
  double WarmMovesPerStep() const {
    return warm_steps == 0 ? 0 : static_cast<double>(warm_operations.unmapped) / warm_steps;
  }
};

enum class OnRefusal { kStop, kGoOn };
SpaceResult ReplayForSpace(const Trace& trace, Contender& contender, OnRefusal on_refusal);

struct LimitSearch {
  /// Limits that were tried are this fraction of the peak apart at the end, at least a page.
  double resolution = 0.0002;
  double largest = 4;  // times the peak
  /// More memory is not always better: under a larger limit blocks lie elsewhere, and may fit worse. So many
  /// larger limits, up to `confirmed_range` of the peak above, must do as well.
  int confirmations = 16;
  double confirmed_range = 0.04;
};
/// The smallest limit at which, and at the larger ones that were tried, the trace completes; nothing if the
/// largest does not do.
std::optional<Bytes> SmallestLimit(const Trace& trace, const MakeContender& make,
                                   const LimitSearch& search = {});

/// The most bytes that were live before the first refusal, of the limit.
double UseAtFirstRefusal(const RisingChurnShape& shape, const MakeContender& make, std::uint64_t seed);

/// peak * (1 + spare), in whole pages.
Bytes LimitWithSpare(Bytes peak, double spare);

}  // namespace lgpu::bench

#endif  // LGPU_BENCH_PEERS_SPACE_H_
