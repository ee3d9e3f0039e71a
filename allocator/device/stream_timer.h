#ifndef LGPU_ALLOCATOR_DEVICE_STREAM_TIMER_H_
#define LGPU_ALLOCATOR_DEVICE_STREAM_TIMER_H_

#include <chrono>
#include <memory>
#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace lgpu {

class SimulatedStream;

/// A StreamTimer measures the time that a device takes from one point of a stream to another. On an idle
/// stream the time begins with the first point, so that it includes the time in which the program queues its
/// work. Destroy it before its backend; one thread at a time.
class StreamTimer {
 public:
  virtual ~StreamTimer() = default;
  StreamTimer(const StreamTimer&) = delete;
  StreamTimer& operator=(const StreamTimer&) = delete;

  /// Sets the second point, behind all work queued until now. Call it once.
  virtual absl::Status Stop() = 0;
  /// Nothing until the stream has passed the second point.
  virtual absl::StatusOr<std::optional<std::chrono::nanoseconds>> Elapsed() = 0;

 protected:
  StreamTimer() = default;
};

/// On a simulated stream; null: work is done as it is queued.
std::unique_ptr<StreamTimer> StartSimulatedTimer(std::shared_ptr<SimulatedStream> stream);

}  // namespace lgpu

#endif  // LGPU_ALLOCATOR_DEVICE_STREAM_TIMER_H_
