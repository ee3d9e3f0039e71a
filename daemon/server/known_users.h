#ifndef LGPU_DAEMON_SERVER_KNOWN_USERS_H_
#define LGPU_DAEMON_SERVER_KNOWN_USERS_H_

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "base/mutex.h"
#include "daemon/leases/users.h"

namespace lgpu::daemon {

/// KnownUsers keeps names and groups of the users that call, since asking the system may take long.
/// Thread-safe.
class KnownUsers {
 public:
  /// The user as known; before Learn(uid) with only the number. `is_new`: Learn is to be called.
  User Find(std::uint32_t uid, bool& is_new) {
    MutexLock lock(mutex_);
    const auto [entry, added] = users_.try_emplace(uid);
    is_new = added;
    if (added) entry->second = User{.uid = uid, .name = std::to_string(uid), .groups = {}, .gids = {}};
    return entry->second;
  }
  /// Asks the system; may block.
  void Learn(std::uint32_t uid) {
    User user = LookUpUser(uid);
    MutexLock lock(mutex_);
    users_[uid] = std::move(user);
  }
  std::vector<std::uint32_t> InGroup(const std::string& group) const {
    std::vector<std::uint32_t> uids;
    MutexLock lock(mutex_);
    for (const auto& [uid, user] : users_) {
      if (IsInGroup(user, group)) uids.push_back(uid);
    }
    return uids;
  }

 private:
  mutable Mutex mutex_;
  std::map<std::uint32_t, User> users_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace lgpu::daemon

#endif  // LGPU_DAEMON_SERVER_KNOWN_USERS_H_
