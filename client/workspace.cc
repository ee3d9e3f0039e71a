#include "client/workspace.h"

#include <algorithm>
#include <utility>

#include "allocator/check.h"

namespace lgpu::internal {

namespace {

constexpr std::uint64_t kMost = std::uint64_t{32} << 20;
constexpr std::uint64_t kShare = 8;  // of the limit
constexpr std::uint64_t kUnit = 4096;

Bytes Less(Bytes from, std::uint64_t bytes) { return Bytes(from.count() - std::min(from.count(), bytes)); }

}  // namespace

Workspace::Held::~Held() {
  // The peak with the workspace in it is not what programs see; it ends here.
  const std::uint64_t bytes = block.bytes.count();
  self.RaisePeak(Less(self.pool_.stats().peak_used, self.held_.load(std::memory_order_relaxed)).count());
  const absl::Status freed = self.pool_.Free(block);
  LGPU_CHECK(freed.ok());
  self.pool_.ResetPeak();
  self.held_.fetch_sub(bytes, std::memory_order_relaxed);
}

Bytes Workspace::Size() const {
  const std::uint64_t share = pool_.stats().limit.count() / kShare;
  return Bytes(std::min(share / kUnit * kUnit, kMost));
}

std::shared_ptr<std::byte> Workspace::Take() {
  const Bytes size = Size();
  {
    const MutexLock fast_lock(mutex_);
    if (current_ != nullptr && current_->block.bytes >= size) {
      return {current_, current_->block.address};
    }
    if (pause_ > 0 || size.is_zero()) {
      pause_ = std::max(pause_ - 1, 0);
      return nullptr;
    }
  }
  std::shared_ptr<Held> taken = Allocate(size);
  std::shared_ptr<Held> last;  // too small since the limit rose, or another thread's
  const MutexLock lock(mutex_);
  if (taken == nullptr) {
    pause_ = kPause;
    return nullptr;
  }
  last = std::exchange(current_, taken);
  return {taken, taken->block.address};
}

std::shared_ptr<Workspace::Held> Workspace::Allocate(Bytes size) {
  const MemoryStats stats = pool_.stats();
  if (stats.limit < stats.used + size) return nullptr;
  const absl::StatusOr<Block> block = pool_.Allocate(size, {.op = kOwner});
  if (!block.ok()) return nullptr;
  RaisePeak(stats.peak_used.count() -
            std::min(stats.peak_used.count(), held_.load(std::memory_order_relaxed)));
  pool_.ResetPeak();
  held_.fetch_add(block->bytes.count(), std::memory_order_relaxed);
  taken_.fetch_add(1, std::memory_order_relaxed);
  return std::make_shared<Held>(*this, *block);
}

void Workspace::RaisePeak(std::uint64_t peak) {
  std::uint64_t known = peak_without_.load(std::memory_order_relaxed);
  while (known < peak && !peak_without_.compare_exchange_weak(known, peak, std::memory_order_relaxed)) {
  }
}

Bytes Workspace::GiveUp() {
  std::shared_ptr<Held> last;
  {
    const MutexLock lock(mutex_);
    last = std::exchange(current_, nullptr);
    if (last != nullptr) pause_ = kPause;
  }
  return last == nullptr ? Bytes() : last->block.bytes;
}

MemoryStats Workspace::StatsWithout() const {
  MemoryStats stats = pool_.stats();
  const std::uint64_t bytes = held_.load(std::memory_order_relaxed);
  const std::uint64_t times = taken_.load(std::memory_order_relaxed);
  stats.used = Less(stats.used, bytes);
  stats.requested = Less(stats.requested, bytes);
  stats.peak_used = std::max(
      {Less(stats.peak_used, bytes), stats.used, Bytes(peak_without_.load(std::memory_order_relaxed))});
  stats.num_allocs -= std::min(stats.num_allocs, times);
  stats.workspace = Bytes(bytes);
  if (bytes != 0) stats.live_blocks -= std::min<std::uint64_t>(stats.live_blocks, 1);
  return stats;
}

void Workspace::ResetPeak() {
  pool_.ResetPeak();
  peak_without_.store(0, std::memory_order_relaxed);
}

}  // namespace lgpu::internal
