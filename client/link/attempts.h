#ifndef LGPU_CLIENT_LINK_ATTEMPTS_H_
#define LGPU_CLIENT_LINK_ATTEMPTS_H_

#include <algorithm>
#include <chrono>
#include <optional>

namespace lgpu::link {

/// Attempts are the times at which a client whose daemon is gone looks for the next daemon: at once, then
/// after 5 ms, and after twice the last pause each time, but after 200 ms at the latest. A value type; the
/// owner has the clock and the sleep.
class Attempts {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;

  /// The daemon is gone since `now`.
  void Start(TimePoint now) {
    next_ = now;
    pause_ = kFirstPause;
  }
  /// An attempt ended at `now` without a daemon; the time of the next one.
  TimePoint Fail(TimePoint now) {
    next_ = now + pause_;
    pause_ = std::min(2 * pause_, kLongestPause);
    return *next_;
  }
  /// The daemon is found, or the session is over.
  void Stop() { next_.reset(); }

  /// Nothing: no daemon is looked for.
  std::optional<TimePoint> next() const { return next_; }

 private:
  static constexpr std::chrono::milliseconds kFirstPause{5};
  static constexpr std::chrono::milliseconds kLongestPause{200};

  std::optional<TimePoint> next_;
  std::chrono::milliseconds pause_{kFirstPause};
};

}  // namespace lgpu::link

#endif  // LGPU_CLIENT_LINK_ATTEMPTS_H_
