#include "lgpu/pool.h"

#include <algorithm>
#include <bit>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "allocator/pool_impl.h"
#include "lgpu/status.h"

namespace lgpu {
namespace {

std::chrono::steady_clock::time_point DeadlineAfter(std::chrono::nanoseconds timeout) {
  constexpr std::chrono::hours kLongest{24};  // one far beyond this would overflow the clock
  return std::chrono::steady_clock::now() + std::clamp<std::chrono::nanoseconds>(timeout, {}, kLongest);
}

}  // namespace

Pool::Pool(std::unique_ptr<RegionSource> source, PoolOptions options)
    : impl_(std::make_unique<Impl>(std::move(source), std::move(options))) {}
Pool::~Pool() = default;

absl::StatusOr<Block> Pool::Allocate(Bytes bytes, const AllocateOptions& options) {
  return impl_->Allocate(bytes, options);
}
absl::Status Pool::Free(const Block& block) { return impl_->Free(block); }
absl::StatusOr<Bytes> Pool::Trim(Bytes at_most) { return impl_->Trim(at_most); }
MemoryStats Pool::stats() const { return impl_->stats(); }
void Pool::ResetPeak() { impl_->ResetPeak(); }
absl::Status Pool::CheckInvariants() const { return impl_->CheckInvariants(); }

Pool::Impl::Impl(std::unique_ptr<RegionSource> source, PoolOptions options)
    : source_(std::move(source)),
      options_(std::move(options)),
      base_(source_->base()),
      reserved_(RoundDown(std::min(source_->reserved(), Suballocator::kMaxReserved), source_->granularity())),
      granularity_(source_->granularity()),
      blocks_(reserved_, granularity_) {}

absl::Status Pool::Impl::CheckAlive() const {
  if (epoch_.IsForked()) {
    return absl::FailedPreconditionError(
        "this process is a forked child: device memory does not work across fork; exec a program, or open a "
        "context in the child only");
  }
  return absl::OkStatus();
}

absl::Status Pool::Impl::CheckRequest(Bytes bytes, const AllocateOptions& options) const {
  LGPU_RETURN_IF_ERROR(CheckAlive());
  if (bytes.is_zero()) {
    return absl::InvalidArgumentError("a block of 0 bytes was asked for; ask for one byte at least");
  }
  if (!std::has_single_bit(options.alignment.count()) || options.alignment > granularity_) {
    return absl::InvalidArgumentError(absl::StrCat("an alignment of ", options.alignment.count(),
                                                   " bytes was asked for; it has to be a power of two, at "
                                                   "most ",
                                                   FormatBytes(granularity_)));
  }
  return absl::OkStatus();
}

Block Pool::Impl::BlockOf(Suballocator::Handle handle) {
  const Suballocator::Range range = blocks_.range(handle);
  ++num_allocs_;
  peak_used_ = std::max(peak_used_, blocks_.used());
  return {base_ + range.offset.count(), range.bytes, handle};
}

bool Pool::Impl::Fits(Bytes rounded, Bytes limit) const {
  return SaturatingAdd(blocks_.used() + pending_, rounded) <= limit;
}

// What others are about to use may not come to be.
void Pool::Impl::WaitForPending(Bytes rounded, Bytes limit, std::chrono::nanoseconds timeout) {
  const auto deadline = DeadlineAfter(timeout);
  ++calls_;
  ++waiting_;
  while (!Fits(rounded, limit) && SaturatingAdd(blocks_.used(), rounded) <= limit &&
         changed_.WaitUntil(mutex_, deadline)) {
  }
  --waiting_;
  --calls_;
}

absl::StatusOr<Block> Pool::Impl::Allocate(Bytes bytes, const AllocateOptions& options) {
  LGPU_RETURN_IF_ERROR(CheckRequest(bytes, options));
  const Bytes limit = source_->limit();
  const Bytes rounded = RoundUp(bytes, Suballocator::kGranule);
  Refusal refusal;
  {
    MutexLock lock(mutex_);
    if (!Fits(rounded, limit)) {
      WaitForPending(rounded, limit, options.timeout);
    }
    if (Fits(rounded, limit) && rounded <= reserved_) {
      const auto handle =
          blocks_.Allocate({.bytes = bytes, .alignment = options.alignment}, Suballocator::Effort::kQuick);
      if (handle) {
        return BlockOf(*handle);
      }
      pending_ += rounded;
      ++calls_;
    } else {
      const Attempt attempt{.bytes = bytes, .options = options, .limit = limit};
      refusal =
          MakeRefusal(rounded <= reserved_ ? RefusalReason::kLimit : RefusalReason::kAddressRange, attempt);
      ++num_refusals_;
      last_refusal_ = refusal.reason;
    }
  }
  if (refusal.reason != RefusalReason::kUnspecified) {
    return RefusalStatus(refusal);
  }
  Attempt attempt{
      .bytes = bytes, .options = options, .deadline = DeadlineAfter(options.timeout), .limit = limit};
  absl::StatusOr<Block> block = AllocateSlowly(attempt);
  MutexLock lock(mutex_);
  --calls_;
  NoteChange();
  if (absl::IsResourceExhausted(block.status())) {
    ++num_refusals_;
    const std::optional<Refusal> known = GetRefusal(block.status());
    last_refusal_ = known ? known->reason : RefusalReason::kUnspecified;
  }
  return block;
}

absl::Status Pool::Impl::Free(const Block& block) {
  LGPU_RETURN_IF_ERROR(CheckAlive());
  {
    MutexLock lock(mutex_);
    if (blocks_.IsLive(block.node)) {
      const Suballocator::Range range = blocks_.range(block.node);
      if (block.address == base_ + range.offset.count() && block.bytes == range.bytes) {
        blocks_.Free(block.node, ++stamp_);
        return absl::OkStatus();
      }
    }
  }
  return absl::InvalidArgumentError(
      absl::StrCat("the block of ", block.bytes.count(), " bytes at ",
                   absl::Hex(reinterpret_cast<std::uintptr_t>(block.address)),
                   " is not a live block of this pool: it was freed before, or belongs to another pool"));
}

absl::StatusOr<Bytes> Pool::Impl::Trim(Bytes at_most) {
  LGPU_RETURN_IF_ERROR(CheckAlive());
  std::vector<Chunk> chunks;
  std::vector<Run> runs;
  Bytes taken;
  {
    MutexLock lock(mutex_);
    ++calls_;
    for (std::size_t i = spare_.size(); i-- > 0;) {
      if (spare_[i].bytes <= at_most - taken) {
        taken += spare_[i].bytes;
        chunks.push_back(spare_[i]);
        spare_.erase(spare_.begin() + static_cast<std::ptrdiff_t>(i));
      }
    }
    runs = DetachIdle({.amount = at_most - taken, .bound = Bound::kAtMost});
  }
  absl::Status status = UnmapRuns(runs);
  if (status.ok()) {
    for (const Run& run : runs) {
      chunks.insert(chunks.end(), run.chunks.begin(), run.chunks.end());
      taken += run.range.bytes;
    }
  }
  // Spare chunks go whatever became of the others.
  status.Update(ReturnChunks(chunks));
  MutexLock lock(mutex_);
  --calls_;
  NoteChange();
  if (!status.ok()) {
    return status;
  }
  return taken;
}

MemoryStats Pool::Impl::stats() const {
  MemoryStats stats;
  if (epoch_.IsForked()) {
    return stats;
  }
  stats.limit = source_->limit();
  MutexLock lock(mutex_);
  stats.requested = blocks_.requested();
  stats.used = blocks_.used();
  stats.peak_used = peak_used_;
  stats.held = held_;
  for (const Chunk& chunk : spare_) {
    stats.idle += chunk.bytes;
  }
  stats.idle += blocks_.idle(Suballocator::kYoungest);
  stats.largest_free_block = blocks_.largest_free();
  stats.live_blocks = blocks_.live_blocks();
  stats.num_allocs = num_allocs_;
  stats.num_refusals = num_refusals_;
  stats.source_round_trips = source_round_trips_;
  stats.remapped_chunks = remapped_chunks_;
  stats.last_refusal = last_refusal_;
  return stats;
}

void Pool::Impl::ResetPeak() {
  if (epoch_.IsForked()) {
    return;
  }
  MutexLock lock(mutex_);
  peak_used_ = blocks_.used();
}

absl::Status Pool::Impl::CheckInvariants() const {
  LGPU_RETURN_IF_ERROR(CheckAlive());
  MutexLock lock(mutex_);
  LGPU_RETURN_IF_ERROR(blocks_.CheckInvariants());
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
