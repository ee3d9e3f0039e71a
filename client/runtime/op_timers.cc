#include "client/runtime/op_timers.h"

#include <utility>

namespace lgpu::internal {
namespace {

// A stream that is further behind than this many measured ops is not measured any more.
constexpr std::size_t kMostKept = 1024;

}  // namespace

std::unique_ptr<StreamTimer> OpTimers::Start() {
  // Not the first op of a program: it would be charged with the loading of its code.
  if (every_ == 0 || (ops_.fetch_add(1, std::memory_order_relaxed) + 1) % every_ != 0) return nullptr;
  absl::StatusOr<std::unique_ptr<StreamTimer>> timer = backend_.StartTimer(stream_);
  return timer.ok() ? *std::move(timer) : nullptr;
}

std::optional<OpTimers::Kept> OpTimers::Keep(std::unique_ptr<StreamTimer> timer,
                                             const PlacementEntry& record) {
  if (!timer->Stop().ok()) return std::nullopt;
  const MutexLock lock(mutex_);
  if (kept_.size() >= kMostKept) return std::nullopt;
  kept_.push_back({std::move(timer), record});
  is_busy_ = true;
  return std::exchange(is_watched_, true) ? Kept::kWatched : Kept::kUnwatched;
}

std::vector<PlacementEntry> OpTimers::Take(Which which) {
  std::deque<Measured> measured;
  {
    const MutexLock lock(mutex_);
    measured.swap(kept_);
  }
  std::vector<PlacementEntry> records;
  while (!measured.empty()) {
    const absl::StatusOr<std::optional<std::chrono::nanoseconds>> elapsed = measured.front().timer->Elapsed();
    if (which == Which::kDone && elapsed.ok() && !*elapsed) break;  // nor are the later ones
    PlacementEntry& record = records.emplace_back(measured.front().record);
    if (elapsed.ok() && *elapsed) {
      record.flags |= PlacementEntry::kHasDeviceTime;
      record.device_ns = static_cast<std::uint64_t>((*elapsed)->count());
    }
    measured.pop_front();
  }
  const MutexLock lock(mutex_);
  // Ops that were kept meanwhile are younger.
  while (!measured.empty()) {
    kept_.push_front(std::move(measured.back()));
    measured.pop_back();
  }
  return records;
}

bool OpTimers::NeedsAnotherLook() {
  const MutexLock lock(mutex_);
  is_watched_ = !kept_.empty() || std::exchange(is_busy_, false);
  return is_watched_;
}

}  // namespace lgpu::internal
