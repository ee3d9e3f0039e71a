#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "allocator/pool/pool_impl.h"
#include "lgpu/status.h"

#ifndef LGPU_MUTATION
#define LGPU_MUTATION 0
#endif

namespace lgpu {
namespace {

// A mistake that a test build makes, to see that its tests find it: 1: idle chunks are not moved, 2: only the
// places that a quick search finds count, 3: chunks that are too large are not exchanged.
constexpr int kMutation = LGPU_MUTATION;

}  // namespace

Refusal Pool::Impl::MakeRefusal(RefusalReason reason, const Attempt& attempt) const {
  Refusal refusal;
  refusal.reason = reason;
  refusal.device = options_.device;
  refusal.lease = options_.lease;
  refusal.what = attempt.options.what;
  refusal.asked = attempt.bytes;
  refusal.limit = attempt.limit;
  refusal.used = Used();
  refusal.held = held_;
  refusal.peak_used = std::max(Bytes(peak_used_.load(std::memory_order_relaxed)), Used());
  refusal.live_blocks = LiveBlocks();
  refusal.largest_free_block = blocks_.largest_free();
  if (reason == RefusalReason::kLimit) {
    refusal.advice.push_back("free blocks of this device, or ask for a higher memory_limit");
    if (SaturatingAdd(blocks_.used(), attempt.bytes) <= attempt.limit) {
      refusal.advice.push_back(
          "the free memory lies between live blocks: allocate large blocks first, or free more");
    }
  } else if (reason == RefusalReason::kAddressRange) {
    refusal.advice.push_back("ask for smaller blocks: the addresses that the device reserved are used up");
  }
  return refusal;
}

absl::Status Pool::Impl::WithNumbers(const absl::Status& status, const Attempt& attempt) {
  std::optional<Refusal> known = GetRefusal(status);
  if (!known) {
    return status;
  }
  const Refusal own = MakeRefusal(known->reason, attempt);
  known->device = own.device;
  known->lease = known->lease.empty() ? own.lease : known->lease;
  known->what = own.what.empty() ? known->what : own.what;
  known->asked = own.asked;
  known->limit = known->limit ? known->limit : own.limit;
  known->used = own.used;
  known->held = known->held ? known->held : own.held;
  known->peak_used = own.peak_used;
  known->live_blocks = own.live_blocks;
  known->largest_free_block = own.largest_free_block;
  if (known->advice.empty()) {
    known->advice = own.advice;
  }
  return RefusalStatus(*known);
}

absl::StatusOr<std::uint32_t> Pool::Impl::AllocateSlowly(Attempt& attempt) {
  for (;;) {
    attempt.limit = source_->limit();
    Step step;
    {
      MutexLock lock(mutex_);
      step = NextStep(attempt);
    }
    bool going_on = true;
    switch (step) {
      case Step::kDone:
        return attempt.index;
      case Step::kGrow:
        going_on = Grow(attempt);
        break;
      case Step::kMove:
        going_on = Move(attempt);
        break;
      case Step::kReturn:
        going_on = ReturnSurplus(attempt);
        break;
      case Step::kSettle:
        going_on = WaitForFences(attempt);
        break;
      case Step::kMap:
        if (Map(attempt)) {
          return attempt.index;
        }
        going_on = false;
        break;
      case Step::kFail:
        going_on = absl::IsResourceExhausted(attempt.status) && !attempt.options.spare_only &&
                   (WaitForOthers(attempt) || AllowAnyChunk(attempt));
        break;
    }
    if (!going_on) {
      return Fail(attempt);
    }
  }
}

Pool::Impl::Step Pool::Impl::Done(Attempt& attempt, Suballocator::Handle block) {
  pending_ -= RoundUp(attempt.bytes, Suballocator::kGranule);
  attempt.freed_at = blocks_.freed_at();
  attempt.index = HandOut(block, attempt.bytes, attempt.options);
  spare_.insert(spare_.end(), attempt.chunks.begin(), attempt.chunks.end());
  return Step::kDone;
}

Pool::Impl::Step Pool::Impl::Refuse(Attempt& attempt, RefusalReason reason) {
  if (fenced_.load(std::memory_order_relaxed) != 0 && !attempt.fences_passed) {
    return Step::kSettle;
  }
  if (attempt.grow_refused && attempt.hasty) {
    attempt.hasty = false;
    attempt.patient = true;
    attempt.grow_refused.reset();
    return NextStep(attempt);
  }
  attempt.status = attempt.grow_refused ? WithNumbers(*attempt.grow_refused, attempt)
                                        : RefusalStatus(MakeRefusal(reason, attempt));
  return Step::kFail;
}

// A small block had rather lie in a large chunk, which it pins, than nowhere.
bool Pool::Impl::AllowAnyChunk(Attempt& attempt) const {
  return IsSmall(attempt) && !std::exchange(attempt.any_chunk, true);
}

// What the source may still give of what there is a place for.
Bytes Pool::Impl::Room(const Attempt& attempt) const {
  const bool none_fits = attempt.coarse && attempt.room_behind.is_zero();
  return attempt.grow_refused || none_fits ? Bytes()
                                           : SaturatingSub(RoundUp(attempt.limit, granularity_), held_);
}

// The bytes of chunks that hold a live block, or one that may be in use. Chunks in the hands of other
// attempts count as well; whoever is refused waits for those to finish first.
Bytes Pool::Impl::Pinned(const Attempt& attempt, Suballocator::Stamp settled) const {
  Bytes loose = blocks_.idle(settled);
  for (const Chunk& chunk : spare_) {
    loose += chunk.bytes;
  }
  for (const Chunk& chunk : attempt.chunks) {
    loose += chunk.bytes;
  }
  return held_ - loose;
}

Suballocator::Request Pool::Impl::RequestOf(const Attempt& attempt) {
  return {.bytes = attempt.bytes,
          .alignment = attempt.options.alignment,
          .any_chunk = attempt.any_chunk,
          .home = HomeOf(attempt.shard)};
}

bool Pool::Impl::IsSmall(const Attempt& attempt) const {
  return RoundUp(attempt.bytes, Suballocator::kGranule) <=
         std::min(Suballocator::kLargestSmall, granularity_);
}

Pool::Impl::Step Pool::Impl::NextStep(Attempt& attempt) {
  attempt.seen_changes = changes_;
  // More steps than any attempt needs: only a source that does not keep its word gets here.
  constexpr int kMostSteps = 10000;
  if (++attempt.steps > kMostSteps) {
    attempt.status =
        attempt.larger_came
            ? RefusalStatus(MakeRefusal(RefusalReason::kLimit, attempt))
            : absl::InternalError("the source of chunks gives other chunks than those it is asked for");
    return Step::kFail;
  }
  Suballocator::Request request = RequestOf(attempt);
  ReleaseQueues();
  if (const auto handle = blocks_.Allocate(request, Suballocator::Effort::kExhaustive)) {
    return Done(attempt, *handle);
  }
  if (only_large_ && !attempt.any_chunk && IsSmall(attempt)) {
    attempt.any_chunk = true;
    request = RequestOf(attempt);
    if (const auto handle = blocks_.Allocate(request, Suballocator::Effort::kExhaustive)) {
      return Done(attempt, *handle);
    }
  }
  const auto plan = blocks_.PlanGrowth(request, {.room_behind = attempt.room_behind});
  if (plan) {
    Fill fill = TryFill(attempt, *plan, LastChunk::kMayStickOut);
    if (fill.missing.is_zero()) {
      return StepToMap(attempt, *plan, std::move(fill));
    }
    if (fill.missing <= Room(attempt)) {
      return StepToGrow(attempt, fill, Room(attempt));
    }
  }
  if (FlushCaches()) {
    return NextStep(attempt);
  }
  if (const auto handle = blocks_.Allocate(request, Suballocator::Effort::kAnywhere)) {
    return Done(attempt, *handle);
  }
  if (attempt.options.spare_only) {
    attempt.status = NoneToSpare();
    return Step::kFail;
  }
  return StepUnderPressure(attempt);
}

Pool::Impl::Step Pool::Impl::StepToGrow(Attempt& attempt, const Fill& fill, Bytes room) {
  attempt.request.at_least = fill.missing;
  attempt.request.wanted = fill.missing;
  if (!attempt.exact && !attempt.options.scratch && !(fill.small && exact_small_)) {
    attempt.request.wanted =
        std::clamp(GrowthStep(fill.missing, fill.small), fill.missing, RoundDown(room, granularity_));
  }
  if (attempt.exact) {
    // One hole after the other, so that no chunk is larger than what it is for.
    attempt.request.at_least = fill.largest_hole;
    attempt.request.wanted = fill.largest_hole;
  }
  return Step::kGrow;
}

Pool::Impl::Step Pool::Impl::StepToMap(Attempt& attempt, const Suballocator::Placement& plan, Fill fill) {
  const Suballocator::Request request = RequestOf(attempt);
  TakeInHand(attempt, fill.chunks);
  Suballocator::Range pages;
  attempt.placements.clear();
  for (std::size_t i = 0; i < fill.chunks.size(); ++i) {
    attempt.placements.push_back({fill.chunks[i].id, fill.places[i].offset});
  }
  if (!fill.places.empty()) {
    pages.offset = fill.places.front().offset;
    pages.bytes = fill.places.back().end() - pages.offset;
  }
  attempt.placed = std::move(fill.chunks);
  attempt.claim = blocks_.ClaimGrowth(request, plan, pages);
  // What is in hand and not placed is everybody's again.
  std::erase_if(attempt.chunks, [&](const Chunk& chunk) {
    mutex_.AssertHeld();
    const bool used = std::any_of(attempt.placed.begin(), attempt.placed.end(),
                                  [&](const Chunk& other) { return other.id == chunk.id; });
    if (!used) {
      spare_.push_back(chunk);
    }
    return !used;
  });
  return Step::kMap;
}

// Neither the mapped memory nor what the source may still give is enough as it lies.
Pool::Impl::Step Pool::Impl::StepUnderPressure(Attempt& attempt) {
  const Suballocator::Request request = RequestOf(attempt);
  const Suballocator::Stamp settled = SettledStamp();
  // What has to be moved least; and where that pins too much, what is needed least. The first may be another
  // place after every step, the second stays: so an attempt that takes many steps comes to an end.
  constexpr int kFickleSteps = 4;
  const bool fickle =
      attempt.pressure_steps++ < kFickleSteps && !attempt.coarse && attempt.room_behind.is_zero();
  Suballocator::GrowthOptions options = {
      .prefer = fickle ? Suballocator::Prefer::kFewestNew : Suballocator::Prefer::kFewestWhole,
      .search = kMutation == 2 ? Suballocator::Search::kQuick : Suballocator::Search::kExhaustive,
      .settled = settled,
      .room_behind = attempt.room_behind};
  const Bytes most = RoundUp(attempt.limit, granularity_);
  const auto fits = [&](const std::optional<Suballocator::Placement>& plan, Suballocator::Stamp stamp) {
    mutex_.AssertHeld();
    return plan && SaturatingAdd(Pinned(attempt, stamp), plan->whole) <= most;
  };
  auto plan = blocks_.PlanGrowth(request, options);
  options.prefer = Suballocator::Prefer::kFewestWhole;
  if (fickle && !fits(plan, settled)) {
    plan = blocks_.PlanGrowth(request, options);
  }
  if (!plan && !attempt.room_behind.is_zero()) {
    attempt.room_behind = options.room_behind = Bytes();
    plan = blocks_.PlanGrowth(request, options);
  }
  if (!plan) {
    return Refuse(attempt, RefusalReason::kAddressRange);
  }
  if (!fits(plan, settled)) {
    if (settled != Suballocator::kYoungest) {
      options.settled = Suballocator::kYoungest;
      if (fits(blocks_.PlanGrowth(request, options), Suballocator::kYoungest)) {
        return Step::kSettle;
      }
    }
    return Refuse(attempt, RefusalReason::kLimit);
  }
  Fill fill = TryFill(attempt, *plan, LastChunk::kMayStickOut);
  if (fill.missing.is_zero()) {
    return StepToMap(attempt, *plan, std::move(fill));
  }
  // What sticks out would be missing elsewhere.
  fill = TryFill(attempt, *plan, LastChunk::kFits);
  TakeInHand(attempt, fill.chunks);
  const Bytes room = Room(attempt);
  if (fill.missing <= room) {
    return StepToGrow(attempt, fill, room);
  }
  return StepToMakeRoom(attempt, *plan, fill);
}

Pool::Impl::Step Pool::Impl::StepToMakeRoom(Attempt& attempt, const Suballocator::Placement& plan,
                                            const Fill& fill) {
  const Bytes shortage = fill.missing - std::min(fill.missing, Room(attempt));
  const Suballocator::Range span = {
      RoundDown(plan.block.offset, granularity_),
      RoundUp(plan.block.end(), granularity_) - RoundDown(plan.block.offset, granularity_)};
  // Idle chunks that fit into what is missing, as they are.
  Wanted wanted = {.amount = shortage,
                   .largest_chunk = fill.small ? granularity_ : fill.largest_hole,
                   .avoid = span,
                   .settled = SettledStamp()};
  if (kMutation == 1) {
    return Refuse(attempt, RefusalReason::kLimit);
  }
  attempt.runs = DetachIdle(wanted);
  if (!attempt.runs.empty()) {
    return Step::kMove;
  }
  wanted.bound = Bound::kAtMost;
  attempt.runs = DetachIdle(wanted);
  if (!attempt.runs.empty()) {
    return Step::kMove;
  }
  if (kMutation == 3) {
    return Refuse(attempt, RefusalReason::kLimit);
  }
  // Larger ones go back to the source, which gives smaller ones for them.
  const auto give_back = [&](std::vector<Chunk>& chunks) {
    Bytes sum;
    for (const Chunk& chunk : attempt.surplus) {
      sum += chunk.bytes;
    }
    std::sort(chunks.begin(), chunks.end(), [](const Chunk& a, const Chunk& b) { return a.bytes > b.bytes; });
    while (sum < shortage && !chunks.empty()) {
      sum += chunks.back().bytes;
      attempt.surplus.push_back(chunks.back());
      chunks.pop_back();
    }
  };
  std::vector<Chunk> unfit;
  std::erase_if(attempt.chunks, [&](const Chunk& chunk) {
    const bool used = std::any_of(fill.chunks.begin(), fill.chunks.end(),
                                  [&](const Chunk& other) { return other.id == chunk.id; });
    if (!used) {
      unfit.push_back(chunk);
    }
    return !used;
  });
  unfit.insert(unfit.end(), spare_.begin(), spare_.end());
  spare_.clear();
  give_back(unfit);
  spare_ = std::move(unfit);
  attempt.exact = true;
  if (!attempt.surplus.empty()) {
    return Step::kReturn;
  }
  wanted.bound = Bound::kAtLeast;
  wanted.largest_chunk = Bytes(~std::uint64_t{0});
  wanted.straddling = true;
  wanted.amount = granularity_;  // one chunk at a time: the next step may find that it fits
  attempt.runs = DetachIdle(wanted);
  if (!attempt.runs.empty()) {
    return Step::kMove;
  }
  return Refuse(attempt, attempt.coarse ? RefusalReason::kAddressRange : RefusalReason::kLimit);
}

void Pool::Impl::TakeInHand(Attempt& attempt, const std::vector<Chunk>& chunks) {
  for (const Chunk& chunk : chunks) {
    const auto at =
        std::find_if(spare_.begin(), spare_.end(), [&](const Chunk& other) { return other.id == chunk.id; });
    if (at != spare_.end()) {
      attempt.chunks.push_back(chunk);
      spare_.erase(at);
    }
  }
}

// Large chunks first, as long as all of one is needed; the last one may stick out where addresses are free.
Pool::Impl::Fill Pool::Impl::TryFill(const Attempt& attempt, const Suballocator::Placement& plan,
                                     LastChunk last) const {
  Fill fill;
  fill.small = !attempt.any_chunk && IsSmall(attempt);
  std::vector<Chunk> chunks = attempt.chunks;
  chunks.insert(chunks.end(), spare_.begin(), spare_.end());
  const auto is_larger = [](const Chunk& a, const Chunk& b) { return a.bytes > b.bytes; };
  if (!std::is_sorted(chunks.begin(), chunks.end(), is_larger)) {  // mostly all are of one size
    std::stable_sort(chunks.begin(), chunks.end(), is_larger);
  }
  for (const Suballocator::Run& run : blocks_.UnmappedRuns(plan)) {
    const bool one_page = fill.small || run.pages.end() > blocks_.small_zone();
    Bytes at = run.pages.offset;
    auto kept = chunks.begin();
    auto next = chunks.begin();
    for (; next != chunks.end() && at < run.pages.end(); ++next) {
      const Chunk chunk = *next;
      if (chunk.bytes <= run.pages.end() - at && (chunk.bytes == granularity_ || !one_page)) {
        fill.chunks.push_back(chunk);
        fill.places.push_back({at, chunk.bytes});
        at += chunk.bytes;
      } else {
        *kept++ = chunk;
      }
    }
    chunks.erase(kept, next);
    const Bytes open_end = std::min(run.around.end(), std::max(blocks_.small_zone(), run.pages.end()));
    if (last == LastChunk::kMayStickOut && at < run.pages.end() && !one_page && !chunks.empty() &&
        chunks.back().bytes <= open_end - at) {
      fill.chunks.push_back(chunks.back());
      fill.places.push_back({at, chunks.back().bytes});
      at += chunks.back().bytes;
      chunks.pop_back();
    }
    if (at < run.pages.end()) {
      fill.missing += run.pages.end() - at;
      // Where only chunks of one page go, a larger one would come and go for ever.
      fill.largest_hole = std::max(fill.largest_hole, one_page ? granularity_ : run.pages.end() - at);
    }
  }
  return fill;
}

}  // namespace lgpu
