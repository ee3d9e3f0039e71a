#ifndef LGPU_ALLOCATOR_DEVICE_STREAM_TIMER_H_
#define LGPU_ALLOCATOR_DEVICE_STREAM_TIMER_H_

#include <chrono>
#include <memory>
#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace lgpu {

class SimulatedStream;

/// A StreamTimer measures the time that a device takes from one point of a stream to another. On a stream
/// that had nothing to do the time begins with the first point, so that it includes what the program takes
/// to queue its work. It goes before its backend does; one thread at a time.
class StreamTimer {
 public:
  virtual ~StreamTimer() = default;
  StreamTimer(const StreamTimer&) = delete;
  StreamTimer& operator=(const StreamTimer&) = delete;

  /// The second point: behind all that was queued until now. Once.
  virtual absl::Status Stop() = 0;
  /// Nothing as long as the stream has not passed the second point.
  virtual absl::StatusOr<std::optional<std::chrono::nanoseconds>> Elapsed() = 0;

 protected:
  StreamTimer() = default;
};

/// On a simulated stream; null: work is done as it is queued.
std::unique_ptr<StreamTimer> StartSimulatedTimer(std::shared_ptr<SimulatedStream> stream);

}  // namespace lgpu

#endif  // LGPU_ALLOCATOR_DEVICE_STREAM_TIMER_H_
