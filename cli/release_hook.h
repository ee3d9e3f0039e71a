#ifndef LGPU_CLI_RELEASE_HOOK_H_
#define LGPU_CLI_RELEASE_HOOK_H_

#include <sys/types.h>

#include <atomic>
#include <deque>
#include <string>
#include <thread>

#include "absl/status/status.h"
#include "base/mutex.h"
#include "base/spawn.h"
#include "cli/child_process.h"
#include "cli/commands/command.h"
#include "client/session/daemon_connection.h"
#include "lgpu/v1/control.pb.h"

namespace lgpu::cli {

/// A ReleaseHook runs the command of --release (of `lgpu run` and `lgpu exec`) as often as lgpud asks for it:
/// the lease is idle, and another program waits for its memory. The command is a child of this process, with
/// the variables of the user, LGPU_LEASE, LGPU_RELEASE_PID (the program that this process runs) and
/// LGPU_RELEASE_BYTES. Its output goes to standard error line by line. It is ended when lgpud's time is over,
/// and with the hook.
///
/// One thread of its own runs the commands, one after the other.
class ReleaseHook {
 public:
  /// `session`, `signals` and `options` outlive it.
  ReleaseHook(std::string command, DaemonConnection& session, const ForwardedSignals& signals,
              const v1::Lease& lease, pid_t program, const CommonOptions& options);
  ~ReleaseHook();
  ReleaseHook(const ReleaseHook&) = delete;
  ReleaseHook& operator=(const ReleaseHook&) = delete;

  /// Takes lgpud's new orders; does not wait. To be called after each change of the session.
  void Look();

 private:
  void Run();
  absl::Status RunOnce(const wire::Release& order);
  /// Until the process has ended, its time is over, or the hook is to stop.
  absl::Status Follow(SpawnedProcess& process, int output);
  /// Prints the lines that are complete; `all`: also the rest.
  void PrintLines(std::string& text, bool all) const;

  const std::string command_;
  DaemonConnection& session_;
  const ForwardedSignals& signals_;
  const std::string lease_;
  const pid_t program_;
  const CommonOptions& options_;
  std::atomic<bool> stopping_ = false;
  Mutex mutex_;
  CondVar changed_;
  std::deque<DaemonConnection::ReleaseOfDaemon> orders_ ABSL_GUARDED_BY(mutex_);
  std::thread thread_;
};

}  // namespace lgpu::cli

#endif  // LGPU_CLI_RELEASE_HOOK_H_
