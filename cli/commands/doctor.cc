#include "cli/doctor.h"

#include <CLI/CLI.hpp>

#include "base/exit_codes.h"
#include "cli/commands/commands.h"
#include "lgpu/status.h"
#include "proto/messages_json.h"

namespace lgpu::cli {
namespace {

class DoctorCommand final : public Command {
 public:
  CLI::App* Define(CLI::App& app) override {
    CLI::App* verb = app.add_subcommand("doctor", "Check daemon, rights, GPUs, variables, and the ledger");
    verb->add_flag("!--no-self-test", self_test_, "Make no lease and run no op");
    return verb;
  }

  absl::StatusOr<int> Run(const CommonOptions& options) override {
    const Examination examination = Examine(options, self_test_);
    LGPU_RETURN_IF_ERROR(
        WriteOut(options.json ? JsonLine(ToJson(examination)) : FormatExamination(examination, options)));
    return examination.Count(Check::Level::kFail) == 0 ? kExitOk : kExitFailure;
  }

 private:
  bool self_test_ = true;
};

}  // namespace

std::unique_ptr<Command> MakeDoctorCommand() { return std::make_unique<DoctorCommand>(); }

VerbPage DoctorPage() {
  return {.description =
              "Checks the daemon, your rights, the GPUs, variables and the daemon's ledger, and runs a "
              "self-test. Exit code 1 if a check failed.",
          .examples = {{"lgpu doctor -v", "with all values in effect and where each comes from"}}};
}

}  // namespace lgpu::cli
