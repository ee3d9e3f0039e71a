#ifndef LGPU_CLIENT_FORK_GUARD_H_
#define LGPU_CLIENT_FORK_GUARD_H_

#include <vector>

#include "allocator/process_epoch.h"

namespace lgpu {

/// A ForkGuard closes descriptors in a child that is forked during its lifetime, so that the child keeps no
/// session alive, and tells that child that it is one. The owner of the descriptors makes the guard after
/// them and destroys it before them; in a child (IsForked) it gives them up with UniqueFd::Release, because the
/// numbers may name something else there by now.
///
/// Thread-safe. The list of all guards is the one thing that the library shares between contexts.
class ForkGuard {
 public:
  explicit ForkGuard(std::vector<int> close_in_child);
  ~ForkGuard();
  ForkGuard(const ForkGuard&) = delete;
  ForkGuard& operator=(const ForkGuard&) = delete;

  bool IsForked() const { return epoch_.IsForked(); }

 private:
  friend struct ForkGuardList;
  const ProcessEpoch epoch_;
  const std::vector<int> close_in_child_;
  ForkGuard* previous_ = nullptr;
  ForkGuard* next_ = nullptr;
};

}  // namespace lgpu

#endif  // LGPU_CLIENT_FORK_GUARD_H_
