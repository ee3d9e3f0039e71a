#include "cli/command_in_lease.h"

#include <signal.h>
#include <sys/eventfd.h>

#include <CLI/CLI.hpp>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/exit_codes.h"
#include "cli/control_methods.h"
#include "cli/driver_files.h"
#include "cli/program_suspender.h"
#include "cli/release_hook.h"
#include "cli/run_watch.h"
#include "lgpu/status.h"

namespace lgpu::cli {
namespace {

/// Tells the user about changes of the session while the command runs. One thread.
class SessionNews {
 public:
  SessionNews(const DaemonConnection& session, const CommonOptions& options)
      : session_(session), options_(options), generation_(session.generation()) {}

  /// Reports changes. True while there may be more.
  bool Tell() {
    if (const std::uint64_t now = session_.generation(); now != generation_) {
      generation_ = now;
      told_.clear();
      options_.Note("lgpu: note: the daemon was started again; the lease goes on");
    }
    const absl::Status status = session_.status();
    if (session_.IsOver()) {
      options_.Note(absl::StrCat("lgpu: note: the session is over, the command goes on: ",
                                 Printable(std::string(session_.status().message()))));
      return false;
    }
    const std::string why(status.message());
    if (!status.ok() && told_.insert(why).second) {
      options_.Note(absl::StrCat("lgpu: note: the command goes on without the daemon: ", Printable(why)));
    }
    return true;
  }

 private:
  const DaemonConnection& session_;
  const CommonOptions& options_;
  std::uint64_t generation_;
  std::set<std::string> told_;  // the reasons for being away; each is told once
};

/// A command that could not be started, told; the exit code.
int ReportNotStarted(const absl::Status& status, const CommonOptions& options) {
  const std::string why = absl::StrCat("cannot run ", Printable(options.command[0]), ": ", status.message());
  const bool not_found = absl::IsNotFound(status);
  const int code = not_found ? kExitCommandNotFound : kExitNotExecutable;
  options.Report(not_found ? absl::NotFoundError(why) : absl::PermissionDeniedError(why), code);
  return code;
}

}  // namespace

absl::StatusOr<OwnSession> OwnSession::Open(Connection& connection, const std::string& verb,
                                            const CommonOptions& options, bool runs_release) {
  OwnSession session;
  session.changed = UniqueFd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!session.changed) {
    return absl::ResourceExhaustedError(absl::StrCat(
        verb, " cannot start the command: the system gives it no file descriptor to watch the lease with (",
        std::strerror(errno), ")\ntry: close other programs, or raise the limit of open files (ulimit -n)"));
  }
  LGPU_ASSIGN_OR_RETURN(session.connection, OpenSession(connection.runtime_dir(), verb, options.timeout,
                                                        [fd = session.changed.get()] {
                                                          [[maybe_unused]] const int written =
                                                              ::eventfd_write(fd, 1);
                                                        },
                                                        {.runs_release = runs_release, .suspends = true}));
  connection.SetSessionToken(session.connection->token());
  return session;
}

void CommandInLease::AddTo(CLI::App& verb) {
  verb.add_flag("--require-attach", require_attach_,
                "Fail with 125 if the command never used the lease (its memory was not limited)");
  verb.add_option(
          "--release", release_,
          "A shell command that makes the program free GPU memory. lgpu runs it when the lease is idle and "
          "lgpud needs memory for another program")
      ->type_name("CMD");
  verb.add_flag("--isolate", isolate_,
                "Also limit programs that clear their environment or name the driver's folder: lgpu's files "
                "cover the driver's in a mount namespace of the command's own");
  memory_wait_flag_ = verb.add_option("--memory-wait", memory_wait_text_,
                                      "How long a command that does not use liblgpu waits for memory of a "
                                      "full GPU, all waits in a row together; default: 2s. After a wait "
                                      "that failed, its allocations are refused at once for 5s")
                          ->type_name("TIME");
  soft_flag_ = verb.add_flag(
      "--soft-placement,!--no-soft-placement", soft_placement_,
      "Let ops run elsewhere if they cannot run where they were asked to (LGPU_SOFT_PLACEMENT)");
  verb.add_flag("--log-device-placement", log_placement_,
                "Print a line for every op with its device (LGPU_LOG_DEVICE_PLACEMENT)");
  verb.add_option("-e,--env", variable_texts_,
                  "Set a variable for the command; a name alone keeps what this environment has")
      ->type_name("K[=V]")
      ->expected(1)
      ->take_all();
}

