#ifndef LGPU_BASE_SPAWN_H_
#define LGPU_BASE_SPAWN_H_

#include <signal.h>
#include <sys/types.h>
#include <sys/wait.h>

#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "base/unique_fd.h"

namespace lgpu {

/// A program to start, and what it gets. It also inherits the descriptors of this process that are not
/// close-on-exec.
struct SpawnOptions {
  /// Changes to this process's variables; nothing: the variable is taken away.
  using Environment = std::map<std::string, std::optional<std::string>>;

  std::vector<std::string> argv;  // argv[0]: a path, or a name that is searched in PATH
  Environment environment = {};
  std::vector<std::pair<int, int>> descriptors = {};  // {number here, number in the program}
                                                      // applied in order by dup2
  const sigset_t* signal_mask = nullptr;              // null: this thread's
  const sigset_t* default_signals = nullptr;          // back to their default action; null: none
};

/// A SpawnedProcess is a process that this one started. It is killed and reaped with its owner, unless it was
/// reaped before. One thread.
class SpawnedProcess {
 public:
  SpawnedProcess() = default;  // of no process
  /// NOT_FOUND: there is no such program. Any other error: there is, and it cannot be run. The text is the
  /// system's.
  static absl::StatusOr<SpawnedProcess> Start(const SpawnOptions& options);
  SpawnedProcess(SpawnedProcess&& other) noexcept : pid_(std::exchange(other.pid_, -1)) {}
  SpawnedProcess& operator=(SpawnedProcess&& other) noexcept;
  ~SpawnedProcess() { Kill(); }

  /// -1: there is none, or it was reaped.
  pid_t pid() const { return pid_; }
  /// Waits for its end and reaps it: its exit code, or 128 + n when signal n killed it; -1 without a process.
  int Wait() { return Reap(0).value_or(-1); }
  /// The same without waiting; nothing while it runs.
  std::optional<int> TryWait() { return Reap(WNOHANG); }
  /// Kills and reaps it.
  void Kill();
  /// Its pid; the caller reaps it.
  pid_t Release() { return std::exchange(pid_, -1); }

 private:
  std::optional<int> Reap(int options);
  pid_t pid_ = -1;
};

/// A Pipe has both ends of a new pipe, close-on-exec.
struct Pipe {
  UniqueFd read, write;
  /// INTERNAL: the machine gives none.
  static absl::StatusOr<Pipe> Make();
};

/// The exit code in a status of waitpid, or 128 + n when signal n killed the process.
int ExitCodeOf(int wait_status);

}  // namespace lgpu

#endif  // LGPU_BASE_SPAWN_H_
