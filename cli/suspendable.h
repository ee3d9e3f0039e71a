#ifndef LGPU_CLI_SUSPENDABLE_H_
#define LGPU_CLI_SUSPENDABLE_H_

#include <sys/types.h>

#include <optional>
#include <string>

#include "absl/status/status.h"

namespace lgpu::cli {

/// Whether a process may be suspended by this one: it is a descendant of this process in the same pid
/// namespace, of the same user, not stopped, not traced, not frozen, and works with no other by NCCL. Else
/// FAILED_PRECONDITION with the reason ("process 123 (python) is stopped"), or NOT_FOUND: it has ended. The
/// time is that of the process's number of mappings.
absl::Status CheckSuspendable(pid_t pid);

/// The frozen cgroup among those of `cgroups` (the text of /proc/PID/cgroup); nothing: none is, as far as
/// this process may look. `mounts`: where cgroup file systems are.
std::optional<std::string> FrozenCgroup(const std::string& cgroups,
                                        const std::string& mounts = "/sys/fs/cgroup");

}  // namespace lgpu::cli

#endif  // LGPU_CLI_SUSPENDABLE_H_
