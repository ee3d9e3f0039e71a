#ifndef LGPU_BASE_MUTEX_H_
#define LGPU_BASE_MUTEX_H_

#include <chrono>
#include <condition_variable>
#include <mutex>

#include "absl/base/thread_annotations.h"

namespace lgpu {

/// A Mutex is a std::mutex that clang's thread-safety analysis understands. (Debian's absl::Mutex
/// is not instrumented and gives false reports under ThreadSanitizer.)
class ABSL_LOCKABLE Mutex {
 public:
  Mutex() = default;
  Mutex(const Mutex&) = delete;
  Mutex& operator=(const Mutex&) = delete;

  void Lock() ABSL_EXCLUSIVE_LOCK_FUNCTION() {
    if (!mutex_.try_lock()) LockContended();
  }
  void Unlock() ABSL_UNLOCK_FUNCTION() { mutex_.unlock(); }
  bool TryLock() ABSL_EXCLUSIVE_TRYLOCK_FUNCTION(true) { return mutex_.try_lock(); }
  /// Tells the analysis that the caller holds the mutex; checks nothing.
  void AssertHeld() const ABSL_ASSERT_EXCLUSIVE_LOCK() {}

 private:
  friend class CondVar;

  // Most locks are held for less time than a thread takes to go to sleep and wake up.
  void LockContended() {
    constexpr int kMostPauses = 32;
    for (int pauses = 1; pauses <= kMostPauses; pauses *= 2) {
      for (int i = 0; i < pauses; ++i) {
#if defined(__x86_64__)
        __builtin_ia32_pause();
#endif
      }
      if (mutex_.try_lock()) return;
    }
    mutex_.lock();
  }

  std::mutex mutex_;
};

/// A MutexLock holds a Mutex for its own lifetime.
class ABSL_SCOPED_LOCKABLE MutexLock {
 public:
  explicit MutexLock(Mutex& mutex) ABSL_EXCLUSIVE_LOCK_FUNCTION(mutex) : mutex_(mutex) { mutex_.Lock(); }
  ~MutexLock() ABSL_UNLOCK_FUNCTION() { mutex_.Unlock(); }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

 private:
  Mutex& mutex_;
};

/// A CondVar is a std::condition_variable over a Mutex that the caller holds. Waits may end early:
/// callers test their condition in a loop.
class CondVar {
 public:
  void Wait(Mutex& mutex) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    std::unique_lock<std::mutex> lock(mutex.mutex_, std::adopt_lock);
    condition_.wait(lock);
    lock.release();
  }
  /// False once `deadline` has passed.
  bool WaitUntil(Mutex& mutex, std::chrono::steady_clock::time_point deadline)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    std::unique_lock<std::mutex> lock(mutex.mutex_, std::adopt_lock);
    const std::cv_status status = condition_.wait_until(lock, deadline);
    lock.release();
    return status == std::cv_status::no_timeout;
  }
  void NotifyOne() { condition_.notify_one(); }
  void NotifyAll() { condition_.notify_all(); }

 private:
  std::condition_variable condition_;
};

}  // namespace lgpu

#endif  // LGPU_BASE_MUTEX_H_
