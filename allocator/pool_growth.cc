#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "allocator/pool_impl.h"
#include "lgpu/status.h"

#ifndef LGPU_MUTATION
#define LGPU_MUTATION 0
#endif

namespace lgpu {
namespace {

// A mistake that a test build makes, to see that its tests find it: 1: idle chunks are not moved, 2: only the
// places that a quick search finds count, 3: chunks that are too large are not exchanged.
constexpr int kMutation = LGPU_MUTATION;

bool Overlap(Suballocator::Range a, Suballocator::Range b) {
  return a.offset < b.end() && b.offset < a.end();
}

std::vector<ChunkId> IdsOf(const std::vector<Chunk>& chunks) {
  std::vector<ChunkId> ids;
  ids.reserve(chunks.size());
  for (const Chunk& chunk : chunks) {
    ids.push_back(chunk.id);
  }
  return ids;
}

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

absl::StatusOr<Block> Pool::Impl::AllocateSlowly(Attempt& attempt) {
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
        return attempt.block;
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
          return attempt.block;
        }
        going_on = false;
        break;
      case Step::kFail:
        going_on = absl::IsResourceExhausted(attempt.status) && WaitForOthers(attempt);
        break;
    }
    if (!going_on) {
      return Fail(attempt);
    }
  }
}

Pool::Impl::Step Pool::Impl::Done(Attempt& attempt, Suballocator::Handle block) {
  pending_ -= RoundUp(attempt.bytes, Suballocator::kGranule);
  attempt.block = BlockOf(block, attempt.bytes, attempt.options);
  spare_.insert(spare_.end(), attempt.chunks.begin(), attempt.chunks.end());
  return Step::kDone;
}

Pool::Impl::Step Pool::Impl::Refuse(Attempt& attempt, RefusalReason reason) {
  if (fenced_.load(std::memory_order_relaxed) != 0 && !attempt.fences_passed) {
    return Step::kSettle;
  }
  if (reason == RefusalReason::kLimit && IsSmall(attempt) && !attempt.any_chunk) {
    attempt.any_chunk = true;  // rather in a large chunk, which it pins, than nowhere
    return NextStep(attempt);
  }
  attempt.status = attempt.grow_refused ? WithNumbers(*attempt.grow_refused, attempt)
                                        : RefusalStatus(MakeRefusal(reason, attempt));
  return Step::kFail;
}

// What the source may still give.
Bytes Pool::Impl::Room(const Attempt& attempt) const {
  return attempt.grow_refused ? Bytes() : SaturatingSub(RoundUp(attempt.limit, granularity_), held_);
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
  return {.bytes = attempt.bytes, .alignment = attempt.options.alignment, .any_chunk = attempt.any_chunk};
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
        absl::InternalError("the source of chunks gives other chunks than those it is asked for");
    return Step::kFail;
  }
  Suballocator::Request request = RequestOf(attempt);
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
  return StepUnderPressure(attempt);
}

