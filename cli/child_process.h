#ifndef LGPU_CLI_CHILD_PROCESS_H_
#define LGPU_CLI_CHILD_PROCESS_H_

#include <signal.h>
#include <sys/types.h>

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/spawn.h"
#include "cli/isolation.h"

namespace lgpu::cli {

/// A ForwardedSignals holds signals back from this process while it lives, so that they can be passed on to a
/// child. A closed reader of its output does not end this process either, which must not leave its child
/// alone. Made before any other thread, so that all threads hold the signals back.
class ForwardedSignals {
 public:
  ForwardedSignals();
  ~ForwardedSignals();
  ForwardedSignals(const ForwardedSignals&) = delete;
  ForwardedSignals& operator=(const ForwardedSignals&) = delete;

  /// As it was before: for other children.
  const sigset_t* mask_before() const { return &before_; }

 private:
  friend class ChildProcess;
  sigset_t held_;
  sigset_t before_;
  void (*pipe_before_)(int);
};

/// A ChildProcess is a started command, in the foreground with this process's terminal and files. Wait must
/// be called: the destructor does not kill. One thread.
class ChildProcess {
 public:
  /// Starts `command` (searched in PATH) with this process's variables, changed by `variables`. Errors are
  /// those of SpawnedProcess::Start, or with an `isolation` of SpawnIsolated.
  static absl::StatusOr<ChildProcess> Spawn(const ForwardedSignals& signals,
                                            const std::vector<std::string>& command,
                                            const SpawnOptions::Environment& variables,
                                            const std::optional<Isolation>& isolation);

  /// Passes signals on until the command ends: its exit code, or 128 + n when signal n killed it.
  /// `watched` (or -1) is polled as well: `on_readable` is called when it can be read and says whether to go
  /// on watching.
  absl::StatusOr<int> Wait(const ForwardedSignals& signals, int watched,
                           const std::function<bool()>& on_readable);

  pid_t pid() const { return pid_; }

 private:
  explicit ChildProcess(pid_t pid) : pid_(pid) {}
  pid_t pid_;
};

}  // namespace lgpu::cli

#endif  // LGPU_CLI_CHILD_PROCESS_H_
