#ifndef LGPU_CLIENT_OP_TIMERS_H_
#define LGPU_CLIENT_OP_TIMERS_H_

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "allocator/device/device_backend.h"
#include "allocator/mutex.h"
#include "proto/placement_ring.h"

namespace lgpu::internal {

/// OpTimers measures the device time of one op in `every` of a logical GPU, and keeps the records of these
/// ops until it is known. An op that cannot be measured has a record without a time. Thread-safe.
class OpTimers {
 public:
  /// `every`: 1 measures all, 0 none.
  OpTimers(DeviceBackend& backend, StreamHandle stream, std::uint32_t every)
      : backend_(backend), stream_(stream), every_(every) {}

  /// Before an op is launched: its timer, if it is measured.
  std::unique_ptr<StreamTimer> Start();
  enum class Kept { kFirst, kMore };
  /// After it was launched. kFirst: nothing was kept before, somebody should Take soon. Nothing: too much is
  /// kept, or the timer fails; the record is the caller's, and final.
  std::optional<Kept> Keep(std::unique_ptr<StreamTimer> timer, const PlacementEntry& record);
  /// The records that are final by now.
  std::vector<PlacementEntry> Take();
  bool is_empty() const { return kept_count_.load(std::memory_order_relaxed) == 0; }

 private:
  struct Measured {
    std::unique_ptr<StreamTimer> timer;
    PlacementEntry record;
  };

  DeviceBackend& backend_;
  const StreamHandle stream_;
  const std::uint32_t every_;
  std::atomic<std::uint32_t> ops_{0};
  std::atomic<std::size_t> kept_count_{0};
  Mutex mutex_;
  std::deque<Measured> kept_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace lgpu::internal

#endif  // LGPU_CLIENT_OP_TIMERS_H_
