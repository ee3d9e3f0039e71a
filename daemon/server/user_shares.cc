#include "daemon/server/user_shares.h"

#include "base/check.h"

namespace lgpu::daemon {

bool UserShares::HasRoomLocked(std::uint64_t user) const {
  const auto found = of_users_.find(user);
  const std::size_t mine = found == of_users_.end() ? 0 : found->second;
  return taken_ < places_ && mine < places_ - taken_;
}

bool UserShares::TryTake(std::uint64_t user) {
  MutexLock lock(mutex_);
  if (!HasRoomLocked(user)) return false;
  ++taken_;
  ++of_users_[user];
  return true;
}

void UserShares::Take(std::uint64_t user, std::size_t count) {
  if (count == 0) return;
  MutexLock lock(mutex_);
  taken_ += count;
  of_users_[user] += count;
}

void UserShares::GiveBack(std::uint64_t user, std::size_t count) {
  if (count == 0) return;
  MutexLock lock(mutex_);
  const auto found = of_users_.find(user);
  LGPU_CHECK(found != of_users_.end() && found->second >= count);
  taken_ -= count;
  found->second -= count;
  if (found->second == 0) of_users_.erase(found);
}

bool UserShares::HasRoom(std::uint64_t user) const {
  MutexLock lock(mutex_);
  return HasRoomLocked(user);
}

std::size_t UserShares::CountOf(std::uint64_t user) const {
  MutexLock lock(mutex_);
  const auto found = of_users_.find(user);
  return found == of_users_.end() ? 0 : found->second;
}

}  // namespace lgpu::daemon
