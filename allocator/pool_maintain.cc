// What may take its time: trimming, growing ahead of demand, decay.

#include <algorithm>
#include <utility>

#include "allocator/pool_impl.h"
#include "lgpu/status.h"

namespace lgpu {

absl::StatusOr<Bytes> Pool::Impl::Trim(Bytes at_most) {
  LGPU_RETURN_IF_ERROR(CheckAlive());
  {
    MutexLock lock(mutex_);
    FlushCaches();
  }
  LGPU_RETURN_IF_ERROR(PollFences());
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
    runs = DetachIdle({.amount = at_most - taken, .bound = Bound::kAtMost, .settled = SettledStamp()});
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

std::optional<std::chrono::steady_clock::time_point> Pool::Impl::Maintain(
    std::chrono::steady_clock::time_point now) {
  if (epoch_.IsForked()) {
    return std::nullopt;
  }
  PollFences().IgnoreError();
  return now + std::chrono::seconds(1);
}

}  // namespace lgpu
