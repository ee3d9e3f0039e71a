#include <signal.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cli/commands/command.h"
#include "cli/commands/completion.h"
#include "cli/commands/create.h"
#include "cli/commands/doctor.h"
#include "cli/commands/events.h"
#include "cli/commands/explain.h"
#include "cli/commands/help.h"
#include "cli/commands/inspect.h"
#include "cli/commands/ls.h"
#include "cli/commands/placements.h"
#include "cli/commands/ps.h"
#include "cli/commands/resize.h"
#include "cli/commands/rm.h"
#include "cli/commands/run.h"
#include "cli/commands/verify.h"
#include "cli/commands/version.h"
#include "cli/completion.h"
#include "cli/errors.h"
#include "cli/flag_table.h"
#include "cli/live_names.h"
#include "cli/output.h"
#include "proto/exit_codes.h"
#include "proto/messages_json.h"
#include "proto/standard_files.h"

namespace lgpu::cli {
namespace {

// A shell waits for it.
constexpr std::chrono::milliseconds kCompletionTimeout{1000};

/// The flags that every verb takes, as they are written.
struct CommonFlags {
  std::string endpoint;
  std::string timeout = "10s";
  std::string color = "auto";
  bool no_color = false;
  bool json = false;
  bool quiet = false;
  int verbose = 0;

  void AddTo(CLI::App& app) {
    app.add_option("--endpoint", endpoint,
                   "Runtime directory of the daemon (default: LGPU_ENDPOINT, else the "
                   "system's, else yours)")
        ->type_name("DIR");
    app.add_option("--timeout", timeout, "How long one answer of the daemon may take")
        ->type_name("DUR")
        ->capture_default_str();
    app.add_option("--color", color, "Colours on a terminal")
        ->check(CLI::IsMember({"auto", "always", "never"}))
        ->type_name("auto|always|never");
    app.add_flag("--no-color", no_color, "The same as --color=never");
    app.add_flag("--json", json, "Print JSON");
    app.add_flag("-q,--quiet", quiet, "No notes on stderr, errors only");
    app.add_flag("-v,--verbose", verbose, "Say more on stderr");
  }

