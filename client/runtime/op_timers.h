#ifndef LGPU_CLIENT_RUNTIME_OP_TIMERS_H_
#define LGPU_CLIENT_RUNTIME_OP_TIMERS_H_

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "allocator/device/device_work.h"
#include "base/mutex.h"
#include "proto/wire/placement_ring.h"

namespace lgpu::internal {

/// OpTimers measures the device time of one op in `every` of a logical GPU, and keeps the records of these
/// ops until it is known. An op that cannot be measured has a record without a time. Thread-safe.
class OpTimers {
 public:
  /// `every`: 1 measures all, 0 none.
  OpTimers(DeviceWork& backend, StreamHandle stream, std::uint32_t every)
      : backend_(backend), stream_(stream), every_(every) {}

  /// Right before an op is launched: its timer, if it is measured.
  std::unique_ptr<StreamTimer> Start();
  enum class Kept { kWatched, kUnwatched };
  /// After it was launched. kUnwatched: no thread looks, and the caller has to start one. Nothing: too many
  /// records are kept, or the timer fails; the record is the caller's, and final.
  std::optional<Kept> Keep(std::unique_ptr<StreamTimer> timer, const PlacementEntry& record);
  /// The records that are final by now; kAll: of all ops, at the end.
  enum class Which { kDone, kAll };
  std::vector<PlacementEntry> Take(Which which);
  /// For the watching thread, after Take: whether to look again. A program that goes on measuring is watched
  /// all the time, so that its ops wake no thread.
  bool NeedsAnotherLook();

 private:
  struct Measured {
    std::unique_ptr<StreamTimer> timer;
    PlacementEntry record;
  };

  DeviceWork& backend_;
  const StreamHandle stream_;
  const std::uint32_t every_;
  std::atomic<std::uint32_t> ops_{0};
  Mutex mutex_;
  std::deque<Measured> kept_ ABSL_GUARDED_BY(mutex_);
  bool is_watched_ ABSL_GUARDED_BY(mutex_) = false;
  bool is_busy_ ABSL_GUARDED_BY(mutex_) = false;  // something was kept since the last look
};

}  // namespace lgpu::internal

#endif  // LGPU_CLIENT_RUNTIME_OP_TIMERS_H_
