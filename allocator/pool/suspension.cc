#include "allocator/pool/suspension.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "lgpu/refusal.h"
#include "lgpu/status.h"

namespace lgpu {
namespace {

// Sources grant requests of so few pages as chunks of one page, which fit everywhere.
constexpr std::uint64_t kPagesAtATime = 15;

bool IsLarger(const Chunk& a, const Chunk& b) { return a.bytes > b.bytes; }

/// The runs of neighbouring chunks of more than one page.
std::vector<Suballocator::Range> LargeRunsOf(const std::map<Bytes, Chunk>& places, Bytes page) {
  std::vector<Suballocator::Range> runs;
  for (const auto& [offset, chunk] : places) {
    if (chunk.bytes == page) continue;
    if (!runs.empty() && runs.back().end() == offset) {
      runs.back().bytes += chunk.bytes;
    } else {
      runs.push_back({offset, chunk.bytes});
    }
  }
  return runs;
}

}  // namespace

absl::Status Suspension::Suspend() {
  LGPU_RETURN_IF_ERROR(state_.CheckAlive());
  std::vector<Chunk> mapped;
  {
    MutexLock lock(state_.mutex);
    if (state_.chunks.is_suspended()) return absl::FailedPreconditionError("the pool is suspended");
    state_.FlushCaches();
    for (const auto& [offset, chunk] : state_.chunks.mapped()) mapped.push_back(chunk);
  }
  if (!mapped.empty()) LGPU_RETURN_IF_ERROR(state_.source->Unmap(IdsOf(mapped)));
  std::vector<Chunk> all;
  {
    MutexLock lock(state_.mutex);
    all = state_.chunks.TakeForSuspension();
  }
  // They are the pool's no more, also where the other side is away.
  state_.Return(all).IgnoreError();
  return absl::OkStatus();
}

bool Suspension::is_suspended() const {
  MutexLock lock(state_.mutex);
  return state_.chunks.is_suspended();
}

absl::Status Suspension::Resume(std::chrono::nanoseconds timeout) {
  LGPU_RETURN_IF_ERROR(state_.CheckAlive());
  if (!is_suspended()) return absl::FailedPreconditionError("the pool is not suspended");
  const Places places = DropIdlePlaces();
  LGPU_ASSIGN_OR_RETURN(const Places filled, Fill(places, PoolState::DeadlineAfter(timeout)));
  if (absl::Status mapped = Map(filled); !mapped.ok()) {
    ReturnAll(filled);
    return mapped;
  }
  MutexLock lock(state_.mutex);
  for (const Suballocator::Range& run : LargeRunsOf(places, state_.page)) {
    std::vector<Suballocator::Range> chunks;
    for (auto at = filled.lower_bound(run.offset); at != filled.end() && at->first < run.end(); ++at) {
      chunks.push_back({at->first, at->second.bytes});
    }
    state_.blocks.ReplaceChunks(run, chunks);
  }
  state_.chunks.EndSuspension(filled);
  state_.NoteChange();
  return absl::OkStatus();
}

// Blocks that were freed meanwhile need no memory.
Suspension::Places Suspension::DropIdlePlaces() {
  MutexLock lock(state_.mutex);
  state_.FlushCaches();
  const auto runs = state_.chunks.DetachIdle(
      state_.blocks, {.amount = Bytes(~std::uint64_t{0}), .bound = ChunkStore::Bound::kAtMost});
  for (const ChunkStore::Run& run : runs) {
    state_.blocks.CommitUnmapped(run.detached);
    state_.chunks.NoteUnmapped(run.range);
  }
  return state_.chunks.mapped();
}

absl::StatusOr<Suspension::Places> Suspension::Fill(const Places& places,
                                                    PoolState::Clock::time_point deadline) {
  Places filled;
  std::vector<Bytes> pages;
  Bytes needed;
  for (const auto& [offset, chunk] : places) {
    needed += chunk.bytes;
    if (chunk.bytes == state_.page) pages.push_back(offset);
  }
  absl::Status status = FillLarge(LargeRunsOf(places, state_.page), deadline, filled, pages);
  if (status.ok()) status = FillPages(pages, deadline, filled);
  if (status.ok()) return filled;
  ReturnAll(filled);
  return WithNumbers(status, needed);
}

// What no chunk fits in is left to `pages`, and the chunks that fit nowhere go back before.
absl::Status Suspension::FillLarge(std::vector<Suballocator::Range> holes,
                                   PoolState::Clock::time_point deadline, Places& filled,
                                   std::vector<Bytes>& pages) {
  Bytes sum;
  for (const Suballocator::Range& hole : holes) sum += hole.bytes;
  if (sum.is_zero()) return absl::OkStatus();
  LGPU_ASSIGN_OR_RETURN(std::vector<Chunk> chunks, Grow(sum, deadline));
  std::sort(chunks.begin(), chunks.end(), IsLarger);
  std::vector<Chunk> misfits;
  for (const Chunk& chunk : chunks) {
    const auto hole = std::find_if(holes.begin(), holes.end(), [&](const Suballocator::Range& range) {
      return range.bytes >= chunk.bytes;
    });
    if (hole == holes.end()) {
      misfits.push_back(chunk);
      continue;
    }
    filled.emplace(hole->offset, chunk);
    *hole = {hole->offset + chunk.bytes, hole->bytes - chunk.bytes};
  }
  if (!misfits.empty()) state_.source->Return(IdsOf(misfits)).IgnoreError();
  for (const Suballocator::Range& hole : holes) {
    for (Bytes at = hole.offset; at < hole.end(); at += state_.page) pages.push_back(at);
  }
  return absl::OkStatus();
}

// A source that answers with larger chunks is asked for one page at a time.
absl::Status Suspension::FillPages(const std::vector<Bytes>& pages, PoolState::Clock::time_point deadline,
                                   Places& filled) {
  std::uint64_t at_a_time = kPagesAtATime;
  for (std::size_t next = 0; next < pages.size();) {
    const std::uint64_t count = std::min<std::uint64_t>(at_a_time, pages.size() - next);
    LGPU_ASSIGN_OR_RETURN(const std::vector<Chunk> chunks, Grow(state_.page * count, deadline));
    const bool fits = chunks.size() == count;
    if (!fits) state_.source->Return(IdsOf(chunks)).IgnoreError();
    if (!fits && count == 1) {
      return absl::InternalError("the source of chunks gives other chunks than those it is asked for");
    }
    if (!fits) at_a_time = 1;
    for (std::size_t i = 0; fits && i < chunks.size(); ++i) filled.emplace(pages[next++], chunks[i]);
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<Chunk>> Suspension::Grow(Bytes bytes, PoolState::Clock::time_point deadline) {
  const std::chrono::nanoseconds left = deadline - PoolState::Clock::now();
  return state_.source->Grow(
      {.at_least = bytes, .wanted = bytes, .timeout = std::max(std::chrono::nanoseconds(0), left)});
}

absl::Status Suspension::Map(const Places& filled) {
  if (filled.empty()) return absl::OkStatus();
  std::vector<ChunkPlacement> placements;
  for (const auto& [offset, chunk] : filled) placements.push_back({chunk.id, offset});
  return state_.source->Map(placements);
}

void Suspension::ReturnAll(const Places& filled) {
  std::vector<ChunkId> ids;
  for (const auto& [offset, chunk] : filled) ids.push_back(chunk.id);
  // An error means that the other side is gone, and has them back.
  if (!ids.empty()) state_.source->Return(ids).IgnoreError();
}

// A refusal speaks of all memory that is needed, of which it refuses a part.
absl::Status Suspension::WithNumbers(const absl::Status& status, Bytes needed) const {
  std::optional<Refusal> refusal = GetRefusal(status);
  if (!refusal) return status;
  const Bytes limit = state_.source->limit();
  MutexLock lock(state_.mutex);
  const Refusal own = state_.MakeRefusal(refusal->reason, needed, {}, limit);
  refusal->device = own.device;
  if (refusal->lease.empty()) refusal->lease = own.lease;
  refusal->what = "contents of suspended tensors";
  refusal->asked = needed;
  refusal->limit = limit;
  refusal->used = own.used;
  refusal->live_blocks = own.live_blocks;
  return RefusalStatus(*refusal);
}

}  // namespace lgpu