  ColorMode Mode() const {
    if (no_color || color == "never") return ColorMode::kNever;
    return color == "always" ? ColorMode::kAlways : ColorMode::kAuto;
  }
};

ColorEnvironment ColorEnvironmentOf(int fd) {
  const auto value = [](const char* name) {
    const char* text = std::getenv(name);
    return std::string_view(text == nullptr ? "" : text);
  };
  return {.no_color = !value("NO_COLOR").empty(),
          .clicolor_force = !value("CLICOLOR_FORCE").empty() && value("CLICOLOR_FORCE") != "0",
          .dumb_terminal = value("TERM") == "dumb",
          .is_terminal = ::isatty(fd) == 1};
}

/// A verb and its place in the parser.
struct Verb {
  std::unique_ptr<Command> command;
  CLI::App* app = nullptr;
};

std::vector<Verb> DefineVerbs(CLI::App& app) {
  std::vector<Verb> verbs;
  for (auto* const make : {&MakeRunCommand, &MakeLsCommand, &MakePsCommand, &MakeCreateCommand,
                           &MakeResizeCommand, &MakeRmCommand, &MakeInspectCommand, &MakePlacementsCommand,
                           &MakeExplainCommand, &MakeEventsCommand, &MakeVerifyCommand, &MakeDoctorCommand,
                           &MakeCompletionCommand, &MakeVersionCommand, &MakeHelpCommand}) {
    verbs.push_back({make()});
  }
  for (Verb& verb : verbs) {
    verb.app = verb.command->Define(app);
    verb.app->footer("Flags that every verb takes (--json, --endpoint, --timeout, -q, ...): lgpu --help");
  }
  return verbs;
}

void ReportError(const absl::Status& status, int exit_code, const CommonOptions& options) {
  const std::string text =
      options.json ? JsonLine(ErrorToJson(status, exit_code)) : FormatError(status, options.err);
  std::fputs(text.c_str(), stderr);
}

/// A command line that the parser did not take. For `run` that is 125 as well: 2 may be the command's own.
int ReportParseError(std::string_view what, std::string_view verb, const CommonOptions& options) {
  const int exit_code = verb == "run" ? kExitRunFailed : kExitUsage;
  const std::string help = verb.empty() ? "lgpu --help" : absl::StrCat("lgpu ", std::string(verb), " --help");
  ReportError(absl::InvalidArgumentError(absl::StrCat(std::string(what), "\ntry: ", help)), exit_code,
              options);
  return exit_code;
}

/// What shells and the build ask, and no person: `__complete SHELL -- WORD ...` and `__man [VERB]`.
std::optional<int> RunHidden(const CLI::App& app, const std::vector<std::string>& words) {
  if (words.empty()) return std::nullopt;
  std::string text;
  if (words[0] == "__complete" && words.size() >= 3) {
    CommonOptions options;
    options.timeout = kCompletionTimeout;
    const Completion completion = Complete(app, {words.begin() + 3, words.end()}, LiveNamesOfDaemon(options));
    text = FormatCompletion(completion, words[1]);
  } else if (words[0] == "__man") {
    text = ManPage(FlagTable(app), words.size() > 1 ? words[1] : "");
  } else {
    return std::nullopt;
  }
  return WriteOut(text).ok() ? kExitOk : kExitFailure;
}

int Main(int argc, char** argv) {
  // A parent may have left it ignored; a reader that goes away ends this process quietly.
  ::signal(SIGPIPE, SIG_DFL);

  CLI::App app("One GPU, many logical GPUs.", "lgpu");
  CommonFlags flags;
  CommonOptions options;
  flags.AddTo(app);
  app.set_version_flag("-V,--version", std::string("lgpu ") + LGPU_VERSION);
  app.fallthrough();
  app.require_subcommand(1);
  app.footer("Flags may stand before or after the verb. lgpu help VERB shows the flags of a verb.");
  const std::vector<Verb> verbs = DefineVerbs(app);

  std::vector<std::string> words(argv + 1, argv + argc);
  if (const std::optional<int> code = RunHidden(app, words)) return *code;
  const auto marker = std::find(words.begin(), words.end(), "--");
  const bool has_marker = marker != words.end();
  if (has_marker) {
    options.command.assign(marker + 1, words.end());
    words.erase(marker, words.end());
  }

  const auto chosen = [&]() -> const Verb* {
    for (const Verb& verb : verbs) {
      if (verb.app->parsed()) return &verb;
    }
    return nullptr;
  };
  options.err.color = UseColor(ColorMode::kAuto, ColorEnvironmentOf(STDERR_FILENO));
  try {
    std::vector<std::string> reversed(words.rbegin(), words.rend());
    app.parse(reversed);
  } catch (const CLI::Success& success) {
    return app.exit(success);
  } catch (const CLI::ParseError& error) {
    // The first word that names a verb: after a failed parse the parser itself may not know.
    const auto is_verb = [&](const std::string& word) {
      return std::any_of(verbs.begin(), verbs.end(),
                         [&](const Verb& verb) { return verb.app->get_name() == word; });
    };
    const auto verb = std::find_if(words.begin(), words.end(), is_verb);
    options.json = std::find(words.begin(), words.end(), "--json") != words.end();
    if (verb != words.end()) return ReportParseError(error.what(), *verb, options);
    const bool other_verb = !words.empty() && !words[0].starts_with("-");
    return ReportParseError(
        other_verb ? absl::StrCat("there is no verb ", Printable(words[0])) : error.what(), "", options);
  }

  const Verb& verb = *chosen();
  options.endpoint = flags.endpoint;
  options.json = flags.json;
  options.quiet = flags.quiet;
  options.verbose = flags.verbose;
  options.out.color = UseColor(flags.Mode(), ColorEnvironmentOf(STDOUT_FILENO));
  options.err.color = UseColor(flags.Mode(), ColorEnvironmentOf(STDERR_FILENO));

  absl::StatusOr<int> result = kExitOk;
  const absl::StatusOr<std::chrono::milliseconds> timeout = ParseDuration(flags.timeout);
  if (!timeout.ok()) {
    result = absl::InvalidArgumentError(absl::StrCat("--timeout: ", timeout.status().message()));
  } else if (has_marker && !verb.command->TakesCommand()) {
    result = absl::InvalidArgumentError(
        absl::StrCat(verb.app->get_name(), " takes no command after --\ntry: lgpu run -- CMD"));
  } else {
    options.timeout = *timeout;
    result = verb.command->Run(options);
  }
  if (result.ok()) return *result;
  const int exit_code = verb.command->ExitCode(result.status());
  ReportError(result.status(), exit_code, options);
  return exit_code;
}

}  // namespace
}  // namespace lgpu::cli

int main(int argc, char** argv) {
  lgpu::OpenStandardFiles();
  return lgpu::cli::Main(argc, argv);
}
