#include <CLI/CLI.hpp>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/exit_codes.h"
#include "cli/command_in_lease.h"
#include "cli/commands/commands.h"
#include "cli/connection.h"
#include "cli/device_flags.h"
#include "cli/idle_after_flag.h"
#include "lgpu/status.h"

namespace lgpu::cli {
namespace {

class ExecCommand final : public Command {
 public:
  CLI::App* Define(CLI::App& app) override {
    CLI::App* verb = app.add_subcommand("exec", "Run a command inside a lease that exists");
    verb->add_option("lease", lease_, "Name or id of a lease")->required()->type_name("LEASE");
    idle_after_.AddTo(*verb);
    command_.AddTo(*verb);
    return verb;
  }
  bool TakesCommand() const override { return true; }
  int ExitCode(const absl::Status&) const override { return kExitRunFailed; }

  absl::StatusOr<int> Run(const CommonOptions& options) override {
    if (options.command.empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat("exec needs a command\ntry: lgpu exec ", Printable(lease_), " -- CMD [ARGS]"));
    }
    LGPU_RETURN_IF_ERROR(command_.CheckFlags());
    LGPU_ASSIGN_OR_RETURN(const std::uint64_t idle_after_ms, idle_after_.Milliseconds());
    // Before gRPC starts its threads, which must not take the signals either.
    const ForwardedSignals signals;
    LGPU_ASSIGN_OR_RETURN(Connection connection, Connection::Open(options));
    LGPU_ASSIGN_OR_RETURN(const OwnSession session,
                          OwnSession::Open(connection, "lgpu exec", options, command_.runs_release()));
    v1::AttachLeaseRequest request;
    request.set_lease(lease_);
    request.set_idle_after_ms(idle_after_ms);
    LGPU_ASSIGN_OR_RETURN(const v1::Lease lease, connection.Call(kAttachLease, request));
    for (const std::string& line : DescribeLease(lease)) options.Note("lgpu: " + line);
    return command_.Run(signals, connection, session, lease, options);
  }

 private:
  std::string lease_;
  IdleAfterFlag idle_after_;
  CommandInLease command_{CommandInLease::Lease::kShared};
};

}  // namespace

std::unique_ptr<Command> MakeExecCommand() { return std::make_unique<ExecCommand>(); }

VerbPage ExecPage() {
  return {
      .description =
          "Runs the command inside a lease that exists, beside the programs that are in it; they share its "
          "limit. The lease stays when the command ends. Variables, signals, notes and exit codes are those "
          "of `lgpu run`. --require-attach counts the programs that attach while the command runs.",
      .examples = {{"lgpu exec train -- python3 train.py", "a program inside the lease train"},
                   {"lgpu exec \"$LGPU_LEASE\" -- ./job", "inside the lease of this shell"}}};
}

}  // namespace lgpu::cli
