#ifndef LGPU_ALLOCATOR_DEVICE_SIMULATED_SIMULATED_STREAM_H_
#define LGPU_ALLOCATOR_DEVICE_SIMULATED_SIMULATED_STREAM_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/mutex.h"

namespace lgpu {

/// A SimulatedStream runs work in the order in which it was queued, on a thread of its own. Its
/// sequence numbers count the work: number n has passed when the first n pieces are done. Thread-safe.
/// The destructor finishes what is queued.
class SimulatedStream {
 public:
  /// RESOURCE_EXHAUSTED if the machine gives no thread.
  static absl::StatusOr<std::shared_ptr<SimulatedStream>> Start();
  ~SimulatedStream();
  SimulatedStream(const SimulatedStream&) = delete;
  SimulatedStream& operator=(const SimulatedStream&) = delete;

  /// Returns the sequence number that passes with this piece of work.
  std::uint64_t Queue(std::function<void()> work);
  std::uint64_t queued() const;
  bool HasPassed(std::uint64_t sequence) const;
  void Wait(std::uint64_t sequence);
  bool IsIdle() const;

 private:
  SimulatedStream() = default;
  void Run();

  mutable Mutex mutex_;
  CondVar changed_;
  std::deque<std::function<void()>> work_ ABSL_GUARDED_BY(mutex_);
  std::uint64_t queued_ ABSL_GUARDED_BY(mutex_) = 0;
  std::uint64_t done_ ABSL_GUARDED_BY(mutex_) = 0;
  bool ending_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace lgpu

#endif  // LGPU_ALLOCATOR_DEVICE_SIMULATED_SIMULATED_STREAM_H_
