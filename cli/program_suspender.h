#ifndef LGPU_CLI_PROGRAM_SUSPENDER_H_
#define LGPU_CLI_PROGRAM_SUSPENDER_H_

#include <sys/types.h>

#include <chrono>
#include <deque>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "base/mutex.h"
#include "base/thread.h"
#include "cli/checkpoint_calls.h"
#include "cli/commands/command.h"
#include "client/session/daemon_connection.h"

namespace lgpu::cli {

/// A ProgramSuspender suspends programs that this process has started, and resumes them, as often as lgpud
/// asks for it. A suspension that fails is undone before lgpud has the answer; where lgpud is gone meanwhile,
/// the next one hears in the greeting that programs are suspended. Where this process is killed amid an
/// order, a CheckpointGuard lets its programs go on.
///
/// One thread of its own does the work, one order after the other; it starts with the first order.
class ProgramSuspender {
 public:
  /// `session` and `options` outlive it. `program`: of lgpu itself.
  ProgramSuspender(DaemonConnection& session, const CommonOptions& options,
                   std::string program = "/proc/self/exe")
      : session_(session), options_(options), program_(std::move(program)) {}
  /// Ends after the order that it is at.
  ~ProgramSuspender();
  ProgramSuspender(const ProgramSuspender&) = delete;
  ProgramSuspender& operator=(const ProgramSuspender&) = delete;

  /// Takes lgpud's new orders; does not wait. To be called after each change of the session.
  void Look();

 private:
  using Clock = std::chrono::steady_clock;

  void Run();
  /// What orders are answered with where the system allows no thread.
  absl::Status StartThread();
  absl::Status FollowAndNote(const wire::Suspend& order);
  absl::Status Suspend(const wire::Suspend& order);
  absl::Status SuspendOrUndo(const std::set<pid_t>& pids, Clock::time_point deadline);
  absl::Status SuspendAll(const std::set<pid_t>& pids, Clock::time_point deadline);
  /// Whatever state they are in. Where one fails they all count as suspended, and left_ has those that are.
  absl::Status ResumeAll(std::set<pid_t> pids, Clock::time_point deadline);
  void NoteIfLeft(pid_t pid);
  void NoteSuspended(const std::set<pid_t>& pids, bool are_suspended);

  DaemonConnection& session_;
  const CommonOptions& options_;
  const std::string program_;
  CheckpointCalls calls_{program_};
  // Of the thread.
  std::set<pid_t> suspended_;            // those that may not run
  std::vector<wire::ProcessName> left_;  // what the order left in host memory
  Mutex mutex_;
  CondVar changed_;
  std::deque<DaemonConnection::SuspendOfDaemon> orders_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::optional<Thread> thread_;
};

}  // namespace lgpu::cli

#endif  // LGPU_CLI_PROGRAM_SUSPENDER_H_
