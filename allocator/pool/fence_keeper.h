#ifndef LGPU_ALLOCATOR_POOL_FENCE_KEEPER_H_
#define LGPU_ALLOCATOR_POOL_FENCE_KEEPER_H_

#include "absl/status/status.h"
#include "allocator/pool/pool_state.h"

namespace lgpu {

/// A FenceKeeper calls a pool's fences, without the pool's lock, and passes the results to the pool's
/// StreamOrder. Thread-safe; the state outlives it.
class FenceKeeper {
 public:
  explicit FenceKeeper(PoolState& state) : state_(state) {}

  /// Records one fence on each stream that freed memory since the last call. Waits for nothing.
  absl::Status Record();
  /// Returns once no other thread is recording fences.
  void AwaitRecording();
  /// Records fences, queries the recorded ones, and releases the blocks whose fences have passed.
  absl::Status Poll();
  /// Polls, and waits for all fences of memory that was freed before this call.
  absl::Status Await();
  /// Makes `stream` wait, on the device, for the home stream's work with memory that it freed up to `stamp`.
  absl::Status OrderAfterHome(StreamId stream, Suballocator::Stamp stamp);

 private:
  bool IsOrdered(StreamId stream, Suballocator::Stamp stamp);

  PoolState& state_;
};

}  // namespace lgpu

#endif  // LGPU_ALLOCATOR_POOL_FENCE_KEEPER_H_
