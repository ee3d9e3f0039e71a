#ifndef LGPU_ALLOCATOR_POOL_GROWTH_H_
#define LGPU_ALLOCATOR_POOL_GROWTH_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "allocator/pool/fence_keeper.h"
#include "allocator/pool/growth_plan.h"
#include "allocator/pool/pool_state.h"

namespace lgpu {

/// A Growth gets blocks that do not fit into mapped memory. It takes the steps of a GrowthPlan: those that
/// decide run under the pool's lock, those that call the source or the fences run without it. When a call
/// fails, chunks and places that the request had in hand go back.
///
/// Thread-safe; state and fences outlive it.
class Growth {
 public:
  Growth(PoolState& state, FenceKeeper& fences) : state_(state), fences_(fences) {}

  struct Result {
    std::uint32_t index = 0;
    Suballocator::Stamp freed_at = 0;  // of the memory that the block got
  };
  /// The caller has counted the block in `pending` and the request in `calls`; both are uncounted here.
  absl::StatusOr<Result> Allocate(Bytes bytes, const AllocateOptions& options, std::uint32_t home);

 private:
  struct Attempt;
  absl::StatusOr<Result> Run(Attempt& attempt);
  GrowthPlan::Step NextStep(Attempt& attempt);
  absl::Status RefusalOf(const Attempt& attempt, const GrowthPlan::Step& step) const;
  Refusal MakeRefusal(const Attempt& attempt, RefusalReason reason) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(state_.mutex);
  absl::Status WithNumbers(const Attempt& attempt, const absl::Status& status) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(state_.mutex);
  Result HandOut(const Attempt& attempt, Suballocator::Handle block)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(state_.mutex);

  absl::Status Grow(Attempt& attempt, GrowRequest request);
  absl::Status Move(Attempt& attempt, const std::vector<ChunkStore::Run>& runs);
  absl::Status ReturnSurplus(Attempt& attempt, const std::vector<Chunk>& surplus);
  absl::Status AskFences(Attempt& attempt);
  absl::StatusOr<Result> Map(const Attempt& attempt, const GrowthPlan::Step& step);
  absl::Status Refuse(Attempt& attempt, const GrowthPlan::Step& step);
  bool WaitForOthers(Attempt& attempt);
  absl::Status Fail(Attempt& attempt, const absl::Status& status);

  PoolState& state_;
  FenceKeeper& fences_;
};

}  // namespace lgpu

#endif  // LGPU_ALLOCATOR_POOL_GROWTH_H_
