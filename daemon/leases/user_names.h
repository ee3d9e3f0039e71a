#ifndef LGPU_DAEMON_LEASES_USER_NAMES_H_
#define LGPU_DAEMON_LEASES_USER_NAMES_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <unordered_map>

#include "absl/base/thread_annotations.h"
#include "base/mutex.h"

namespace lgpu::daemon {

/// A UserNames remembers the names of users for callers that ask often, as every message to an open
/// page does: the system may ask a network for a name. A name is at most kLife old. Thread-safe.
class UserNames {
 public:
  using Clock = std::chrono::steady_clock;
  static constexpr std::chrono::seconds kLife{60};
  static constexpr std::size_t kMost = 1024;

  /// Asks the system.
  UserNames();
  explicit UserNames(std::function<std::string(std::uint32_t)> ask) : ask_(std::move(ask)) {}

  /// As UserName. May block where the name is not known or too old.
  std::string NameOf(std::uint32_t uid, Clock::time_point now = Clock::now()) const;

 private:
  struct Known {
    std::string name;
    Clock::time_point until;
  };
  const std::function<std::string(std::uint32_t)> ask_;
  mutable Mutex mutex_;
  mutable std::unordered_map<std::uint32_t, Known> known_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace lgpu::daemon

#endif  // LGPU_DAEMON_LEASES_USER_NAMES_H_
