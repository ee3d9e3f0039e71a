#include "cli/completion.h"

#include <CLI/CLI.hpp>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/exit_codes.h"
#include "cli/commands/commands.h"
#include "lgpu/status.h"
#include "proto/messages_json.h"

namespace lgpu::cli {
namespace {

class CompletionCommand final : public Command {
 public:
  CLI::App* Define(CLI::App& app) override {
    CLI::App* verb = app.add_subcommand("completion", "Print the completion script of a shell");
    verb->add_option("shell", shell_, "The shell that is to complete")
        ->required()
        ->type_name("bash|zsh|fish");
    return verb;
  }

  absl::StatusOr<int> Run(const CommonOptions& options) override {
    const std::string_view script = CompletionScript(shell_);
    if (script.empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat("there is no completion for ", Printable(shell_), "\ntry: bash, zsh or fish"));
    }
    const nlohmann::json json = {
        {"schema", "lgpu.completion/v1"}, {"shell", shell_}, {"script", std::string(script)}};
    LGPU_RETURN_IF_ERROR(WriteOut(options.json ? JsonLine(json) : std::string(script)));
    return kExitOk;
  }

 private:
  std::string shell_;
};

}  // namespace

std::unique_ptr<Command> MakeCompletionCommand() { return std::make_unique<CompletionCommand>(); }

VerbPage CompletionPage() {
  return {.description = "Prints a script that completes verbs, flags and the names of leases and GPUs.",
          .examples = {{"source <(lgpu completion bash)", "in ~/.bashrc"}}};
}

}  // namespace lgpu::cli