absl::Status CommandInLease::CheckFlags() {
  LGPU_ASSIGN_OR_RETURN(variables_, ParseVariables());
  if (memory_wait_flag_->count() == 0) return absl::OkStatus();
  const absl::StatusOr<std::chrono::milliseconds> parsed = ParseDuration(memory_wait_text_);
  if (!parsed.ok()) {
    return absl::InvalidArgumentError(absl::StrCat("--memory-wait: ", parsed.status().message()));
  }
  memory_wait_ = *parsed;
  return absl::OkStatus();
}

absl::StatusOr<int> CommandInLease::Run(const ForwardedSignals& signals, Connection& connection,
                                        const OwnSession& own, const v1::Lease& lease,
                                        const CommonOptions& options) const {
  DaemonConnection& session = *own.connection;
  Variables variables = variables_;
  LGPU_ASSIGN_OR_RETURN(const LeaseEnvironment environment,
                        EnvironmentOf(lease, connection.runtime_dir(),
                                      [&](const std::string& name) { return ValueOf(name, variables); }));
  for (const std::string& note : environment.notes) options.Note("lgpu: note: " + note);
  AddVariables(environment, variables);
  if (soft_flag_->count() > 0) variables["LGPU_SOFT_PLACEMENT"] = soft_placement_ ? "1" : "0";
  if (log_placement_) variables["LGPU_LOG_DEVICE_PLACEMENT"] = "1";
  const std::optional<Isolation> isolation = IsolationFor(environment, variables, options);
  const std::optional<RunWatch::Shared> shared =
      lease_ == Lease::kShared ? std::optional(RunWatch::FromNowOn(connection, lease)) : std::nullopt;
  absl::StatusOr<ChildProcess> child = ChildProcess::Spawn(signals, options.command, variables, isolation);
  if (absl::IsFailedPrecondition(child.status())) return child.status();
  if (!child.ok()) return ReportNotStarted(child.status(), options);
  SessionNews news(session, options);
  RunWatch watch(connection, lease, child->pid(), shared, options);
  LGPU_ASSIGN_OR_RETURN(WakeUp wake_up, WakeUp::Make(own.changed.get()));
  std::optional<ReleaseHook> hook;
  if (!release_.empty()) hook.emplace(release_, session, signals, lease, child->pid(), options);
  ProgramSuspender suspender(session, options);
  std::uint64_t generation = session.generation();
  const auto look = [&] {
    if (!environment.has_shim || !session.status().ok()) return;
    // If the successor cannot be asked now, the next look tries again.
    const std::uint64_t now = session.generation();
    if (generation != now && watch.DaemonStartedAgain()) generation = now;
    watch.Look();
  };
  bool has_told_of_simulated = HasRealGpu(lease);
  const auto tell = [&] {
    if (wake_up.TakeTick()) {
      look();
      if (!std::exchange(has_told_of_simulated, true)) TellOfSimulated(connection, lease, options);
      if (require_attach_ && watch.FoundBypass()) ::kill(child->pid(), SIGTERM);
    }
    if (hook) hook->Look();
    suspender.Look();
    eventfd_t ignored;
    return ::eventfd_read(own.changed.get(), &ignored) != 0 || news.Tell();
  };
  LGPU_ASSIGN_OR_RETURN(const int code, child->Wait(signals, wake_up.fd(), tell));
  hook.reset();
  look();
  if (require_attach_ && watch.FoundBypass()) {
    return absl::FailedPreconditionError(
        absl::StrCat(Printable(options.command[0]),
                     " bypassed lgpu on a GPU, so its memory was not limited; it was ended"));
  }
  LGPU_ASSIGN_OR_RETURN(const int result, AfterCommand(connection, session, lease, code, options));
  // A daemon that comes later sees that this process is gone.
  if (session.status().ok()) session.Close().IgnoreError();
  return result;
}

