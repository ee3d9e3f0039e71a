#include "cli/commands/help.h"

#include <CLI/CLI.hpp>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/exit_codes.h"
#include "cli/flag_table.h"
#include "lgpu/status.h"
#include "proto/messages_json.h"

namespace lgpu::cli {
namespace {

class HelpCommand final : public Command {
 public:
  CLI::App* Define(CLI::App& app) override {
    app_ = &app;
    CLI::App* verb = app.add_subcommand("help", "Show the flags of a verb, or all verbs");
    verb->add_option("verb", verb_, "The verb")->type_name("VERB");
    return verb;
  }

  absl::StatusOr<int> Run(const CommonOptions& options) override {
    const CLI::App* about = app_;
    for (const CLI::App* verb : app_->get_subcommands([](const CLI::App*) { return true; })) {
      if (verb->get_name() == verb_) about = verb;
    }
    if (!verb_.empty() && about == app_) {
      return absl::InvalidArgumentError(
          absl::StrCat("there is no verb ", Printable(verb_), "\ntry: lgpu help"));
    }
    LGPU_RETURN_IF_ERROR(WriteOut(options.json ? JsonLine(ToJson(FlagTable(*app_)))
                                               : about->help(about == app_ ? "" : app_->get_name())));
    return kExitOk;
  }

 private:
  CLI::App* app_ = nullptr;
  std::string verb_;
};

}  // namespace

std::unique_ptr<Command> MakeHelpCommand() { return std::make_unique<HelpCommand>(); }

}  // namespace lgpu::cli
