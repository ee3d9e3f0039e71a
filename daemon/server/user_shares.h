#ifndef LGPU_DAEMON_SERVER_USER_SHARES_H_
#define LGPU_DAEMON_SERVER_USER_SHARES_H_

#include <cstddef>
#include <cstdint>
#include <map>

#include "absl/base/thread_annotations.h"
#include "base/mutex.h"

namespace lgpu::daemon {

/// UserShares divides a number of places among users: a user may take one more while they have fewer than are
/// free. So one user gets at most half of the places, n users at most 1/(n+1) each, and a place is left for a
/// new user. The rule needs no configuration for each user (it is that of dynamic queue thresholds; Choudhury
/// and Hahne, 1998). A user is a number: mostly a uid. Thread-safe.
class UserShares {
 public:
  explicit UserShares(std::size_t places) : places_(places) {}

  /// Takes a place. False: the user has their share.
  bool TryTake(std::uint64_t user);
  /// Takes `count` places, whether or not the user has their share.
  void Take(std::uint64_t user, std::size_t count);
  void GiveBack(std::uint64_t user, std::size_t count = 1);

  /// Whether TryTake would succeed.
  bool HasRoom(std::uint64_t user) const;
  /// The places that the user has.
  std::size_t CountOf(std::uint64_t user) const;
  std::size_t places() const { return places_; }

 private:
  bool HasRoomLocked(std::uint64_t user) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::size_t places_;
  mutable Mutex mutex_;
  std::size_t taken_ ABSL_GUARDED_BY(mutex_) = 0;
  std::map<std::uint64_t, std::size_t> of_users_ ABSL_GUARDED_BY(mutex_);  // no entry is 0
};

}  // namespace lgpu::daemon

#endif  // LGPU_DAEMON_SERVER_USER_SHARES_H_
