// What an attempt does without the pool's lock: calls of the source. And chunks that are taken out of use.

#include <algorithm>
#include <utility>

#include "allocator/pool/pool_impl.h"
#include "lgpu/status.h"

namespace lgpu {
namespace {

bool Overlap(Suballocator::Range a, Suballocator::Range b) {
  return a.offset < b.end() && b.offset < a.end();
}

}  // namespace

std::vector<ChunkId> IdsOf(const std::vector<Chunk>& chunks) {
  std::vector<ChunkId> ids;
  ids.reserve(chunks.size());
  for (const Chunk& chunk : chunks) {
    ids.push_back(chunk.id);
  }
  return ids;
}

bool Pool::Impl::Grow(Attempt& attempt) {
  const auto left = attempt.deadline - std::chrono::steady_clock::now();
  attempt.request.timeout = std::max(std::chrono::nanoseconds(0), std::chrono::nanoseconds(left));
  int patient = 0;
  {
    MutexLock lock(mutex_);
    // Nobody waits for others' memory while his own lies idle.
    const bool spare_only = attempt.options.spare_only;
    attempt.hasty =
        !spare_only && !attempt.patient && blocks_.idle(SettledStamp()) >= attempt.request.at_least;
    attempt.request.ahead = attempt.hasty || spare_only;
    if (attempt.request.ahead) {
      attempt.request.timeout = {};
    }
    patient = attempt.request.timeout.count() > 0 ? 1 : 0;
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
  grew_ = true;
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
    attempt.larger_came = true;
    attempt.coarse = attempt.coarse || attempt.exact;
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
  attempt.coarse = false;
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
  const Suballocator::Handle block = blocks_.Commit(attempt.claim, places);
  attempt.freed_at = blocks_.freed_at();
  attempt.index = HandOut(block, attempt.bytes, attempt.options);
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
