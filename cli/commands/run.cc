#include <signal.h>
#include <sys/eventfd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/exit_codes.h"
#include "cli/child_process.h"
#include "cli/commands/commands.h"
#include "cli/connection.h"
#include "cli/device_flags.h"
#include "cli/driver_files.h"
#include "cli/driver_shim.h"
#include "cli/run_watch.h"
#include "lgpu/status.h"

namespace lgpu::cli {
namespace {

using Variables = SpawnOptions::Environment;

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

class RunCommand final : public Command {
 public:
  CLI::App* Define(CLI::App& app) override {
    CLI::App* verb = app.add_subcommand("run", "Run a command inside a lease of its own");
    flags_.AddTo(*verb);
    verb->add_flag("--require-attach", require_attach_,
                   "Fail with 125 if the command never used the lease (its memory was not limited)");
    verb->add_flag("--isolate", isolate_,
                   "Put lgpu over the driver's files in a mount namespace of the command's own, which limits "
                   "programs that clear their environment or name the driver's folder as well");
    memory_wait_flag_ = verb->add_option("--memory-wait", memory_wait_text_,
                                         "How long allocations of a command that knows nothing of lgpu wait "
                                         "for a full GPU, one after the other; default: 2s. After a wait in "
                                         "vain they do not wait for 5s")
                            ->type_name("TIME");
    soft_flag_ = verb->add_flag(
        "--soft-placement,!--no-soft-placement", soft_placement_,
        "Let ops run elsewhere if they cannot run where they were asked to (LGPU_SOFT_PLACEMENT)");
    verb->add_flag("--log-device-placement", log_placement_,
                   "A line for every op with its device (LGPU_LOG_DEVICE_PLACEMENT)");
    verb->add_option("-e,--env", variables_,
                     "Set a variable for the command; a name alone keeps what this environment has")
        ->type_name("K[=V]")
        ->expected(1)
        ->take_all();
    return verb;
  }
  bool TakesCommand() const override { return true; }
  // Like env and timeout: every failure of our own is 125, so that the command's codes stay its own.
  int ExitCode(const absl::Status&) const override { return kExitRunFailed; }