Pool::Impl::Step Pool::Impl::StepToGrow(Attempt& attempt, const Fill& fill, Bytes room) {
  attempt.request.at_least = fill.missing;
  attempt.request.wanted = fill.missing;
  if (!attempt.exact && !(fill.small && exact_small_)) {
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
  Suballocator::GrowthOptions options = {.prefer = Suballocator::Prefer::kFewestWhole,
                                         .search = Suballocator::Search::kQuick,
                                         .settled = settled,
                                         .room_behind = attempt.room_behind};
  const Bytes most = RoundUp(attempt.limit, granularity_);
  const auto fits = [&](const std::optional<Suballocator::Placement>& plan, Suballocator::Stamp stamp) {
    mutex_.AssertHeld();
    return plan && SaturatingAdd(Pinned(attempt, stamp), plan->whole) <= most;
  };
  auto plan = blocks_.PlanGrowth(request, options);
  if (!fits(plan, settled) && kMutation != 2) {
    options.search = Suballocator::Search::kExhaustive;
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
  return Refuse(attempt, RefusalReason::kLimit);
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
  std::stable_sort(chunks.begin(), chunks.end(),
                   [](const Chunk& a, const Chunk& b) { return a.bytes > b.bytes; });
  for (const Suballocator::Run& run : blocks_.UnmappedRuns(plan)) {
    const bool one_page = fill.small || run.pages.end() > blocks_.small_zone();
    Bytes at = run.pages.offset;
    std::vector<Chunk> left;
    for (const Chunk& chunk : chunks) {
      if (chunk.bytes <= run.pages.end() - at && (chunk.bytes == granularity_ || !one_page)) {
        fill.chunks.push_back(chunk);
        fill.places.push_back({at, chunk.bytes});
        at += chunk.bytes;
      } else {
        left.push_back(chunk);
      }
    }
    chunks = std::move(left);
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
      fill.largest_hole = std::max(fill.largest_hole, run.pages.end() - at);
    }
  }
  return fill;
}

bool Pool::Impl::Grow(Attempt& attempt) {
  const auto left = attempt.deadline - std::chrono::steady_clock::now();
  attempt.request.timeout = std::max(std::chrono::nanoseconds(0), std::chrono::nanoseconds(left));
  const int patient = attempt.request.timeout.count() > 0 ? 1 : 0;
  {
    MutexLock lock(mutex_);
    patient_ += patient;
    if (patient > 0 && waiting_ > 0) {
      changed_.NotifyAll();  // who waited for this attempt waits only to its own deadline from here on
    }
  }
  absl::StatusOr<std::vector<Chunk>> chunks = source_->Grow(attempt.request);
  MutexLock lock(mutex_);
  patient_ -= patient;
  ++source_round_trips_;
  grew_ = true;
  if (!chunks.ok()) {
    attempt.grow_refused = chunks.status();
    attempt.status = chunks.status();
    // Chunks that are here already may do, whatever became of the other side.
    return absl::IsResourceExhausted(chunks.status()) || absl::IsUnavailable(chunks.status());
  }
  for (const Chunk& chunk : *chunks) {
    attempt.chunks.push_back(chunk);
    attempt.grown.push_back(chunk.id);
    held_ += chunk.bytes;
    NoteClass(attempt, chunk);
  }
  return true;
}

// A source may have no chunks as small as those it is asked for: preallocated ones exist as they are.
void Pool::Impl::NoteClass(Attempt& attempt, const Chunk& chunk) {
  if (IsSmall(attempt) && !attempt.any_chunk && chunk.bytes > granularity_) {
    exact_small_ = true;
    if (attempt.request.wanted == granularity_) {
      only_large_ = true;
      attempt.any_chunk = true;
    }
  }
  if (chunk.bytes > attempt.request.wanted) {
    attempt.room_behind = std::max(attempt.room_behind, chunk.bytes);
  }
}

void Pool::Impl::NoteChange() {
  ++changes_;
  if (waiting_ > 0) {
    changed_.NotifyAll();
  }
}

// What is missing may be in the hands of another attempt that asked for more than it needs. Waits for
// one to finish, with empty hands, so that the last one that waits for nobody has all there is; true
// if it is worth while to try again. Attempts that may sit in the source for long are waited for only
// as long as this one may wait itself.
bool Pool::Impl::WaitForOthers(Attempt& attempt) {
  constexpr int kMostRetries = 100;
  MutexLock lock(mutex_);
  bool again = changes_ != attempt.seen_changes;
  if (!again) {
    if (!attempt.chunks.empty()) {
      spare_.insert(spare_.end(), attempt.chunks.begin(), attempt.chunks.end());
      attempt.chunks.clear();
      NoteChange();
    }
    const std::uint64_t seen = changes_;
    ++waiting_;
    while (changes_ == seen) {
      const int others = calls_ - waiting_;
      if (others > patient_) {
        changed_.Wait(mutex_);
      } else if (others <= 0 || !changed_.WaitUntil(mutex_, attempt.deadline)) {
        break;
      }
    }
    --waiting_;
    again = changes_ != seen;
  }
  attempt.grow_refused.reset();
  attempt.combined = false;
  attempt.exact = false;
  attempt.room_behind = Bytes();
  return again && ++attempt.retries < kMostRetries;
}

bool Pool::Impl::Move(Attempt& attempt) {
  const std::vector<Run> runs = std::exchange(attempt.runs, {});
  const absl::Status status = UnmapRuns(runs);
  if (absl::IsFailedPrecondition(status) && fences_ != nullptr && !attempt.fences_passed) {
    return WaitForFences(attempt);  // the device knows of work that the fences of these chunks do not cover
  }
  MutexLock lock(mutex_);
  if (!status.ok()) {
    attempt.status = status;
    if (absl::IsFailedPrecondition(status)) {
      Refusal refusal = MakeRefusal(RefusalReason::kLimit, attempt);
      refusal.advice.push_back(
          absl::StrCat("free memory could not be moved while it may be in use: ", status.message()));
      attempt.status = RefusalStatus(refusal);
    }
    return false;
  }
  for (const Run& run : runs) {
    attempt.chunks.insert(attempt.chunks.end(), run.chunks.begin(), run.chunks.end());
    remapped_chunks_ += run.chunks.size();
  }
  if (attempt.grow_refused && absl::IsResourceExhausted(*attempt.grow_refused) && !attempt.combined) {
    // Neither was enough alone: what there is, and a smaller step of growth for the rest.
    attempt.combined = true;
    attempt.grow_refused.reset();
  }
  return true;
}

bool Pool::Impl::ReturnSurplus(Attempt& attempt) {
  const absl::Status status = ReturnChunks(std::exchange(attempt.surplus, {}));
  MutexLock lock(mutex_);
  if (!status.ok()) {
    attempt.status = status;
    return false;
  }
  attempt.grow_refused.reset();
  return true;
}

bool Pool::Impl::Map(Attempt& attempt) {
  const absl::Status status = source_->Map(attempt.placements);
  MutexLock lock(mutex_);
  if (!status.ok()) {
    blocks_.Abandon(attempt.claim);
    attempt.status = WithNumbers(status, attempt);
    return false;
  }
  std::vector<Suballocator::Range> places;
  for (std::size_t i = 0; i < attempt.placements.size(); ++i) {
    mapped_.emplace(attempt.placements[i].offset, attempt.placed[i]);
    places.push_back({attempt.placements[i].offset, attempt.placed[i].bytes});
  }
  pending_ -= RoundUp(attempt.bytes, Suballocator::kGranule);
  attempt.block = BlockOf(blocks_.Commit(attempt.claim, places), attempt.bytes, attempt.options);
  // From here on every hole counts.
  blocks_.SetScarce(blocks_.mapped() >= attempt.limit / 8 * 7);
  return true;
}

// Chunks that this attempt got go back to the source; those that the pool had before stay spare.
absl::Status Pool::Impl::Fail(Attempt& attempt) {
  std::vector<Chunk> to_return;
  {
    MutexLock lock(mutex_);
    pending_ -= RoundUp(attempt.bytes, Suballocator::kGranule);
    spare_.insert(spare_.end(), attempt.chunks.begin(), attempt.chunks.end());
    const auto own = std::stable_partition(spare_.begin(), spare_.end(), [&](const Chunk& chunk) {
      return std::find(attempt.grown.begin(), attempt.grown.end(), chunk.id) == attempt.grown.end();
    });
    to_return.assign(own, spare_.end());
    spare_.erase(own, spare_.end());
  }
  // If this fails as well, the first error is the one to tell.
  ReturnChunks(to_return).IgnoreError();
  return attempt.status;
}

// ---- idle chunks

// Takes idle chunks out of use, those that have been idle longest first: kAtLeast takes the amount or more,
// or nothing; kAtMost as much as there is up to it.
std::vector<Pool::Impl::Run> Pool::Impl::DetachIdle(const Wanted& wanted) {
  std::vector<Suballocator::IdleRun> idle = blocks_.IdleRuns(wanted.settled);
  std::sort(idle.begin(), idle.end(), [](const auto& a, const auto& b) {
    return a.stamp != b.stamp ? a.stamp < b.stamp : a.range.offset > b.range.offset;
  });
  const auto may_go = [&](Suballocator::Range chunk) {
    const bool inside = wanted.avoid.offset <= chunk.offset && chunk.end() <= wanted.avoid.end();
    return chunk.bytes <= wanted.largest_chunk && !inside &&
           (wanted.straddling || !Overlap(chunk, wanted.avoid));
  };
  std::vector<Run> taken;
  std::vector<Suballocator::IdleRun> sources;
  Bytes sum;
  for (const Suballocator::IdleRun& run : idle) {
    bool continues = false;
    for (auto chunk = mapped_.lower_bound(run.range.end());
         sum < wanted.amount && chunk != mapped_.begin() && std::prev(chunk)->first >= run.range.offset;) {
      --chunk;
      const Bytes bytes = chunk->second.bytes;
      if (!may_go({chunk->first, bytes}) || (wanted.bound == Bound::kAtMost && bytes > wanted.amount - sum)) {
        continues = false;
        continue;
      }
      if (!continues) {
        taken.push_back({.range = {chunk->first + bytes, Bytes()}});
        sources.push_back(run);
        continues = true;
      }
      taken.back().range = {chunk->first, taken.back().range.bytes + bytes};
      taken.back().chunks.push_back(chunk->second);
      sum += bytes;
    }
  }
  if (wanted.bound == Bound::kAtLeast && sum < wanted.amount) {
    return {};
  }
  for (std::size_t i = 0; i < taken.size(); ++i) {
    taken[i].detached = blocks_.Detach(sources[i], taken[i].range);
  }
  return taken;
}

absl::Status Pool::Impl::UnmapRuns(const std::vector<Run>& runs) {
  if (runs.empty()) {
    return absl::OkStatus();
  }
  std::vector<ChunkId> ids;
  for (const Run& run : runs) {
    const std::vector<ChunkId> of_run = IdsOf(run.chunks);
    ids.insert(ids.end(), of_run.begin(), of_run.end());
  }
  const absl::Status status = source_->Unmap(ids);
  MutexLock lock(mutex_);
  for (const Run& run : runs) {
    if (status.ok()) {
      blocks_.CommitUnmapped(run.detached);
      blocks_.SetScarce(false);
      mapped_.erase(mapped_.lower_bound(run.range.offset), mapped_.lower_bound(run.range.end()));
    } else {
      blocks_.Reattach(run.detached);
    }
  }
  return status;
}

absl::Status Pool::Impl::ReturnChunks(const std::vector<Chunk>& chunks) {
  if (chunks.empty()) {
    return absl::OkStatus();
  }
  const absl::Status status = source_->Return(IdsOf(chunks));
  // An error says that the other side did not confirm; the chunks are gone from here all the same.
  MutexLock lock(mutex_);
  for (const Chunk& chunk : chunks) {
    held_ -= chunk.bytes;
  }
  return status;
}

}  // namespace lgpu
