#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "allocator/pool_impl.h"
#include "lgpu/status.h"

namespace lgpu {
namespace {

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
  refusal.used = blocks_.used();
  refusal.held = held_;
  refusal.peak_used = peak_used_;
  refusal.live_blocks = blocks_.live_blocks();
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

Pool::Impl::Step Pool::Impl::NextStep(Attempt& attempt) {
  const Bytes rounded = RoundUp(attempt.bytes, Suballocator::kGranule);
  const Bytes alignment = attempt.options.alignment;
  attempt.seen_changes = changes_;
  if (const auto handle = blocks_.Allocate(attempt.bytes, alignment, Suballocator::Effort::kExhaustive)) {
    pending_ -= rounded;
    attempt.block = BlockOf(*handle);
    spare_.insert(spare_.end(), attempt.chunks.begin(), attempt.chunks.end());
    return Step::kDone;
  }
  const auto plan = blocks_.PlanGrowth(attempt.bytes, alignment, Suballocator::Prefer::kFewestNew);
  if (!plan) {
    return StepWithoutAddresses(attempt);
  }
  Bytes needed = std::max(plan->unmapped, attempt.fresh_at_least);
  TakeSpare(attempt, needed);
  if (attempt.chunk_bytes >= needed) {
    for (;;) {
      if (const auto claim = blocks_.ClaimGrowth(attempt.bytes, alignment, attempt.chunk_bytes)) {
        attempt.claim = *claim;
        return Step::kMap;
      }
      // Fewer chunks may find a place where all of them do not.
      if (attempt.chunk_bytes - attempt.chunks.back().bytes < needed) {
        break;
      }
      attempt.chunk_bytes -= attempt.chunks.back().bytes;
      spare_.push_back(attempt.chunks.back());
      attempt.chunks.pop_back();
    }
    // The place that needs least has no room for chunks this large; behind everything there is.
    needed = RoundUp(rounded, granularity_);
    if (attempt.chunk_bytes >= needed) {
      return StepWithoutAddresses(attempt);
    }
    attempt.fresh_at_least = needed;
    TakeSpare(attempt, needed);
  }
  const Bytes shortage = SaturatingSub(needed, attempt.chunk_bytes);
  const Bytes room = SaturatingSub(RoundUp(attempt.limit, granularity_), held_);
  if (shortage.is_zero()) {
    return NextStep(attempt);
  }
  if (!attempt.grow_refused && shortage <= room) {
    attempt.request.at_least = shortage;
    attempt.request.wanted =
        std::clamp(RoundUp(options_.growth_step, granularity_), shortage, RoundDown(room, granularity_));
    return Step::kGrow;
  }
  return StepToMove(attempt, room);
}

// No range of free addresses is long enough: make long ones by taking every idle chunk away, once.
Pool::Impl::Step Pool::Impl::StepWithoutAddresses(Attempt& attempt) {
  if (!attempt.cleared) {
    attempt.cleared = true;
    attempt.runs = DetachIdle(held_, Bound::kAtMost, {});
    if (!attempt.runs.empty()) {
      return Step::kMove;
    }
  }
  attempt.status = RefusalStatus(MakeRefusal(RefusalReason::kAddressRange, attempt));
  return Step::kFail;
}

// The limit or the card has not enough: use chunks that no live block touches, at another address.
Pool::Impl::Step Pool::Impl::StepToMove(Attempt& attempt, Bytes room) {
  const auto plan =
      blocks_.PlanGrowth(attempt.bytes, attempt.options.alignment, Suballocator::Prefer::kFewestWhole);
  if (plan) {
    const Bytes shortage =
        SaturatingSub(std::max(plan->unmapped, attempt.fresh_at_least), attempt.chunk_bytes);
    const Bytes to_move = attempt.grow_refused ? shortage : SaturatingSub(shortage, room);
    attempt.runs = DetachIdle(to_move, Bound::kAtLeast, plan->block);
    if (attempt.runs.empty() && attempt.grow_refused && absl::IsResourceExhausted(*attempt.grow_refused) &&
        !attempt.combined) {
      // Neither is enough alone: what there is, and a smaller step of growth for the rest.
      attempt.combined = true;
      attempt.runs = DetachIdle(to_move, Bound::kAtMost, plan->block);
      if (!attempt.runs.empty()) {
        attempt.grow_refused.reset();
      }
    }
    if (!attempt.runs.empty()) {
      return Step::kMove;
    }
  }
  attempt.status = attempt.grow_refused ? WithNumbers(*attempt.grow_refused, attempt)
                                        : RefusalStatus(MakeRefusal(RefusalReason::kLimit, attempt));
  return Step::kFail;
}

void Pool::Impl::TakeSpare(Attempt& attempt, Bytes at_least) {
  while (attempt.chunk_bytes < at_least && !spare_.empty()) {
    attempt.chunks.push_back(spare_.back());
    attempt.chunk_bytes += spare_.back().bytes;
    spare_.pop_back();
  }
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
  if (!chunks.ok()) {
    attempt.grow_refused = chunks.status();
    attempt.status = chunks.status();
    // Chunks that are here already may do, whatever became of the other side.
    return absl::IsResourceExhausted(chunks.status()) || absl::IsUnavailable(chunks.status());
  }
  for (const Chunk& chunk : *chunks) {
    attempt.chunks.push_back(chunk);
    attempt.grown.push_back(chunk.id);
    attempt.chunk_bytes += chunk.bytes;
    held_ += chunk.bytes;
  }
  return true;
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
      attempt.chunk_bytes = Bytes();
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
  attempt.cleared = false;
  attempt.combined = false;
  attempt.fresh_at_least = Bytes();
  return again && ++attempt.retries < kMostRetries;
}

bool Pool::Impl::Move(Attempt& attempt) {
  const std::vector<Run> runs = std::exchange(attempt.runs, {});
  const absl::Status status = UnmapRuns(runs);
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
    attempt.chunk_bytes += run.range.bytes;
    remapped_chunks_ += run.chunks.size();
  }
  return true;
}

bool Pool::Impl::Map(Attempt& attempt) {
  std::vector<ChunkPlacement> placements;
  Bytes offset = attempt.claim.map_offset;
  for (const Chunk& chunk : attempt.chunks) {
    placements.push_back({chunk.id, offset});
    offset += chunk.bytes;
  }
  const absl::Status status = source_->Map(placements);
  MutexLock lock(mutex_);
  if (!status.ok()) {
    blocks_.Abandon(attempt.claim);
    attempt.status = WithNumbers(status, attempt);
    return false;
  }
  for (std::size_t i = 0; i < placements.size(); ++i) {
    mapped_.emplace(placements[i].offset, attempt.chunks[i]);
  }
  pending_ -= RoundUp(attempt.bytes, Suballocator::kGranule);
  attempt.block = BlockOf(blocks_.Commit(attempt.claim));
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

std::vector<Pool::Impl::Run> Pool::Impl::IdleRuns() const {
  std::vector<Run> runs;
  for (const Suballocator::Range& range : blocks_.FreeRanges(granularity_)) {
    Run run;
    for (auto at = mapped_.lower_bound(range.offset);
         at != mapped_.end() && at->first + at->second.bytes <= range.end(); ++at) {
      if (run.chunks.empty()) {
        run.range.offset = at->first;
      }
      run.range.bytes += at->second.bytes;
      run.chunks.push_back(at->second);
    }
    if (!run.chunks.empty()) {
      runs.push_back(std::move(run));
    }
  }
  return runs;
}

// Takes idle chunks out of use, those at the highest addresses first, but none that overlaps `avoid`:
// kAtLeast takes `amount` or more, or nothing; kAtMost as much as there is up to `amount`.
std::vector<Pool::Impl::Run> Pool::Impl::DetachIdle(Bytes amount, Bound bound, Suballocator::Range avoid) {
  std::vector<Run> idle = IdleRuns();
  std::sort(idle.begin(), idle.end(),
            [](const Run& a, const Run& b) { return a.range.offset > b.range.offset; });
  std::vector<Run> taken;
  Bytes sum;
  for (const Run& run : idle) {
    Bytes offset = run.range.end();
    bool continues = false;
    for (auto chunk = run.chunks.rbegin(); chunk != run.chunks.rend() && sum < amount; ++chunk) {
      offset -= chunk->bytes;
      if (Overlap({offset, chunk->bytes}, avoid) ||
          (bound == Bound::kAtMost && chunk->bytes > amount - sum)) {
        continues = false;
        continue;
      }
      if (!continues) {
        taken.push_back({.range = {offset + chunk->bytes, Bytes()}});
        continues = true;
      }
      taken.back().range.offset = offset;
      taken.back().range.bytes += chunk->bytes;
      taken.back().chunks.push_back(*chunk);
      sum += chunk->bytes;
    }
  }
  if (bound == Bound::kAtLeast && sum < amount) {
    return {};
  }
  for (Run& run : taken) {
    run.detached = blocks_.Detach(run.range);
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
