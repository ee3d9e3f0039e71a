#ifndef LGPU_CLI_CHECKPOINT_GUARD_H_
#define LGPU_CLI_CHECKPOINT_GUARD_H_

#include <sys/types.h>

#include <set>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/spawn.h"
#include "base/unique_fd.h"

namespace lgpu::cli {

/// A CheckpointGuard is a process that outlives this one: where this one dies before the guard is destroyed,
/// the guard lets `pids` go on, in whatever state they are. It first waits for the processes that have
/// descriptor(), those of calls that were under way.
class CheckpointGuard {
 public:
  /// `program`: of lgpu itself.
  static absl::StatusOr<CheckpointGuard> Start(const std::set<pid_t>& pids,
                                               const std::string& program = "/proc/self/exe");
  CheckpointGuard(CheckpointGuard&&) = default;
  CheckpointGuard& operator=(CheckpointGuard&&) = delete;
  /// The programs stay as they are.
  ~CheckpointGuard();

  int descriptor() const { return alive_.get(); }

 private:
  CheckpointGuard(SpawnedProcess process, UniqueFd alive)
      : process_(std::move(process)), alive_(std::move(alive)) {}

  SpawnedProcess process_;
  UniqueFd alive_;
};

/// The word after kCheckpointVerb that makes lgpu a guard: `lgpu __checkpoint guard PID ...`.
inline constexpr char kGuardWord[] = "guard";

/// Waits for the end of standard input. The exit code of lgpu.
int RunCheckpointGuard(const std::vector<std::string>& words);

}  // namespace lgpu::cli

#endif  // LGPU_CLI_CHECKPOINT_GUARD_H_
