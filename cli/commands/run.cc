#include <CLI/CLI.hpp>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/exit_codes.h"
#include "cli/command_in_lease.h"
#include "cli/commands/commands.h"
#include "cli/connection.h"
#include "cli/device_flags.h"
#include "lgpu/status.h"

namespace lgpu::cli {
namespace {

class RunCommand final : public Command {
 public:
  CLI::App* Define(CLI::App& app) override {
    CLI::App* verb = app.add_subcommand("run", "Run a command inside a lease of its own");
    flags_.AddTo(*verb);
    command_.AddTo(*verb);
    return verb;
  }
  bool TakesCommand() const override { return true; }
  // Like env and timeout: every failure of our own is 125, so that the command's codes stay its own.
  int ExitCode(const absl::Status&) const override { return kExitRunFailed; }

  absl::StatusOr<int> Run(const CommonOptions& options) override {
    if (options.command.empty()) {
      return absl::InvalidArgumentError("run needs a command\ntry: lgpu run --memory 256MiB -- CMD [ARGS]");
    }
    LGPU_RETURN_IF_ERROR(command_.CheckFlags());
    // Before gRPC starts its threads, which must not take the signals either.
    const ForwardedSignals signals;
    LGPU_RETURN_IF_ERROR(flags_.Spec().status());  // errors in the flags, before the daemon is asked
    LGPU_ASSIGN_OR_RETURN(Connection connection, Connection::Open(options));
    LGPU_ASSIGN_OR_RETURN(v1::CreateLeaseRequest request, MakeCreateRequest(flags_, connection, options));
    LGPU_ASSIGN_OR_RETURN(const OwnSession session,
                          OwnSession::Open(connection, "lgpu run", options, command_.runs_release()));
    NoteOuterLease(options);
    std::optional<int> stopped_by;
    const absl::StatusOr<v1::Lease> made = CreateLease(flags_, connection, request, options, stopped_by);
    if (stopped_by) {
      const int code = 128 + *stopped_by;
      options.Report(made.status(), code);
      return code;
    }
    LGPU_ASSIGN_OR_RETURN(const v1::Lease lease, made);
    for (const std::string& line : DescribeLease(lease)) options.Note("lgpu: " + line);
    return command_.Run(signals, connection, session, lease, options);
  }

 private:
  /// Inside a lease `run` makes a second lease, which the user may not expect.
  static void NoteOuterLease(const CommonOptions& options) {
    const char* const outer = std::getenv("LGPU_LEASE");
    if (outer == nullptr || *outer == 0) return;
    const std::string name = Printable(outer);
    options.Note(absl::StrCat("lgpu: note: LGPU_LEASE=", name, " is set, but lgpu run makes a new lease. ",
                              "To run in the lease ", name, ": lgpu exec ", name, " -- CMD"));
  }

  DeviceFlags flags_;
  CommandInLease command_{CommandInLease::Lease::kOwn};
};

}  // namespace

std::unique_ptr<Command> MakeRunCommand() { return std::make_unique<RunCommand>(); }

VerbPage RunPage() {
  return {.description =
              "Makes a lease, runs the command inside it, and ends the lease when the command ends. The "
              "command gets LGPU_LEASE, LGPU_ENDPOINT and CUDA_VISIBLE_DEVICES. A command that sets the last "
              "one itself counts the lease's GPUs, from 0. Signals are passed on. A command that never "
              "attaches to the lease is not limited; a line on stderr then says so.",
          .examples = {
              {"lgpu run -m 2GiB -- python3 train.py", "one logical GPU of 2 GiB"},
              {"lgpu run -n 2 -m 25% -- ./towers", "two logical GPUs, each a quarter of its card"},
              {"lgpu run -m 8GiB --preallocate --wait=10m -- ./job",
               "set 8 GiB aside; wait up to 10 minutes for them"},
              {"lgpu run -m 1GiB -e SEED=7 -e HOME -- ./job", "set one variable, pass another one through"}}};
}

}  // namespace lgpu::cli