/// The value of a variable in the command's environment.
std::optional<std::string> CommandInLease::ValueOf(const std::string& name, const Variables& given) {
  const auto found = given.find(name);
  if (found != given.end()) return found->second;
  const char* const value = std::getenv(name.c_str());
  return value == nullptr ? std::nullopt : std::optional<std::string>(value);
}

/// The files that --isolate covers; nothing without it, and where the command has no driver of the lease's.
std::optional<Isolation> CommandInLease::IsolationFor(const LeaseEnvironment& environment,
                                                      const Variables& variables,
                                                      const CommonOptions& options) const {
  if (!isolate_) return std::nullopt;
  if (!environment.has_shim) {
    options.Note("lgpu: note: --isolate has no effect: the command has no driver of this lease to cover");
    return std::nullopt;
  }
  return Isolation{.folder = environment.shim_folder,
                   .covered = FilesToCover(ValueOf("LD_LIBRARY_PATH", variables).value_or(""))};
}

/// --env overrides these variables, except that the two paths take both values.
void CommandInLease::AddVariables(const LeaseEnvironment& environment, Variables& variables) const {
  for (const char* const path : {"LD_LIBRARY_PATH", "LD_PRELOAD"}) {
    if (environment.variables.contains(path)) variables.erase(path);
  }
  variables.insert(environment.variables.begin(), environment.variables.end());
  if (environment.has_shim && memory_wait_flag_->count() > 0) {
    variables["LGPU_MEMORY_WAIT_MS"] = absl::StrCat(memory_wait_.count());
  }
}

absl::StatusOr<CommandInLease::Variables> CommandInLease::ParseVariables() const {
  Variables parsed;
  for (const std::string& text : variable_texts_) {
    const std::size_t equals = text.find('=');
    const std::string name = text.substr(0, equals);
    if (name.empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat("--env ", Printable(text), ": the name before = is missing\ntry: --env NAME=VALUE"));
    }
    if (equals != std::string::npos) {
      parsed[name] = text.substr(equals + 1);
    } else if (const char* value = std::getenv(name.c_str()); value != nullptr) {
      parsed[name] = value;
    } else {
      parsed[name] = std::nullopt;
    }
  }
  return parsed;
}

void CommandInLease::TellOfSimulated(Connection& connection, const v1::Lease& lease,
                                     const CommonOptions& options) {
  v1::GetLeaseRequest request;
  request.set_lease(lease.id());
  const absl::StatusOr<v1::Lease> now = connection.Call(kGetLease, request);
  if (!now.ok() || now->sessions_ever() > lease.sessions_ever()) return;
  options.Note(
      absl::StrCat("lgpu: note: ", Printable(options.command[0]),
                   " has not attached yet, and its GPUs are simulated: only programs that use liblgpu are "
                   "limited there"));
}

/// Finds out whether the command used its lease; the result is the exit code.
absl::StatusOr<int> CommandInLease::AfterCommand(Connection& connection, const DaemonConnection& session,
                                                 const v1::Lease& lease, int code,
                                                 const CommonOptions& options) const {
  v1::GetLeaseRequest request;
  request.set_lease(lease.id());
  absl::StatusOr<v1::Lease> now = connection.Call(kGetLease, request);
  if (!now.ok() && session.generation() > 0 && session.status().ok()) {  // the one that was started since
    CommonOptions same = options;
    same.endpoint = connection.runtime_dir();
    if (absl::StatusOr<Connection> next = Connection::Open(same); next.ok()) {
      now = next->Call(kGetLease, request);
    }
  }
  // When `lease` was asked for, lgpu's own session was attached already.
  if (now.ok() && now->sessions_ever() > lease.sessions_ever()) return code;
  const std::string command = Printable(options.command[0]);
  const std::string not_limited = absl::StrCat(command, " never attached: its memory was not limited");
  if (!require_attach_) {
    if (now.ok()) options.Note("lgpu: " + not_limited);
    return code;
  }
  if (now.ok()) return absl::FailedPreconditionError(not_limited);
  return absl::Status(now.status().code(), absl::StrCat("cannot tell whether ", command,
                                                        " attached: ", std::string(now.status().message())));
}

}  // namespace lgpu::cli
