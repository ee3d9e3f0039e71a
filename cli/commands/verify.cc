#include <CLI/CLI.hpp>
#include <cstdlib>
#include <string>

#include "base/exit_codes.h"
#include "cli/commands/commands.h"
#include "cli/connection.h"
#include "cli/driver_verification.h"
#include "cli/verification.h"
#include "lgpu/status.h"
#include "proto/messages_json.h"

namespace lgpu::cli {
namespace {

class VerifyCommand final : public Command {
 public:
  CLI::App* Define(CLI::App& app) override {
    CLI::App* verb = app.add_subcommand("verify", "Prove the limit of a lease: allocate until it is refused");
    verb->add_option("--lease", lease_, "The lease (default: LGPU_LEASE)")->type_name("LEASE");
    verb->add_flag("--driver", driver_,
                   "Try every kind of call of the CUDA driver, as programs that know nothing of lgpu do");
    return verb;
  }

  absl::StatusOr<int> Run(const CommonOptions& options) override {
    const char* variable = std::getenv("LGPU_LEASE");
    if (lease_.empty() && variable != nullptr) lease_ = variable;
    if (lease_.empty()) {
      return absl::FailedPreconditionError(
          "this is not inside a lease: LGPU_LEASE is not set\ntry: lgpu run --memory 256MiB -- lgpu verify\n"
          "     lgpu verify --lease NAME");
    }
    LGPU_ASSIGN_OR_RETURN(Connection connection, Connection::Open(options));
    if (driver_) {
      LGPU_ASSIGN_OR_RETURN(const DriverVerification driver, VerifyDriver(connection, lease_, options));
      LGPU_RETURN_IF_ERROR(
          WriteOut(options.json ? JsonLine(ToJson(driver)) : FormatDriverVerification(driver, options.out)));
      return driver.holds() ? kExitOk : kExitFailure;
    }
    LGPU_ASSIGN_OR_RETURN(const Verification verification, VerifyLease(connection, lease_, options));
    LGPU_RETURN_IF_ERROR(WriteOut(options.json ? JsonLine(ToJson(verification))
                                               : FormatVerification(verification, options.out)));
    return verification.holds() ? kExitOk : kExitFailure;
  }

 private:
  std::string lease_;
  bool driver_ = false;
};

}  // namespace

std::unique_ptr<Command> MakeVerifyCommand() { return std::make_unique<VerifyCommand>(); }

VerbPage VerifyPage() {
  return {.description =
              "Allocates on every logical device of the lease until it is refused, and compares the figures "
              "with those of the daemon. With --driver a program that knows the CUDA driver alone tries to "
              "take more than the limit by every kind of call. Exit code 0 only if the limit holds.",
          .examples = {{"lgpu run -m 64MiB -- lgpu verify", "a limit made for the test"},
                       {"lgpu run -m 64MiB -- lgpu verify --driver",
                        "the same for programs that know nothing of lgpu"}}};
}

}  // namespace lgpu::cli
