#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/exit_codes.h"
#include "cli/commands/commands.h"
#include "cli/flag_table.h"
#include "cli/suggestions.h"
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
    const std::vector<VerbInfo> table = FlagTable(*app_);
    const std::string text = HelpText(table, verb_, options.out.width);
    if (text.empty()) {
      const std::string near = SuggestForVerb(verb_, table);
      return absl::InvalidArgumentError(
          absl::StrCat("lgpu has no verb ", Printable(verb_), "\ntry: lgpu ", near.empty() ? "help" : near));
    }
    LGPU_RETURN_IF_ERROR(WriteOut(options.json ? JsonLine(ToJson(table)) : text));
    return kExitOk;
  }

 private:
  CLI::App* app_ = nullptr;
  std::string verb_;
};

}  // namespace

std::unique_ptr<Command> MakeHelpCommand() { return std::make_unique<HelpCommand>(); }

VerbPage HelpPage() {
  return {.description = "Shows the verbs, or the flags of one verb.",
          .examples = {{"lgpu help run", "the flags of run"}}};
}

}  // namespace lgpu::cli
