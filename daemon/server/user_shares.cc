#include "daemon/server/user_shares.h"

#include "base/check.h"

namespace lgpu::daemon {

bool UserShares::HasRoomLocked(std::uint32_t uid) const {
  const auto found = of_users_.find(uid);
  const std::size_t mine = found == of_users_.end() ? 0 : found->second;
  return taken_ < places_ && mine < places_ - taken_;
}

bool UserShares::TryTake(std::uint32_t uid) {
  MutexLock lock(mutex_);
  if (!HasRoomLocked(uid)) return false;
  ++taken_;
  ++of_users_[uid];
  return true;
}

void UserShares::Take(std::uint32_t uid, std::size_t count) {
  if (count == 0) return;
  MutexLock lock(mutex_);
  taken_ += count;
  of_users_[uid] += count;
}

void UserShares::GiveBack(std::uint32_t uid, std::size_t count) {
  if (count == 0) return;
  MutexLock lock(mutex_);
  const auto found = of_users_.find(uid);
  LGPU_CHECK(found != of_users_.end() && found->second >= count);
  taken_ -= count;
  found->second -= count;
  if (found->second == 0) of_users_.erase(found);
}

bool UserShares::HasRoom(std::uint32_t uid) const {
  MutexLock lock(mutex_);
  return HasRoomLocked(uid);
}

std::size_t UserShares::CountOf(std::uint32_t uid) const {
  MutexLock lock(mutex_);
  const auto found = of_users_.find(uid);
  return found == of_users_.end() ? 0 : found->second;
}

}  // namespace lgpu::daemon
