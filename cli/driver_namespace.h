#ifndef LGPU_CLI_DRIVER_NAMESPACE_H_
#define LGPU_CLI_DRIVER_NAMESPACE_H_

#include "absl/status/status.h"
#include "cli/isolation.h"

namespace lgpu::cli {

/// Moves this process, which has one thread, into a mount namespace of its own and puts lgpu's libraries over
/// the files of `isolation` there. The lease is the one that this process's variables name.
/// FAILED_PRECONDITION says what the machine does not allow; the process is of no use then.
absl::Status EnterDriverNamespace(const Isolation& isolation);

}  // namespace lgpu::cli

#endif  // LGPU_CLI_DRIVER_NAMESPACE_H_
