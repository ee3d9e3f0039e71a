#ifndef LGPU_CLIENT_SESSION_MAINTENANCE_H_
#define LGPU_CLIENT_SESSION_MAINTENANCE_H_

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "base/mutex.h"

namespace lgpu {

/// A Maintenance is a task that some background thread does now and then: when it was woken, and when the
/// task itself wants to be called again. The thread is the owner's; it asks when to call RunIfDue.
/// Thread-safe.
class Maintenance {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;
  /// Says when it wants to be called again; nothing: only when woken.
  using Task = std::function<std::optional<TimePoint>(TimePoint now)>;

  /// The first call is due at once.
  void Start(Task task);
  /// True: the caller has to wake the thread. False: an earlier wake-up has not been served yet. Takes no
  /// lock.
  bool Wake() { return !woken_.exchange(true, std::memory_order_acq_rel); }
  /// The task does not run any more when this returns, and never again. Not from the task itself.
  void Stop();

  bool HasTask() const;

  /// For the thread: the next call; nothing: when woken.
  std::optional<TimePoint> next() const;
  void RunIfDue();

 private:
  std::atomic<bool> woken_ = false;
  mutable Mutex mutex_;
  CondVar changed_;
  std::shared_ptr<const Task> task_ ABSL_GUARDED_BY(mutex_);
  std::optional<TimePoint> next_ ABSL_GUARDED_BY(mutex_);
  bool running_ ABSL_GUARDED_BY(mutex_) = false;
};

/// A MaintenanceThread does a Maintenance and nothing else; it starts with the first Start. Thread-safe.
class MaintenanceThread {
 public:
  MaintenanceThread() = default;
  ~MaintenanceThread();
  MaintenanceThread(const MaintenanceThread&) = delete;
  MaintenanceThread& operator=(const MaintenanceThread&) = delete;

  /// Where no thread can be had, the task does not run: memory is then grown when it is needed, and kept.
  void Start(Maintenance::Task task);
  void Wake();
  void Stop() { maintenance_.Stop(); }
  /// A task was started, and the thread was to be had.
  bool IsRunning() const { return maintenance_.HasTask(); }

 private:
  void Run();

  Maintenance maintenance_;
  Mutex mutex_;
  CondVar changed_;
  bool due_ ABSL_GUARDED_BY(mutex_) = false;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace lgpu

#endif  // LGPU_CLIENT_SESSION_MAINTENANCE_H_