  absl::StatusOr<int> Run(const CommonOptions& options) override {
    if (options.command.empty()) {
      return absl::InvalidArgumentError("run needs a command\ntry: lgpu run --memory 256MiB -- CMD [ARGS]");
    }
    LGPU_ASSIGN_OR_RETURN(Variables variables, ParseVariables());
    if (memory_wait_flag_->count() > 0) {
      const absl::StatusOr<std::chrono::milliseconds> parsed = ParseDuration(memory_wait_text_);
      if (!parsed.ok()) {
        return absl::InvalidArgumentError(absl::StrCat("--memory-wait: ", parsed.status().message()));
      }
      memory_wait_ = *parsed;
    }
    // Before gRPC starts its threads, which must not take the signals either.
    const ForwardedSignals signals;
    LGPU_RETURN_IF_ERROR(flags_.Spec().status());  // errors in the flags, before the daemon is asked
    LGPU_ASSIGN_OR_RETURN(Connection connection, Connection::Open(options));
    LGPU_ASSIGN_OR_RETURN(v1::CreateLeaseRequest request, MakeCreateRequest(flags_, connection, options));
    const UniqueFd changed(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    if (!changed) return absl::ResourceExhaustedError(absl::StrCat("eventfd: ", std::strerror(errno)));
    LGPU_ASSIGN_OR_RETURN(
        const std::unique_ptr<DaemonConnection> session,
        OpenSession(connection.runtime_dir(), "lgpu run", options.timeout,
                    [fd = changed.get()] { [[maybe_unused]] const int written = ::eventfd_write(fd, 1); }));
    connection.SetSessionToken(session->token());
    std::optional<int> stopped_by;
    const absl::StatusOr<v1::Lease> made = CreateLease(flags_, connection, request, options, stopped_by);
    if (stopped_by) {
      const int code = 128 + *stopped_by;
      options.Report(made.status(), code);
      return code;
    }
    LGPU_ASSIGN_OR_RETURN(const v1::Lease lease, made);
    for (const std::string& line : DescribeLease(lease)) options.Note("lgpu: " + line);

    LGPU_ASSIGN_OR_RETURN(const LeaseEnvironment environment, EnvironmentFor(lease, connection, variables));
    for (const std::string& note : environment.notes) options.Note("lgpu: note: " + note);
    AddVariables(environment, variables);
    if (soft_flag_->count() > 0) variables["LGPU_SOFT_PLACEMENT"] = soft_placement_ ? "1" : "0";
    if (log_placement_) variables["LGPU_LOG_DEVICE_PLACEMENT"] = "1";
    const std::optional<Isolation> isolation = IsolationFor(environment, variables, options);
    absl::StatusOr<ChildProcess> child = ChildProcess::Spawn(signals, options.command, variables, isolation);
    if (absl::IsFailedPrecondition(child.status())) return child.status();
    if (!child.ok()) {
      const std::string why =
          absl::StrCat("cannot run ", Printable(options.command[0]), ": ", child.status().message());
      const bool not_found = absl::IsNotFound(child.status());
      const int code = not_found ? kExitCommandNotFound : kExitNotExecutable;
      options.Report(not_found ? absl::NotFoundError(why) : absl::PermissionDeniedError(why), code);
      return code;
    }
    SessionNews news(*session, options);
    RunWatch watch(connection, lease, child->pid(), options);
    LGPU_ASSIGN_OR_RETURN(WakeUp wake_up, WakeUp::Make(changed.get()));
    std::uint64_t generation = session->generation();
    const auto look = [&] {
      if (!environment.has_shim || !session->status().ok()) return;
      // If the successor cannot be asked now, the next look tries again.
      const std::uint64_t now = session->generation();
      if (generation != now && watch.DaemonStartedAgain()) generation = now;
      watch.Look();
    };
    const auto tell = [&] {
      if (wake_up.TakeTick()) {
        look();
        TellOfSimulated(connection, lease, options);
        if (require_attach_ && watch.FoundBypass()) ::kill(child->pid(), SIGTERM);
      }
      eventfd_t ignored;
      return ::eventfd_read(changed.get(), &ignored) != 0 || news.Tell();
    };
    LGPU_ASSIGN_OR_RETURN(const int code, child->Wait(signals, wake_up.fd(), tell));
    look();
    if (require_attach_ && watch.FoundBypass()) {
      return absl::FailedPreconditionError(
          absl::StrCat(Printable(options.command[0]),
                       " used a GPU past lgpu, so its memory was not limited; it was ended"));
    }
    LGPU_ASSIGN_OR_RETURN(const int result, AfterCommand(connection, *session, lease, code, options));
    // A daemon that comes later sees that this process is gone.
    if (session->status().ok()) session->Close().IgnoreError();
    return result;
  }

 private:
  static absl::StatusOr<LeaseEnvironment> EnvironmentFor(const v1::Lease& lease, const Connection& connection,
                                                         const Variables& given) {
    return EnvironmentOf(lease, connection.runtime_dir(),
                         [&given](const std::string& name) { return ValueOf(name, given); });
  }
  /// The value of a variable in the command's environment.
  static std::optional<std::string> ValueOf(const std::string& name, const Variables& given) {
    const auto found = given.find(name);
    if (found != given.end()) return found->second;
    const char* const value = std::getenv(name.c_str());
    return value == nullptr ? std::nullopt : std::optional<std::string>(value);
  }
  /// The files that --isolate covers; nothing without it, and where the command has no driver of the lease's.
  std::optional<Isolation> IsolationFor(const LeaseEnvironment& environment, const Variables& variables,
                                        const CommonOptions& options) const {
    if (!isolate_) return std::nullopt;
    if (!environment.has_shim) {
      options.Note("lgpu: note: --isolate changes nothing: no driver of this lease is to be covered");
      return std::nullopt;
    }
    return Isolation{.folder = environment.shim_folder,
                     .covered = FilesToCover(ValueOf("LD_LIBRARY_PATH", variables).value_or(""))};
  }
  /// --env overrides these variables, except that the two paths take both values.
  void AddVariables(const LeaseEnvironment& environment, Variables& variables) const {
    for (const char* const path : {"LD_LIBRARY_PATH", "LD_PRELOAD"}) {
      if (environment.variables.contains(path)) variables.erase(path);
    }
    variables.insert(environment.variables.begin(), environment.variables.end());
    if (environment.has_shim && memory_wait_flag_->count() > 0) {
      variables["LGPU_MEMORY_WAIT_MS"] = absl::StrCat(memory_wait_.count());
    }
  }

  absl::StatusOr<Variables> ParseVariables() const {
    Variables parsed;
    for (const std::string& text : variables_) {
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

  /// Once, soon after the start: a program that takes memory from a driver is not limited on simulated GPUs.
  void TellOfSimulated(Connection& connection, const v1::Lease& lease, const CommonOptions& options) {
    if (HasRealGpu(lease) || std::exchange(has_told_of_simulated_, true)) return;
    v1::GetLeaseRequest request;
    request.set_lease(lease.id());
    const absl::StatusOr<v1::Lease> now = connection.Call(kGetLease, request);
    if (!now.ok() || now->sessions_ever() > 1) return;
    options.Note(
        absl::StrCat("lgpu: note: ", Printable(options.command[0]),
                     " has not attached yet, and its GPUs are simulated: only programs that use liblgpu are "
                     "limited there"));
  }

  /// Finds out whether the command used its lease; the result is the exit code.
  absl::StatusOr<int> AfterCommand(Connection& connection, const DaemonConnection& session,
                                   const v1::Lease& lease, int code, const CommonOptions& options) const {
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
    // The first session is lgpu's own.
    if (now.ok() && now->sessions_ever() > 1) return code;
    const std::string command = Printable(options.command[0]);
    const std::string not_limited = absl::StrCat(command, " never attached: its memory was not limited");
    if (!require_attach_) {
      if (now.ok()) options.Note("lgpu: " + not_limited);
      return code;
    }
    if (now.ok()) return absl::FailedPreconditionError(not_limited);
    return absl::Status(
        now.status().code(),
        absl::StrCat("cannot tell whether ", command, " attached: ", std::string(now.status().message())));
  }

  DeviceFlags flags_;
  bool require_attach_ = false;
  bool isolate_ = false;
  bool has_told_of_simulated_ = false;
  const CLI::Option* memory_wait_flag_ = nullptr;
  std::string memory_wait_text_ = "2s";
  std::chrono::milliseconds memory_wait_{};
  const CLI::Option* soft_flag_ = nullptr;  // tells whether the flag was given
  bool soft_placement_ = true;
  bool log_placement_ = false;
  std::vector<std::string> variables_;
};

}  // namespace

std::unique_ptr<Command> MakeRunCommand() { return std::make_unique<RunCommand>(); }

}  // namespace lgpu::cli
