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
#include "base/exit_codes.h"
#include "base/standard_files.h"
#include "base/utf8.h"
#include "cli/checkpoint_calls.h"
#include "cli/commands/command.h"
#include "cli/commands/commands.h"
#include "cli/completion.h"
#include "cli/flag_table.h"
#include "cli/isolation.h"
#include "cli/live_names.h"
#include "cli/output.h"
#include "cli/parser_errors.h"
#include "cli/suggestions.h"
#include "cli/user_config.h"
#include "lgpu/status.h"

namespace lgpu::cli {
namespace {

// A shell waits for the completion.
constexpr std::chrono::milliseconds kCompletionTimeout{1000};

std::string Variable(const char* name, const char* absent = "") {
  const char* const text = std::getenv(name);
  return text == nullptr || *text == 0 ? absent : text;
}

ColorEnvironment ColorEnvironmentOf(int fd) {
  return {.no_color = !Variable("NO_COLOR").empty(),
          .clicolor_force = !Variable("CLICOLOR_FORCE").empty() && Variable("CLICOLOR_FORCE") != "0",
          .dumb_terminal = Variable("TERM") == "dumb",
          .is_terminal = ::isatty(fd) == 1};
}

/// The flags that every verb takes, as they are written.
struct CommonFlags {
  std::string endpoint;
  std::string timeout = "10s";
  std::string color = "auto";
  bool no_color = false;
  bool json = false;
  bool json_errors = false;
  bool quiet = false;
  int verbose = 0;
  const CLI::Option* timeout_option = nullptr;
  const CLI::Option* color_option = nullptr;

  void AddTo(CLI::App& app) {
    app.add_option("--endpoint", endpoint,
                   "Runtime directory of the daemon (default: LGPU_ENDPOINT, else the "
                   "system's, else yours)")
        ->type_name("DIR");
    timeout_option = app.add_option("--timeout", timeout, "How long one answer of the daemon may take")
                         ->type_name("DUR")
                         ->capture_default_str();
    auto* colors = app.add_option("--color", color, "Colours on a terminal")
                       ->check(CLI::IsMember({"auto", "always", "never"}))
                       ->type_name("auto|always|never");
    color_option = colors;
    app.add_flag("--no-color", no_color, "The same as --color=never")->excludes(colors);
    app.add_flag("--json", json, "Print JSON");
    app.add_flag("--json-errors", json_errors, "Print errors as JSON; --json does so too");
    app.add_flag("-q,--quiet", quiet, "No notes on stderr, errors only");
    app.add_flag("-v,--verbose", verbose, "Say more on stderr");
  }

  /// The flag, then NO_COLOR and CLICOLOR_FORCE, then the file; a terminal is asked for last of all.
  void ChooseColors(const UserConfig& config, CommonOptions& options) const {
    std::string chosen = no_color ? "never" : color;
    const ColorEnvironment out = ColorEnvironmentOf(STDOUT_FILENO);
    const bool flag = no_color || color_option->count() > 0;
    if (flag) options.color_origin = "flag";
    if (!flag && (out.no_color || out.clicolor_force)) options.color_origin = "environment";
    if (!flag && !out.no_color && !out.clicolor_force && !config.color.value.empty()) {
      chosen = config.color.value;
      options.color_origin = config.color.origin;
    }
    const ColorMode mode = chosen == "never"    ? ColorMode::kNever
                           : chosen == "always" ? ColorMode::kAlways
                                                : ColorMode::kAuto;
    options.out.color = UseColor(mode, out);
    options.err.color = UseColor(mode, ColorEnvironmentOf(STDERR_FILENO));
  }

