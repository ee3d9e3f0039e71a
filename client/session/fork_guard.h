#ifndef LGPU_CLIENT_SESSION_FORK_GUARD_H_
#define LGPU_CLIENT_SESSION_FORK_GUARD_H_

#include <vector>

#include "absl/status/status.h"
#include "base/process_epoch.h"

namespace lgpu {

/// The error of every call in a forked child: FAILED_PRECONDITION, and what to do instead.
absl::Status ForkedError();

/// A ForkGuard puts dead descriptors in the place of some descriptors in every child that is forked during
/// its lifetime, so that the child keeps no session alive (the numbers stay taken, and their owners close
/// them as ever), and IsForked is true there. It is destroyed before the descriptors are closed.
///
/// Thread-safe. The list of all guards is the one thing that the library shares between contexts.
class ForkGuard {
 public:
  explicit ForkGuard(std::vector<int> dead_in_child);
  ~ForkGuard();
  ForkGuard(const ForkGuard&) = delete;
  ForkGuard& operator=(const ForkGuard&) = delete;

  bool IsForked() const { return epoch_.IsForked(); }

 private:
  friend struct ForkGuardList;
  const ProcessEpoch epoch_;
  const std::vector<int> dead_in_child_;
  ForkGuard* previous_ = nullptr;
  ForkGuard* next_ = nullptr;
};

}  // namespace lgpu

#endif  // LGPU_CLIENT_SESSION_FORK_GUARD_H_
