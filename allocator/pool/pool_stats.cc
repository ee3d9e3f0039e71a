// What a pool says of itself in numbers, and whether they agree.

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "allocator/pool/pool_impl.h"
#include "lgpu/status.h"

namespace lgpu {

Bytes Pool::Impl::Used() const {
  const std::int64_t cached = std::max<std::int64_t>(cache_.bytes(), 0);
  return SaturatingSub(blocks_.used() - scratch_,
                       Bytes(static_cast<std::uint64_t>(cached) + fenced_.load(std::memory_order_relaxed)));
}

std::uint64_t Pool::Impl::LiveBlocks() const {
  const std::int64_t live =
      static_cast<std::int64_t>(blocks_.live_blocks() - fenced_blocks_ - scratch_blocks_.size()) -
      cache_.totals().blocks;
  return static_cast<std::uint64_t>(std::max<std::int64_t>(live, 0));
}

MemoryStats Pool::Impl::stats() const {
  MemoryStats stats;
  if (epoch_.IsForked()) {
    return stats;
  }
  stats.limit = source_->limit();
  MutexLock lock(mutex_);
  const FrontCache::Totals cached = cache_.totals();
  stats.used = Used();
  stats.cached = Bytes(static_cast<std::uint64_t>(std::max<std::int64_t>(cached.bytes, 0)));
  stats.fenced = Bytes(fenced_.load(std::memory_order_relaxed));
  const std::int64_t padding = std::max<std::int64_t>(
      padding_ - static_cast<std::int64_t>(scratch_padding_.count()) + cached.padding, 0);
  stats.requested = SaturatingSub(stats.used, Bytes(static_cast<std::uint64_t>(padding)));
  stats.peak_used = std::max(Bytes(peak_used_.load(std::memory_order_relaxed)), stats.used);
  stats.held = held_;
  stats.workspace = scratch_;
  for (const Chunk& chunk : spare_) {
    stats.idle += chunk.bytes;
  }
  stats.idle += blocks_.idle(Suballocator::kYoungest);
  stats.largest_free_block = blocks_.largest_free();
  stats.live_blocks = LiveBlocks();
  stats.num_allocs = num_allocs_ + cached.hits;
  stats.num_refusals = num_refusals_;
  stats.cache_hits = cached.hits;
  stats.cache_flushes = cache_flushes_;
  stats.source_round_trips = source_round_trips_;
  stats.source_round_trips_ahead = source_round_trips_ahead_;
  stats.remapped_chunks = remapped_chunks_;
  stats.fences_recorded = fences_recorded_;
  stats.fence_waits = fence_waits_;
  stats.last_refusal = last_refusal_;
  return stats;
}

Bytes Pool::Impl::limit() const { return epoch_.IsForked() ? Bytes() : source_->limit(); }

void Pool::Impl::ResetPeak() {
  if (epoch_.IsForked()) {
    return;
  }
  MutexLock lock(mutex_);
  peak_used_.store(Used().count(), std::memory_order_relaxed);
  peak_owned_ = 0;
}

// Whether a block is there at all, or fenced, changes under the lock only.
absl::Status Pool::Impl::CheckEntries() const {
  std::uint64_t blocks = 0;
  std::uint64_t fenced_blocks = 0;
  Bytes bytes;
  Bytes fenced;
  std::vector<EntryCopy> entries;
  CopyEntries(entries);
  for (const EntryCopy& entry : entries) {
    const Bytes size = Suballocator::kGranule * entry.size;
    ++blocks;
    bytes += size;
    if (entry.state == Node::kFenced) {
      ++fenced_blocks;
      fenced += size;
    }
  }
  if (blocks != blocks_.live_blocks() || bytes != blocks_.used() || bytes.count() != charged_) {
    return absl::InternalError(absl::StrCat("pool: ", blocks, " entries of ", bytes.count(), " bytes for ",
                                            blocks_.live_blocks(), " blocks of ", blocks_.used().count()));
  }
  if (fenced_blocks != fenced_blocks_ || fenced.count() != fenced_) {
    return absl::InternalError(
        absl::StrCat("pool: ", fenced_blocks, " blocks are fenced, ", fenced_blocks_, " are counted"));
  }
  Bytes scratch;
  for (const std::uint32_t index : scratch_blocks_) {
    scratch += Suballocator::kGranule * nodes_[index].size;
  }
  if (scratch != scratch_) {
    return absl::InternalError(absl::StrCat("pool: blocks of scratch memory have ", scratch.count(),
                                            " bytes, ", scratch_.count(), " are counted"));
  }
  if (by_address_.is_on() && by_address_.size() != blocks) {
    return absl::InternalError(
        absl::StrCat("pool: ", by_address_.size(), " addresses for ", blocks, " blocks"));
  }
  return absl::OkStatus();
}

absl::Status Pool::Impl::CheckInvariants() const {
  LGPU_RETURN_IF_ERROR(CheckAlive());
  MutexLock lock(mutex_);
  LGPU_RETURN_IF_ERROR(blocks_.CheckInvariants());
  LGPU_RETURN_IF_ERROR(CheckEntries());
  Bytes chunk_bytes;
  Bytes mapped_bytes;
  Bytes reached;
  for (const auto& [offset, chunk] : mapped_) {
    if (offset < reached || RoundDown(offset, granularity_) != offset) {
      return absl::InternalError(
          absl::StrCat("pool: the chunk at ", offset.count(), " overlaps another one"));
    }
    reached = offset + chunk.bytes;
    mapped_bytes += chunk.bytes;
  }
  chunk_bytes = mapped_bytes;
  for (const Chunk& chunk : spare_) {
    chunk_bytes += chunk.bytes;
  }
  if (chunk_bytes > held_ || (calls_ == 0 && chunk_bytes != held_)) {
    return absl::InternalError(
        absl::StrCat("pool: chunks have ", chunk_bytes.count(), " bytes, held says ", held_.count()));
  }
  if (calls_ == 0 && !pending_.is_zero()) {
    return absl::InternalError(absl::StrCat("pool: ", pending_.count(), " bytes are pending for nobody"));
  }
  if (calls_ == 0 && blocks_.used() + blocks_.free() != mapped_bytes) {
    return absl::InternalError(absl::StrCat("pool: used ", blocks_.used().count(), " and free ",
                                            blocks_.free().count(), " are not the mapped ",
                                            mapped_bytes.count()));
  }
  return absl::OkStatus();
}

}  // namespace lgpu
