// The programs of a lease that a LeaseSuspender moves, and their runners.

#include <filesystem>
#include <set>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "allocator/broker/lease_suspensions.h"
#include "base/process.h"
#include "base/read_file.h"
#include "daemon/leases/lease_suspender.h"
#include "lgpu/status.h"

namespace lgpu::daemon {
namespace {

constexpr int kMostGenerations = 64;  // between a program and its runner

/// By a signal or Ctrl-Z.
bool IsStopped(std::int64_t pid) {
  const std::string stat = ReadWholeFile(absl::StrCat("/proc/", pid, "/stat")).value_or("");
  const std::size_t end = stat.rfind(')');  // "PID (name) T PPID ...": the name may have anything in it
  return end != std::string::npos && end + 2 < stat.size() && stat[end + 2] == 'T';
}

std::string NameOf(const SessionState& program) {
  return absl::StrCat(program.identity().command, " (pid ", program.process().pid, ")");
}

std::string PidNamespaceOf(const std::string& process) {
  std::error_code error;
  const std::string name = std::filesystem::read_symlink("/proc/" + process + "/ns/pid", error).string();
  return error ? "" : name;  // it may not be looked at
}

// Whether a runner moves the program that lgpud means.
absl::Status CheckRunner(const SessionState& runner, const SessionState& program) {
  const std::int64_t pid = runner.process().pid;
  const std::string of_runner = PidNamespaceOf(absl::StrCat(pid));
  const std::string own = PidNamespaceOf("self");
  if (!of_runner.empty() && !own.empty() && of_runner != own) {
    return absl::FailedPreconditionError(absl::StrCat(
        "the `lgpu run` or `lgpu exec` (pid ", pid, ") of ", NameOf(program),
        " is in another pid namespace than lgpud, where this pid is another process\ntry: run it outside the "
        "container"));
  }
  if (!IsStopped(pid)) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("the `lgpu run` (pid ", pid, ") that would move ", program.identity().command,
                   " is stopped\ntry: kill -CONT ", pid, "    (or fg, in its terminal)"));
}

absl::Status NoRunner(const SessionState& program) {
  return absl::FailedPreconditionError(absl::StrCat(
      NameOf(program),
      " has no `lgpu run` or `lgpu exec` above it that could move it; start it with one of them"));
}

}  // namespace

bool LeaseSuspender::CanMove(SessionId runner) const {
  const std::shared_ptr<SessionState> session = sessions_.Find(runner);
  return session != nullptr && session->identity().suspends && session->phase() == SessionState::Phase::kLive;
}

SessionId LeaseSuspender::RunnerOf(const Lease& lease, std::int64_t pid) const {
  if (lease.suspended) {
    const LeaseTable::Movers movers = LeaseTable::ParkingOf(*lease.suspended).movers;
    // Its parents may be others by now.
    if (const auto mover = movers.find(pid); mover != movers.end() && CanMove(mover->second)) {
      return mover->second;
    }
  }
  std::map<std::int64_t, SessionId> runners;
  for (const SessionId id : lease.live) {
    const std::shared_ptr<SessionState> session = sessions_.Find(id);
    if (session != nullptr && CanMove(id)) runners[session->process().pid] = id;
  }
  for (int i = 0; i < kMostGenerations && pid > 1; ++i) {
    if (const auto found = runners.find(pid); found != runners.end()) return found->second;
    pid = ParentProcess(pid);
  }
  return SessionId();
}

absl::Status LeaseSuspender::CannotBeResumed(
    const Lease& lease, const std::vector<std::shared_ptr<SessionState>>& programs) const {
  const LeaseTable::Movers movers = LeaseTable::ParkingOf(*lease.suspended).movers;
  std::vector<std::string> names, pids;
  for (const std::shared_ptr<SessionState>& program : programs) {
    const auto mover = movers.find(program->process().pid);
    const std::shared_ptr<SessionState> runner =
        mover == movers.end() ? nullptr : sessions_.Find(mover->second);
    if (runner != nullptr && runner->phase() == SessionState::Phase::kAbsent && !runner->process().IsGone()) {
      return absl::FailedPreconditionError(absl::StrCat(
          "the `lgpu run` or `lgpu exec` (pid ", runner->process().pid, ") of ", NameOf(*program),
          " has not reconnected since lgpud restarted\ntry: the same command in a moment"));
    }
    names.push_back(NameOf(*program));
    pids.push_back(absl::StrCat(program->process().pid));
  }
  return absl::FailedPreconditionError(absl::StrCat(
      absl::StrJoin(names, ", "), names.size() == 1 ? " stays" : " stay",
      " suspended: the `lgpu run` or `lgpu exec` that could move ", names.size() == 1 ? "it" : "them",
      " back has ended\ntry: kill -9 ", absl::StrJoin(pids, " "), ", and lgpu resume ", lease.name,
      " for the other programs; or lgpu rm --kill ", lease.name));
}

absl::StatusOr<LeaseSuspender::Programs> LeaseSuspender::ProgramsOf(const Lease& lease) const {
  if (lease.suspended && lease.suspended->own_session_id() != 0) return ResumesItself(lease);
  std::set<SessionId> with_memory;
  for (const LeaseSuspensions::Charge& charge : broker_.suspensions().Charges(lease.key)) {
    with_memory.insert(charge.session);
  }
  Programs programs;
  std::set<std::int64_t> pids;  // a process may have several sessions
  std::vector<std::shared_ptr<SessionState>> without_runner;
  for (const SessionId id : with_memory) {
    const std::shared_ptr<SessionState> session = sessions_.Find(id);
    if (session == nullptr || !pids.insert(session->process().pid).second) continue;
    const SessionId runner = RunnerOf(lease, session->process().pid);
    if (!runner) {
      without_runner.push_back(session);
      continue;
    }
    const std::shared_ptr<SessionState> parent = sessions_.Find(runner);
    if (parent != nullptr) LGPU_RETURN_IF_ERROR(CheckRunner(*parent, *session));
    programs[runner].push_back({.pid = session->process().pid, .start_time = session->process().start_time});
  }
  if (without_runner.empty()) return programs;
  return lease.suspended ? CannotBeResumed(lease, without_runner) : NoRunner(*without_runner.front());
}

LeaseTable::Movers LeaseSuspender::MoversOf(const Programs& programs) {
  LeaseTable::Movers movers;
  for (const auto& [runner, processes] : programs) {
    for (const wire::ProcessName& process : processes) movers[process.pid] = runner;
  }
  return movers;
}

}  // namespace lgpu::daemon
