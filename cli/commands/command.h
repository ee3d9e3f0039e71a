#ifndef LGPU_CLI_COMMANDS_COMMAND_H_
#define LGPU_CLI_COMMANDS_COMMAND_H_

#include <chrono>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "cli/output.h"

namespace CLI {
class App;
}

namespace lgpu::cli {

/// The flags that all commands share, ready to use.
struct CommonOptions {
  std::string endpoint;  // empty: LGPU_ENDPOINT, else the system's daemon, else the user's
  std::chrono::milliseconds timeout = std::chrono::seconds(10);  // of one call
  bool json = false;
  bool json_errors = false;  // on stderr; --json means them too
  std::string error_file;    // LGPU_ERROR_FILE: errors go there too, as JSON; empty: nowhere
  bool quiet = false;        // no notes on stderr
  int verbose = 0;
  Style out;                         // of stdout
  Style err;                         // of stderr
  std::vector<std::string> command;  // the words after `--`
  // The origins of these values, for doctor: "flag --timeout", a place in a file, "default".
  std::string timeout_origin = "default";
  std::string color_origin = "default";

  /// A line for people on stderr, unless --quiet.
  void Note(std::string_view line) const;
  /// As Note, also with --quiet.
  void Error(std::string_view line) const;
  /// Reports a failure of lgpu itself, for people or as JSON.
  void Report(const absl::Status& status, int exit_code) const;
};

/// A Command is one verb of lgpu. main defines all, lets the command line choose one and runs it once.
class Command {
 public:
  virtual ~Command() = default;
  Command(const Command&) = delete;
  Command& operator=(const Command&) = delete;

  /// Adds the verb with its flags to `app`; both outlive the parse.
  virtual CLI::App* Define(CLI::App& app) = 0;
  /// The exit code of the process, or an error that main shows.
  virtual absl::StatusOr<int> Run(const CommonOptions& options) = 0;
  /// Exit code of an error that Run returned.
  virtual int ExitCode(const absl::Status& status) const;
  /// True if words after `--` belong to the verb.
  virtual bool TakesCommand() const { return false; }

 protected:
  Command() = default;
};

}  // namespace lgpu::cli

#endif  // LGPU_CLI_COMMANDS_COMMAND_H_
