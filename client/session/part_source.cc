#include "client/session/part_source.h"

#include <algorithm>
#include <utility>

#include "lgpu/refusal.h"
#include "lgpu/status.h"

namespace lgpu {

Bytes PartLimit::Of(Bytes whole) const {
  MutexLock lock(mutex_);
  return limit_ ? std::min(*limit_, whole) : whole;
}

Bytes PartLimit::held() const {
  MutexLock lock(mutex_);
  return held_;
}

Bytes PartLimit::Take(Bytes at_least, Bytes wanted, Bytes whole, Bytes page) {
  MutexLock lock(mutex_);
  const Bytes limit = RoundUp(limit_ ? std::min(*limit_, whole) : whole, page);
  const Bytes room = SaturatingSub(limit, held_);
  if (at_least > room) return Bytes();
  const Bytes taken = std::clamp(wanted, at_least, room);
  held_ += taken;
  return taken;
}

void PartLimit::Settle(Bytes taken, Bytes granted) {
  MutexLock lock(mutex_);
  held_ = held_ - taken + granted;
}

absl::Status PartLimit::Set(std::optional<Bytes> limit) {
  MutexLock lock(mutex_);
  if (limit && *limit < held_) {
    return absl::FailedPreconditionError("a memory_limit of " + FormatBytes(*limit) +
                                         " is less than the GPU holds, " + FormatBytes(held_) +
                                         "\n  try: free tensors, and Trim, before the limit is lowered");
  }
  limit_ = limit;
  return absl::OkStatus();
}

// No other call runs. Errors mean that the whole can do nothing any more: its end gives everything back.
PartSource::~PartSource() {
  std::vector<ChunkId> mapped;
  std::vector<ChunkId> all;
  MutexLock lock(mutex_);
  for (const auto& [id, entry] : chunks_) {
    all.push_back(id);
    if (entry.is_mapped) mapped.push_back(id);
  }
  for (const Chunk& chunk : spare_) all.push_back(chunk.id);
  if (!mapped.empty()) whole_->Unmap(mapped).IgnoreError();
  if (!all.empty()) whole_->Return(all).IgnoreError();
}

absl::Status PartSource::OverLimit(Bytes asked) const {
  return RefusalStatus({.reason = RefusalReason::kLimit,
                        .device = options_.device,
                        .lease = options_.lease,
                        .asked = asked,
                        .limit = limit(),
                        .held = options_.limit->held(),
                        .advice = {"give the device a higher memory_limit than " + FormatBytes(limit()) +
                                   ", or free tensors in its programs"}});
}

void PartSource::Keep(std::span<const Chunk> chunks) {
  for (const Chunk& chunk : chunks) chunks_[chunk.id] = {.bytes = chunk.bytes};
}

std::vector<Chunk> PartSource::TakeSpare(Bytes bytes) {
  std::size_t count = 0;
  for (Bytes sum; sum < bytes; sum += spare_[spare_.size() - ++count].bytes) {
    if (count == spare_.size()) return {};
  }
  const std::vector<Chunk> taken(spare_.end() - static_cast<std::ptrdiff_t>(count), spare_.end());
  spare_.resize(spare_.size() - count);
  return taken;
}

absl::StatusOr<std::vector<Chunk>> PartSource::Grow(const GrowRequest& request) {
  // Taken before the whole is asked, so that another thread's request does not take the same room.
  GrowRequest asked = request;
  asked.wanted = options_.limit->Take(request.at_least, RoundDown(request.wanted, granularity()),
                                      whole_->limit(), granularity());
  if (asked.wanted.is_zero()) return OverLimit(request.at_least);
  absl::StatusOr<std::vector<Chunk>> granted = std::vector<Chunk>();
  bool is_spare = false;
  {
    MutexLock lock(mutex_);
    is_spare = sets_aside_;
    if (is_spare) granted = TakeSpare(request.at_least);
  }
  if (!is_spare) granted = whole_->Grow(asked);
  Bytes sum;
  if (granted.ok()) {
    MutexLock lock(mutex_);
    Keep(*granted);
    for (const Chunk& chunk : *granted) sum += chunk.bytes;
  }
  options_.limit->Settle(asked.wanted, sum);
  if (is_spare && sum.is_zero()) return OverLimit(request.at_least);
  return granted;
}

absl::Status PartSource::Map(std::span<const ChunkPlacement> placements) {
  std::vector<ChunkPlacement> moved(placements.begin(), placements.end());
  for (ChunkPlacement& place : moved) {
    MutexLock lock(mutex_);
    const auto found = chunks_.find(place.id);
    if (found == chunks_.end()) {
      return absl::NotFoundError("chunk " + std::to_string(place.id.value) + " is none of this part's");
    }
    if (place.offset > options_.reserved || found->second.bytes > options_.reserved - place.offset) {
      return absl::OutOfRangeError("the place of chunk " + std::to_string(place.id.value) +
                                   " is outside of the part's addresses");
    }
    place.offset += options_.offset;
  }
  LGPU_RETURN_IF_ERROR(whole_->Map(moved));
  MutexLock lock(mutex_);
  for (const ChunkPlacement& place : moved) chunks_[place.id].is_mapped = true;
  return absl::OkStatus();
}

absl::Status PartSource::Unmap(std::span<const ChunkId> chunks) {
  LGPU_RETURN_IF_ERROR(whole_->Unmap(chunks));
  MutexLock lock(mutex_);
  for (const ChunkId chunk : chunks) chunks_[chunk].is_mapped = false;
  return absl::OkStatus();
}

absl::Status PartSource::Return(std::span<const ChunkId> chunks) {
  {
    MutexLock lock(mutex_);
    for (const ChunkId chunk : chunks) {
      const auto found = chunks_.find(chunk);
      if (found == chunks_.end()) {
        return absl::NotFoundError("chunk " + std::to_string(chunk.value) + " is none of this part's");
      }
      if (found->second.is_mapped) {
        return absl::FailedPreconditionError("chunk " + std::to_string(chunk.value) + " is mapped");
      }
    }
    if (sets_aside_) {
      for (const ChunkId chunk : chunks) {
        const Bytes bytes = chunks_.extract(chunk).mapped().bytes;
        options_.limit->Settle(bytes, Bytes());
        spare_.push_back({chunk, bytes});
      }
      return absl::OkStatus();
    }
  }
  const absl::Status returned = whole_->Return(chunks);
  // They are the pool's still where the whole says that nothing has changed.
  if (absl::IsNotFound(returned) || absl::IsFailedPrecondition(returned)) return returned;
  MutexLock lock(mutex_);
  for (const ChunkId chunk : chunks) options_.limit->Settle(chunks_.extract(chunk).mapped().bytes, Bytes());
  return returned;
}

absl::Status PartSource::SetAside(std::chrono::nanoseconds timeout) {
  const Bytes all = RoundUp(limit(), granularity());
  if (all.is_zero()) return absl::OkStatus();
  LGPU_ASSIGN_OR_RETURN(std::vector<Chunk> granted,
                        whole_->Grow({.at_least = all, .wanted = all, .timeout = timeout}));
  MutexLock lock(mutex_);
  spare_ = std::move(granted);
  sets_aside_ = true;
  return absl::OkStatus();
}

}  // namespace lgpu
