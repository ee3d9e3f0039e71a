#ifndef LGPU_DAEMON_SERVER_LOG_LIMIT_H_
#define LGPU_DAEMON_SERVER_LOG_LIMIT_H_

#include <chrono>
#include <cstdint>
#include <optional>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "base/mutex.h"

namespace lgpu::daemon {

/// A LogLimit bounds the lines that clients can make the daemon log from one place: one a second.
/// Thread-safe.
class LogLimit {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;

  /// The lines that were kept back since the last one; nothing: keep this one back too.
  std::optional<std::uint64_t> Next(TimePoint now = std::chrono::steady_clock::now()) {
    MutexLock lock(mutex_);
    if (now < next_) {
      ++kept_back_;
      return std::nullopt;
    }
    next_ = now + std::chrono::seconds(1);
    return std::exchange(kept_back_, 0);
  }

 private:
  Mutex mutex_;
  TimePoint next_ ABSL_GUARDED_BY(mutex_){};
  std::uint64_t kept_back_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace lgpu::daemon

#endif  // LGPU_DAEMON_SERVER_LOG_LIMIT_H_
