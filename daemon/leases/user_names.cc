#include "daemon/leases/user_names.h"

#include <utility>

#include "daemon/leases/users.h"

namespace lgpu::daemon {

UserNames::UserNames() : ask_(UserName) {}

std::string UserNames::NameOf(std::uint32_t uid, Clock::time_point now) const {
  {
    const MutexLock lock(mutex_);
    const auto found = known_.find(uid);
    if (found != known_.end() && now < found->second.until) return found->second.name;
  }
  std::string name = ask_(uid);
  const MutexLock lock(mutex_);
  if (known_.size() >= kMost) known_.clear();
  known_[uid] = {.name = name, .until = now + kLife};
  return name;
}

}  // namespace lgpu::daemon
