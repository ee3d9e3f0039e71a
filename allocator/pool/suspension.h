#ifndef LGPU_ALLOCATOR_POOL_SUSPENSION_H_
#define LGPU_ALLOCATOR_POOL_SUSPENSION_H_

#include <chrono>
#include <map>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "allocator/pool/pool_state.h"

namespace lgpu {

/// A Suspension gives a pool's memory back from under its blocks, and later brings memory to the same places.
/// One call at a time; blocks may be freed meanwhile. The state outlives it.
class Suspension {
 public:
  explicit Suspension(PoolState& state) : state_(state) {}

  // As the members of Pool with these names.
  absl::Status Suspend();
  bool is_suspended() const;
  absl::Status Resume(std::chrono::nanoseconds timeout);

 private:
  using Places = std::map<Bytes, Chunk>;  // chunks by offset
  /// The places that blocks lie in.
  Places DropIdlePlaces();
  /// Chunks of the source for exactly these places; where chunks of several pages lie side by side, others of
  /// several pages may come.
  absl::StatusOr<Places> Fill(const Places& places, PoolState::Clock::time_point deadline);
  absl::Status FillLarge(std::vector<Suballocator::Range> holes, PoolState::Clock::time_point deadline,
                         Places& filled, std::vector<Bytes>& pages);
  absl::Status FillPages(const std::vector<Bytes>& pages, PoolState::Clock::time_point deadline,
                         Places& filled);
  absl::StatusOr<std::vector<Chunk>> Grow(Bytes bytes, PoolState::Clock::time_point deadline);
  absl::Status Map(const Places& filled);
  void ReturnAll(const Places& filled);
  absl::Status WithNumbers(const absl::Status& status, Bytes needed) const;

  PoolState& state_;
};

}  // namespace lgpu

#endif  // LGPU_ALLOCATOR_POOL_SUSPENSION_H_
