#include "cli/lease_programs.h"

#include <poll.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "lgpu/status.h"

namespace lgpu::cli {
namespace {

// The kernel ends a killed process soon, but for one that waits for a driver.
constexpr std::chrono::seconds kKillPatience{5};

/// Waits until all processes are gone, at most for the timeout. Gives the ones that are left.
std::vector<const Process*> StillThere(std::vector<const Process*> programs, std::chrono::milliseconds time) {
  const auto deadline = std::chrono::steady_clock::now() + time;
  while (true) {
    std::erase_if(programs, [](const Process* program) { return program->IsGone(); });
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
    if (programs.empty() || left.count() <= 0) return programs;
    pollfd polled{programs.front()->pidfd.get(), POLLIN, 0};
    (void)::poll(&polled, 1, static_cast<int>(std::min<std::int64_t>(left.count(), 1000)));
  }
}

/// 0 also for a process that is gone.
int Signal(const Process& program, int number) {
  const long sent = ::syscall(SYS_pidfd_send_signal, program.pidfd.get(), number, nullptr, 0u);
  return sent == 0 || errno == ESRCH ? 0 : errno;
}

}  // namespace

absl::StatusOr<LeasePrograms> LeasePrograms::Find(Connection& connection, const std::string& id) {
  LGPU_ASSIGN_OR_RETURN(const v1::StatsSnapshot snapshot, connection.Call(kGetStats, v1::GetStatsRequest()));
  LeasePrograms found;
  std::set<std::int64_t> known = {::getpid()};
  for (const v1::LeaseStats& stats : snapshot.leases()) {
    if (stats.id() != id) continue;
    for (const v1::SessionStats& session : stats.sessions()) {
      if (!known.insert(session.pid()).second) continue;
      absl::StatusOr<Process> process = HoldProcess(session.pid());
      if (absl::IsNotFound(process.status()) && session.state() != v1::SessionStats::STATE_LIVE) continue;
      if (!process.ok() || process->start_time != session.process_start_ticks()) {
        return absl::FailedPreconditionError(
            absl::StrCat("pid ", session.pid(), " (", Printable(session.command()),
                         ") is no process of this lease here: it has ended this moment, or the daemon's pids "
                         "are those of another pid namespace\ntry: again, or where lgpud runs"));
      }
      found.programs_.push_back(*std::move(process));
    }
  }
  return found;
}

LeasePrograms::Ended LeasePrograms::End(std::chrono::milliseconds grace) {
  Ended ended;
  std::vector<const Process*> signalled;
  for (const Process& program : programs_) {
    if (const int error = Signal(program, SIGTERM); error != 0) {
      ended.failures.push_back(absl::StrCat("cannot end pid ", program.pid, ": ", std::strerror(error)));
    } else {
      signalled.push_back(&program);
    }
  }
  const std::vector<const Process*> stubborn = StillThere(signalled, grace);
  for (const Process* const program : stubborn) (void)Signal(*program, SIGKILL);
  const std::vector<const Process*> rest = StillThere(stubborn, kKillPatience);
  const auto is_in = [](const std::vector<const Process*>& programs, const Process* program) {
    return std::find(programs.begin(), programs.end(), program) != programs.end();
  };
  for (const Process* const program : signalled) {
    if (is_in(rest, program)) {
      ended.failures.push_back(absl::StrCat("pid ", program->pid, " was killed and has not ended yet"));
    } else {
      (is_in(stubborn, program) ? ended.killed : ended.terminated).push_back(program->pid);
    }
  }
  return ended;
}

}  // namespace lgpu::cli
