#ifndef LGPU_ALLOCATOR_BROKER_THREAD_WAKER_H_
#define LGPU_ALLOCATOR_BROKER_THREAD_WAKER_H_

#include <chrono>

#include "absl/base/thread_annotations.h"
#include "allocator/broker/broker.h"
#include "allocator/broker/waker.h"
#include "base/mutex.h"

namespace lgpu {

/// A ThreadWaker ends the wait of one thread. Thread-safe.
class ThreadWaker final : public Waker {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;

  void Wake() const override;
  /// Returns as soon as it was woken since the last call, at `deadline` at the latest.
  void WaitUntil(TimePoint deadline = TimePoint::max()) const;

 private:
  mutable Mutex mutex_;
  mutable CondVar changed_;
  mutable bool woken_ ABSL_GUARDED_BY(mutex_) = false;
};

// As the calls of Broker, for a thread that waits for the answer itself. Another thread calls Tick; where
// none does, the request is over at its deadline all the same.
absl::StatusOr<LogicalId> AddDeviceInTime(Broker& broker, const Broker::DeviceSpec& spec,
                                          Broker::TimePoint deadline);
absl::Status ResizeDeviceInTime(Broker& broker, LogicalId device, Bytes limit, Bytes guarantee,
                                Broker::TimePoint deadline);

}  // namespace lgpu

#endif  // LGPU_ALLOCATOR_BROKER_THREAD_WAKER_H_