  absl::Status ChooseTimeout(const UserConfig& config, CommonOptions& options) const {
    std::string chosen = timeout;
    if (timeout_option->count() > 0) {
      options.timeout_origin = "flag --timeout";
    } else if (!config.timeout.value.empty()) {
      chosen = config.timeout.value;
      options.timeout_origin = config.timeout.origin;
    }
    absl::StatusOr<std::chrono::milliseconds> parsed = ParseDuration(chosen);
    if (parsed.ok() && parsed->count() == 0) {
      parsed = absl::InvalidArgumentError("it must be above 0\ntry: 500ms, 10s, 2m");
    }
    if (!parsed.ok()) {
      return absl::InvalidArgumentError(
          absl::StrCat(timeout_option->count() > 0 ? "--timeout" : options.timeout_origin, ": ",
                       parsed.status().message()));
    }
    options.timeout = *parsed;
    return absl::OkStatus();
  }
};

/// A verb and its place in the parser.
struct Verb {
  std::unique_ptr<Command> command;
  CLI::App* app = nullptr;
};

std::vector<Verb> DefineVerbs(CLI::App& app) {
  std::vector<Verb> verbs;
#define LGPU_MAKE_VERB(name, Word, group) verbs.push_back({Make##Word##Command()});
  LGPU_VERBS(LGPU_MAKE_VERB)
#undef LGPU_MAKE_VERB
  for (Verb& verb : verbs) {
    verb.app = verb.command->Define(app);
    verb.app->set_help_flag("-h,--help", "Show this help");
  }
  return verbs;
}

/// A command line that the parser did not take. For verbs that run a command
/// that is 125 as well: 2 may be the command's own.
int ReportWrongLine(const WrongLine& wrong, const CommonOptions& options) {
  const int exit_code = wrong.takes_command ? kExitRunFailed : kExitUsage;
  options.Report(absl::InvalidArgumentError(absl::StrCat(wrong.what, "\ntry: ", wrong.advice)), exit_code);
  return exit_code;
}

/// --help of lgpu or of the verb in the line; bare `lgpu` too.
int PrintHelp(const CLI::App& app, const std::vector<Verb>& verbs, const CommonOptions& options) {
  std::string name;
  for (const Verb& verb : verbs) {
    if (verb.app->parsed()) name = verb.app->get_name();
  }
  return WriteOut(HelpText(FlagTable(app), name, options.out.width)).ok() ? kExitOk : kExitFailure;
}

/// Refuses values that no verb can take: empty ones, as those of unset shell variables are, and text that is
/// not UTF-8. Paths and values of variables are not checked.
absl::Status CheckValues(const CLI::App& app) {
  for (const CLI::Option* option : app.get_options()) {
    if (option->count() == 0) continue;
    const std::string type = option->get_type_name();
    for (const std::string& value : option->results()) {
      if (value.empty()) {
        return absl::InvalidArgumentError(
            absl::StrCat(option->get_name(), " has an empty value\ntry: leave it out"));
      }
      if (type != "DIR" && type != "K[=V]" && !IsUtf8(value)) {
        return absl::InvalidArgumentError(
            absl::StrCat(option->get_name(), ": ", Printable(value), " is not valid UTF-8"));
      }
    }
  }
  return absl::OkStatus();
}

/// The directory that --endpoint names in a line that is being written.
std::string EndpointOf(const std::vector<std::string>& words) {
  std::string endpoint;
  for (std::size_t i = 0; i < words.size() && words[i] != "--"; ++i) {
    constexpr std::string_view kFlag = "--endpoint";
    if (words[i] == kFlag && i + 2 < words.size()) endpoint = words[i + 1];
    if (words[i].starts_with("--endpoint=")) endpoint = words[i].substr(kFlag.size() + 1);
  }
  return endpoint;
}

/// The hidden verbs, for shells and the build: `__complete SHELL -- WORD ...` and `__man [VERB]`.
std::optional<int> RunHidden(const CLI::App& app, const std::vector<std::string>& words) {
  if (words.empty()) return std::nullopt;
  std::string text;
  if (words[0] == "__complete" && words.size() >= 3) {
    CommonOptions options;
    options.timeout = kCompletionTimeout;
    const std::vector<std::string> line(words.begin() + 3, words.end());
    options.endpoint = EndpointOf(line);
    const Completion completion = Complete(app, line, LiveNamesOfDaemon(options));
    text = FormatCompletion(completion, words[1]);
  } else if (words[0] == "__man") {
    text = ManPage(FlagTable(app), words.size() > 1 ? words[1] : "");
  } else {
    return std::nullopt;
  }
  return WriteOut(text).ok() ? kExitOk : kExitFailure;
}

absl::StatusOr<int> TryVerb(const CLI::App& app, const Verb& verb, bool has_marker,
                            const CommonOptions& options) {
  LGPU_RETURN_IF_ERROR(CheckValues(app));
  LGPU_RETURN_IF_ERROR(CheckValues(*verb.app));
  if (const std::string lease = Variable("LGPU_LEASE"); !IsUtf8(lease)) {
    return absl::InvalidArgumentError(absl::StrCat("LGPU_LEASE: ", Printable(lease), " is not valid UTF-8"));
  }
  if (has_marker && !verb.command->TakesCommand()) {
    return absl::InvalidArgumentError(
        absl::StrCat(verb.app->get_name(), " takes no command after --\ntry: lgpu run -- CMD"));
  }
  return verb.command->Run(options);
}

int RunVerb(const CLI::App& app, const Verb& verb, const CommonFlags& flags, bool has_marker,
            CommonOptions& options) {
  options.endpoint = flags.endpoint;
  options.json = flags.json;
  options.json_errors = flags.json_errors;
  options.quiet = flags.quiet;
  options.verbose = flags.verbose;
  const absl::StatusOr<UserConfig> config = LoadUserConfig(UserConfigFiles(
      Variable("XDG_CONFIG_HOME"), Variable("HOME"), Variable("LGPU_CONFIG_DIR", "/etc/lgpu")));
  if (config.ok()) {
    for (const std::string& note : config->notes) options.Note("lgpu: note: " + note);
  }
  if (options.verbose > 0) options.out.width = 0;
  flags.ChooseColors(config.ok() ? *config : UserConfig(), options);
  int exit_code = kExitConfig;
  absl::Status status = config.status();
  if (status.ok()) {
    status = flags.ChooseTimeout(*config, options);
    if (status.ok()) {
      const absl::StatusOr<int> result = TryVerb(app, verb, has_marker, options);
      if (result.ok()) return *result;
      status = result.status();
    }
    exit_code = verb.command->ExitCode(status);
  } else if (verb.command->TakesCommand()) {
    exit_code = verb.command->ExitCode(status);
  }
  options.Report(status, exit_code);
  return exit_code;
}

int Main(int argc, char** argv) {
  // A parent may have left SIGPIPE ignored; by default a closed reader ends this process quietly.
  ::signal(SIGPIPE, SIG_DFL);

  CLI::App app("One GPU, many logical GPUs.", "lgpu");
  CommonFlags flags;
  CommonOptions options;
  flags.AddTo(app);
  app.set_help_flag("-h,--help", "Show this help");
  app.set_version_flag("-V,--version", std::string("lgpu ") + LGPU_VERSION, "Show the version");
  app.fallthrough();
  app.require_subcommand(1);
  const std::vector<Verb> verbs = DefineVerbs(app);

  options.out.width = TerminalWidth(Variable("COLUMNS"));
  std::vector<std::string> words(argv + 1, argv + argc);
  if (words.empty()) return PrintHelp(app, verbs, options);
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
  options.error_file = Variable("LGPU_ERROR_FILE");
  options.err.color = UseColor(ColorMode::kAuto, ColorEnvironmentOf(STDERR_FILENO));
  // The parser would take an empty value for the flag's default one.
  const auto empty = std::find_if(words.begin(), words.end(), [](const std::string& word) {
    return word.starts_with("--") && word.find('=') + 1 == word.size();
  });
  try {
    if (empty != words.end()) throw CLI::ValidationError(*empty, "its value is empty; leave it out");
    std::vector<std::string> reversed(words.rbegin(), words.rend());
    app.parse(reversed);
  } catch (const CLI::CallForHelp&) {
    return PrintHelp(app, verbs, options);
  } catch (const CLI::Success& success) {
    return app.exit(success);
  } catch (const CLI::ParseError& error) {
    options.json = std::any_of(words.begin(), words.end(), [](const std::string& word) {
      return word == "--json" || word == "--json-errors";
    });
    const auto command = has_marker ? std::optional(options.command) : std::nullopt;
    return ReportWrongLine(ExplainWrongLine(FlagTable(app), words, command, PlainParserError(error, app)),
                           options);
  }

  return RunVerb(app, *chosen(), flags, has_marker, options);
}

}  // namespace
}  // namespace lgpu::cli

int main(int argc, char** argv) {
  // Before all else: the signals and files that this process is given are the command's.
  if (argc > 1 && std::string_view(argv[1]) == lgpu::cli::kIsolatedVerb) {
    return lgpu::cli::BecomeIsolated(argc, argv);
  }
  lgpu::OpenStandardFiles();
  if (argc > 1 && std::string_view(argv[1]) == lgpu::cli::kCheckpointVerb) {
    return lgpu::cli::MakeCheckpointCall({argv + 2, argv + argc});
  }
  return lgpu::cli::Main(argc, argv);
}
