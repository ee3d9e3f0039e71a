#include "allocator/pool/growth.h"

#include <algorithm>
#include <chrono>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/interrupt.h"
#include "lgpu/status.h"

namespace lgpu {

struct Growth::Attempt {
  Bytes bytes;
  const AllocateOptions& options;
  PoolState::Clock::time_point deadline;
  GrowthPlan plan;
  Bytes limit{};
  std::uint64_t seen_changes = 0;
  int retries = 0;
  bool waits_for_fences = false;  // the next time; the first time they are only asked
  Result result{};
};

absl::StatusOr<Growth::Result> Growth::Allocate(Bytes bytes, const AllocateOptions& options,
                                                std::uint32_t home) {
  Attempt attempt{.bytes = bytes,
                  .options = options,
                  .deadline = PoolState::DeadlineAfter(options.timeout),
                  .plan = GrowthPlan({.bytes = bytes,
                                      .alignment = options.alignment,
                                      .home = home,
                                      .spare_only = options.spare_only,
                                      .scratch = options.scratch},
                                     state_.steps, state_.policy)};
  std::optional<InterruptScope> asks;
  if (options.interrupt != nullptr) asks.emplace(*options.interrupt);
  absl::StatusOr<Result> result = Run(attempt);
  asks.reset();
  state_.WakeIfDue();
  MutexLock lock(state_.mutex);
  --state_.calls;
  state_.NoteChange();
  return result;
}

absl::StatusOr<Growth::Result> Growth::Run(Attempt& attempt) {
  for (;;) {
    const GrowthPlan::Step step = NextStep(attempt);
    absl::Status status;
    switch (step.kind) {
      case GrowthPlan::Kind::kDone:
        return attempt.result;
      case GrowthPlan::Kind::kFlush:
        break;
      case GrowthPlan::Kind::kGrow:
        status = Grow(attempt, step.grow);
        break;
      case GrowthPlan::Kind::kMove:
        status = Move(attempt, step.runs);
        break;
      case GrowthPlan::Kind::kReturn:
        status = ReturnSurplus(attempt, step.surplus);
        break;
      case GrowthPlan::Kind::kAwaitFences:
        status = AskFences(attempt);
        break;
      case GrowthPlan::Kind::kMap: {
        absl::StatusOr<Result> mapped = Map(attempt, step);
        if (mapped.ok()) return mapped;
        status = mapped.status();
        break;
      }
      case GrowthPlan::Kind::kRefuse:
        status = Refuse(attempt, step);
        break;
    }
    if (!status.ok()) return Fail(attempt, status);
  }
}

// ---- Under the lock.

GrowthPlan::Step Growth::NextStep(Attempt& attempt) {
  attempt.limit = state_.source->limit();
  MutexLock lock(state_.mutex);
  attempt.seen_changes = state_.changes;
  state_.ReleaseQueues();
  GrowthPlan::View view = {.blocks = state_.blocks,
                           .chunks = state_.chunks,
                           .limit = attempt.limit,
                           .settled = state_.SettledStamp(),
                           .fenced = state_.fenced.load(std::memory_order_relaxed) != 0,
                           .caches_empty = state_.cache.bytes() <= 0};
  GrowthPlan::Step step = attempt.plan.Next(view);
  while (step.kind == GrowthPlan::Kind::kFlush) {
    view.caches_empty = !state_.FlushCaches();
    step = attempt.plan.Next(view);
  }
  if (step.kind == GrowthPlan::Kind::kDone) attempt.result = HandOut(attempt, step.block);
  return step;
}

Growth::Result Growth::HandOut(const Attempt& attempt, Suballocator::Handle block) {
  state_.pending -= RoundUp(attempt.bytes, Suballocator::kGranule);
  const Suballocator::Stamp freed_at = state_.blocks.freed_at();
  return {state_.HandOut(block, attempt.bytes, attempt.options), freed_at};
}

Refusal Growth::MakeRefusal(const Attempt& attempt, RefusalReason reason) const {
  return state_.MakeRefusal(reason, attempt.bytes, attempt.options, attempt.limit);
}

// Adds the pool's numbers to a refusal of the source.
absl::Status Growth::WithNumbers(const Attempt& attempt, const absl::Status& status) const {
  std::optional<Refusal> known = GetRefusal(status);
  if (!known) return status;
  const Refusal own = MakeRefusal(attempt, known->reason);
  known->device = own.device;
  known->lease = known->lease.empty() ? own.lease : known->lease;
  known->what = own.what.empty() ? known->what : own.what;
  known->asked = own.asked;
  known->limit = known->limit ? known->limit : own.limit;
  known->used = own.used;
  known->peak_used = own.peak_used;
  known->live_blocks = own.live_blocks;
  known->largest_free_block = own.largest_free_block;
  if (known->advice.empty()) known->advice = own.advice;
  return RefusalStatus(*known);
}

absl::Status Growth::RefusalOf(const Attempt& attempt, const GrowthPlan::Step& step) const {
  if (step.endless) {
    return absl::InternalError("the source of chunks gives other chunks than those it is asked for");
  }
  MutexLock lock(state_.mutex);
  return step.grow_refused ? WithNumbers(attempt, *step.grow_refused)
                           : RefusalStatus(MakeRefusal(attempt, step.reason));
}

// ---- Without the lock.

absl::Status Growth::Grow(Attempt& attempt, GrowRequest request) {
  const auto left = attempt.deadline - PoolState::Clock::now();
  request.timeout = request.ahead ? std::chrono::nanoseconds(0)
                                  : std::max(std::chrono::nanoseconds(0), std::chrono::nanoseconds(left));
  const int patient = request.timeout.count() > 0 ? 1 : 0;
  if (patient > 0) {
    MutexLock lock(state_.mutex);
    state_.patient += patient;
    if (state_.waiting > 0) {
      state_.changed.NotifyAll();  // requests that wait for this one wait only to their own deadlines now
    }
  }
  const absl::StatusOr<std::vector<Chunk>> chunks = state_.source->Grow(request);
  MutexLock lock(state_.mutex);
  state_.patient -= patient;
  ++state_.counts.round_trips;
  if (!chunks.ok()) {
    attempt.plan.NoteGrowRefused(chunks.status());
    // Chunks in hand may suffice even if the source is gone.
    const bool goes_on = absl::IsResourceExhausted(chunks.status()) || absl::IsUnavailable(chunks.status());
    return goes_on ? absl::OkStatus() : chunks.status();
  }
  state_.grew = true;
  attempt.plan.NoteGranted(*chunks, state_.chunks);
  return absl::OkStatus();
}

absl::Status Growth::Move(Attempt& attempt, const std::vector<ChunkStore::Run>& runs) {
  const absl::Status status = state_.Unmap(runs);
  const bool in_use = absl::IsFailedPrecondition(status);
  if (in_use && state_.fences != nullptr && !attempt.plan.fences_passed()) {
    return AskFences(attempt);  // the device knows of work that the fences of these chunks do not cover
  }
  MutexLock lock(state_.mutex);
  if (in_use) {
    Refusal refusal = MakeRefusal(attempt, RefusalReason::kLimit);
    refusal.advice.push_back(
        absl::StrCat("free memory could not be moved while it may be in use: ", status.message()));
    return RefusalStatus(refusal);
  }
  LGPU_RETURN_IF_ERROR(status);
  for (const ChunkStore::Run& run : runs) state_.counts.remapped_chunks += run.chunks.size();
  attempt.plan.NoteMoved(runs);
  return absl::OkStatus();
}

absl::Status Growth::ReturnSurplus(Attempt& attempt, const std::vector<Chunk>& surplus) {
  LGPU_RETURN_IF_ERROR(state_.Return(surplus));
  attempt.plan.NoteReturned();
  return absl::OkStatus();
}

// Querying fences costs nothing and may be enough; only the next step, before a refusal, waits for them.
absl::Status Growth::AskFences(Attempt& attempt) {
  const bool waits = std::exchange(attempt.waits_for_fences, !attempt.waits_for_fences);
  attempt.plan.NoteFences(waits);
  return waits ? fences_.Await() : fences_.Poll();
}

absl::StatusOr<Growth::Result> Growth::Map(const Attempt& attempt, const GrowthPlan::Step& step) {
  const absl::Status status = state_.source->Map(step.placements);
  MutexLock lock(state_.mutex);
  if (!status.ok()) {
    state_.blocks.Abandon(step.claim);
    return WithNumbers(attempt, status);
  }
  std::vector<Suballocator::Range> places;
  for (std::size_t i = 0; i < step.placements.size(); ++i) {
    const Bytes offset = step.placements[i].offset;
    state_.chunks.NoteMapped(offset, step.placed[i]);
    places.push_back({offset, step.placed[i].bytes});
  }
  return HandOut(attempt, state_.blocks.Commit(step.claim, places));
}

// OK: another attempt is worth while.
absl::Status Growth::Refuse(Attempt& attempt, const GrowthPlan::Step& step) {
  if (attempt.options.spare_only) return NoneToSpare();
  const absl::Status status = RefusalOf(attempt, step);
  const bool again =
      absl::IsResourceExhausted(status) && (WaitForOthers(attempt) || attempt.plan.AllowAnyChunk());
  if (Interrupt::HasHappened()) return Interrupt::Error();
  return again ? absl::OkStatus() : status;
}

// The missing memory may be in the hands of another request that asked for more than it needs. Puts this
// request's chunks aside and waits for a request to end, so that the last one, which waits for no other, can
// have all. Requests that may block in the source are waited for only until this one's deadline.
bool Growth::WaitForOthers(Attempt& attempt) {
  constexpr int kMostRetries = 100;
  MutexLock lock(state_.mutex);
  bool again = state_.changes != attempt.seen_changes;
  if (!again) {
    if (attempt.plan.DropHand(state_.chunks)) state_.NoteChange();
    const std::uint64_t seen = state_.changes;
    ++state_.waiting;
    // The others count their waiters again: a request that waits without a deadline may be one of the last.
    if (state_.waiting > 1) state_.changed.NotifyAll();
    while (state_.changes == seen) {
      const int others = state_.calls - state_.waiting;
      if (others > state_.patient) {
        if (!Interrupt::Wait(state_.changed, state_.mutex)) break;
      } else if (others <= 0 || !Interrupt::WaitUntil(state_.changed, state_.mutex, attempt.deadline)) {
        break;
      }
    }
    --state_.waiting;
    again = state_.changes != seen;
  }
  attempt.plan.StartAgain();
  return again && ++attempt.retries < kMostRetries;
}

// Chunks that this request got go back to the source; those that the pool had before stay spare.
absl::Status Growth::Fail(Attempt& attempt, const absl::Status& status) {
  std::vector<Chunk> to_return;
  {
    MutexLock lock(state_.mutex);
    state_.pending -= RoundUp(attempt.bytes, Suballocator::kGranule);
    to_return = attempt.plan.GiveUp(state_.chunks);
  }
  // The first error is reported, even if this call fails as well.
  state_.Return(to_return).IgnoreError();
  return status;
}

}  // namespace lgpu
