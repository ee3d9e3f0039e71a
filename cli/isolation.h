#ifndef LGPU_CLI_ISOLATION_H_
#define LGPU_CLI_ISOLATION_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/spawn.h"

namespace lgpu::cli {

/// An Isolation is how `lgpu run --isolate` starts a command: in a mount namespace of its own, where the
/// files of the real driver are lgpu's, so that a program reaches lgpu's by any path. Outside of that
/// namespace nothing changes, and it ends with the command's last process.
struct Isolation {
  struct Covered {
    std::string soname;  // "libcuda.so.1"
    std::string file;    // that its name leads to
  };
  std::string folder;  // of links; the command's namespace has copies of lgpu's libraries there
  std::vector<Covered> covered;
};

/// The hidden verb that SpawnIsolated starts.
inline constexpr char kIsolatedVerb[] = "__isolated";

/// Starts the program in a namespace as `isolation` says; its pid, groups, terminal and files are as without.
/// As root the namespace is one of mounts. Any other user has a user namespace as well, in which they keep
/// their uid. FAILED_PRECONDITION: the machine does not allow it; nothing was started. Other errors as
/// SpawnedProcess::Start.
absl::StatusOr<SpawnedProcess> SpawnIsolated(SpawnOptions options, const Isolation& isolation);

/// `lgpu __isolated ...`: becomes the command. Returns only after a failure, which its parent was told, with
/// an exit code.
int BecomeIsolated(int argc, char** argv);

}  // namespace lgpu::cli

#endif  // LGPU_CLI_ISOLATION_H_
