#ifndef LGPU_ALLOCATOR_POOL_IMPL_H_
#define LGPU_ALLOCATOR_POOL_IMPL_H_

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "allocator/mutex.h"
#include "allocator/process_epoch.h"
#include "allocator/suballocator.h"
#include "lgpu/pool.h"
#include "lgpu/refusal.h"

namespace lgpu {

/// The inside of a Pool: a Suballocator under a lock, and the chunks under it.
///
/// A request that does not fit into mapped memory is an Attempt. It alternates between steps under the
/// lock, which decide what is missing, and calls of the source without it, which get it. Whatever an
/// attempt has in its hands (chunks, a claimed place, detached ranges) is nobody else's meanwhile, and
/// goes back when a call fails. held, which CheckInvariants() compares when no call is on its way, is
///
///   held = chunks that are mapped + spare chunks;   mapped pages are exactly those of mapped chunks
///   used + pending <= limit when an attempt starts
class Pool::Impl {
 public:
  Impl(std::unique_ptr<RegionSource> source, PoolOptions options);

  absl::StatusOr<Block> Allocate(Bytes bytes, const AllocateOptions& options);
  absl::Status Free(const Block& block);
  absl::StatusOr<Bytes> Trim(Bytes at_most);
  MemoryStats stats() const;
  void ResetPeak();
  absl::Status CheckInvariants() const;

 private:
  /// Neighbouring chunks that were taken out of use together.
  struct Run {
    Suballocator::Handle detached = 0;
    Suballocator::Range range{};
    std::vector<Chunk> chunks{};
  };
  enum class Step { kDone, kGrow, kMove, kMap, kFail };
  struct Attempt {
    Bytes bytes{};
    const AllocateOptions& options;
    std::chrono::steady_clock::time_point deadline{};
    Bytes limit{};
    std::vector<Chunk> chunks{};  // granted and not mapped, for this attempt
    Bytes chunk_bytes{};
    std::vector<ChunkId> grown{};  // which of them the source gave to this attempt
    Bytes fresh_at_least{};
    std::optional<absl::Status> grow_refused{};
    std::uint64_t seen_changes = 0;
    int retries = 0;
    bool cleared = false;   // all idle chunks were moved out of the way once
    bool combined = false;  // idle chunks were taken to make a refused step of growth smaller
    // What the next step needs.
    GrowRequest request{};
    std::vector<Run> runs{};
    Suballocator::Claim claim{};
    // The result.
    Block block{};
    absl::Status status{};
  };
  enum class Bound { kAtLeast, kAtMost };

  absl::Status CheckAlive() const;
  absl::Status CheckRequest(Bytes bytes, const AllocateOptions& options) const;
  Refusal MakeRefusal(RefusalReason reason, const Attempt& attempt) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status WithNumbers(const absl::Status& status, const Attempt& attempt)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  Block BlockOf(Suballocator::Handle handle) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  bool Fits(Bytes rounded, Bytes limit) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void WaitForPending(Bytes rounded, Bytes limit, std::chrono::nanoseconds timeout)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::StatusOr<Block> AllocateSlowly(Attempt& attempt);
  Step NextStep(Attempt& attempt) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  Step StepWithoutAddresses(Attempt& attempt) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  Step StepToMove(Attempt& attempt, Bytes room) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void TakeSpare(Attempt& attempt, Bytes at_least) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Without the lock; false: the attempt failed with attempt.status.
  bool Grow(Attempt& attempt);
  bool Move(Attempt& attempt);
  bool Map(Attempt& attempt);
  bool WaitForOthers(Attempt& attempt);
  absl::Status Fail(Attempt& attempt);

  void NoteChange() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::vector<Run> DetachIdle(Bytes amount, Bound bound, Suballocator::Range avoid)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::vector<Run> IdleRuns() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status UnmapRuns(const std::vector<Run>& runs);
  absl::Status ReturnChunks(const std::vector<Chunk>& chunks);

  const std::unique_ptr<RegionSource> source_;
  const PoolOptions options_;
  const ProcessEpoch epoch_;
  std::byte* const base_;
  const Bytes reserved_;
  const Bytes granularity_;

  mutable Mutex mutex_;
  Suballocator blocks_ ABSL_GUARDED_BY(mutex_);
  std::map<Bytes, Chunk> mapped_ ABSL_GUARDED_BY(mutex_);  // by offset
  std::vector<Chunk> spare_ ABSL_GUARDED_BY(mutex_);       // granted, not mapped
  Bytes held_ ABSL_GUARDED_BY(mutex_);
  Bytes pending_ ABSL_GUARDED_BY(mutex_);              // what attempts are going to use
  int calls_ ABSL_GUARDED_BY(mutex_) = 0;              // attempts and trims on their way;
  int waiting_ ABSL_GUARDED_BY(mutex_) = 0;            // of these: that wait for others
  int patient_ ABSL_GUARDED_BY(mutex_) = 0;            // of these: in a Grow that may wait
  std::uint64_t changes_ ABSL_GUARDED_BY(mutex_) = 0;  // how often chunks or room came back
  CondVar changed_;
  Bytes peak_used_ ABSL_GUARDED_BY(mutex_);
  std::uint64_t num_allocs_ ABSL_GUARDED_BY(mutex_) = 0;
  std::uint64_t num_refusals_ ABSL_GUARDED_BY(mutex_) = 0;
  std::uint64_t source_round_trips_ ABSL_GUARDED_BY(mutex_) = 0;
  std::uint64_t remapped_chunks_ ABSL_GUARDED_BY(mutex_) = 0;
  RefusalReason last_refusal_ ABSL_GUARDED_BY(mutex_) = RefusalReason::kUnspecified;
};

}  // namespace lgpu

#endif  // LGPU_ALLOCATOR_POOL_IMPL_H_
