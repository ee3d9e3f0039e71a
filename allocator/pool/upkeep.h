#ifndef LGPU_ALLOCATOR_POOL_UPKEEP_H_
#define LGPU_ALLOCATOR_POOL_UPKEEP_H_

#include <optional>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "allocator/pool/fence_keeper.h"
#include "allocator/pool/pool_state.h"

namespace lgpu {

/// An Upkeep does what a pool need not do on the path of an allocation: it grows ahead of demand, gives idle
/// memory back, and trims. It leaves a suspended pool alone. Thread-safe; state and fences outlive it.
class Upkeep {
 public:
  Upkeep(PoolState& state, FenceKeeper& fences) : state_(state), fences_(fences) {}

  // As the members of Pool with these names.
  std::optional<PoolState::Clock::time_point> Maintain(PoolState::Clock::time_point now);
  absl::StatusOr<Bytes> Trim(Bytes at_most);
  absl::StatusOr<Pool::Trimmed> TrimFor(Bytes bytes);

 private:
  /// The memory that GiveBack may return.
  struct Offer {
    Decay::Surplus surplus;
    bool rather_more = false;  // a chunk that is larger than the rest of `surplus` goes too
  };
  bool IsSuspended() const;
  bool FlushIdleCaches(PoolState::Clock::time_point now);
  void GrowAhead();
  bool GiveBackSurplus(PoolState::Clock::time_point now);
  absl::StatusOr<Bytes> GiveBack(const Offer& offer);
  absl::StatusOr<Bytes> TrimSettled(Bytes bytes, bool rather_more);

  PoolState& state_;
  FenceKeeper& fences_;
  PoolState::Clock::time_point asleep_since_ ABSL_GUARDED_BY(state_.mutex);
};

}  // namespace lgpu

#endif  // LGPU_ALLOCATOR_POOL_UPKEEP_H_
