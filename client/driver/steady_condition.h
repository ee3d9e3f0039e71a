#ifndef LGPU_CLIENT_DRIVER_STEADY_CONDITION_H_
#define LGPU_CLIENT_DRIVER_STEADY_CONDITION_H_

#include <pthread.h>

#include <chrono>
#include <condition_variable>
#include <ctime>
#include <mutex>

namespace lgpu::shim {

/// A SteadyCondition is a std::condition_variable whose waits end by the steady clock. libstdc++'s own needs
/// glibc 2.30 for that.
///
/// Thread-safety: all methods, from any thread.
class SteadyCondition {
 public:
  SteadyCondition() {
    pthread_condattr_t attributes;
    ::pthread_condattr_init(&attributes);
    ::pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    ::pthread_cond_init(&condition_, &attributes);
    ::pthread_condattr_destroy(&attributes);
  }
  ~SteadyCondition() { ::pthread_cond_destroy(&condition_); }
  SteadyCondition(const SteadyCondition&) = delete;
  SteadyCondition& operator=(const SteadyCondition&) = delete;

  void notify_all() { ::pthread_cond_broadcast(&condition_); }
  /// May return early, as each wait for a condition.
  std::cv_status wait_until(std::unique_lock<std::mutex>& lock,
                            std::chrono::steady_clock::time_point deadline) {
    const auto whole = std::chrono::floor<std::chrono::seconds>(deadline.time_since_epoch());
    const timespec until{.tv_sec = whole.count(), .tv_nsec = (deadline.time_since_epoch() - whole).count()};
    ::pthread_cond_timedwait(&condition_, lock.mutex()->native_handle(), &until);
    return std::chrono::steady_clock::now() < deadline ? std::cv_status::no_timeout : std::cv_status::timeout;
  }

 private:
  pthread_cond_t condition_;
};

}  // namespace lgpu::shim

#endif  // LGPU_CLIENT_DRIVER_STEADY_CONDITION_H_
