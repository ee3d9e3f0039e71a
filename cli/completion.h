#ifndef LGPU_CLI_COMPLETION_H_
#define LGPU_CLI_COMPLETION_H_

#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace CLI {
class App;
}

namespace lgpu::cli {

/// One word that could stand at the cursor.
struct Candidate {
  std::string value;
  std::string description = {};
};

/// The completions at the cursor: `words`, and `also` for words that only the shell knows.
struct Completion {
  enum class Also { kNothing, kFiles, kDirectories, kCommand };
  std::vector<Candidate> words = {};
  Also also = Also::kNothing;
};

/// Names that only the daemon knows, asked for when they are needed. Each gives nothing where no daemon
/// answers.
struct LiveNames {
  std::function<std::vector<Candidate>()> leases;
  std::function<std::vector<Candidate>()> gpus;
  /// "GPU:0" ... of a lease; empty: of LGPU_LEASE.
  std::function<std::vector<Candidate>(const std::string& lease)> devices;
};

/// `words` are those behind "lgpu" up to the cursor; the last one is the one that is being written, maybe
/// empty. Candidates begin with it.
Completion Complete(const CLI::App& app, const std::vector<std::string>& words, const LiveNames& live);

/// As the scripts below read it: "value<TAB>description" lines (zsh: "value:description" with colons of the
/// value quoted), and at the end a line ":files", ":directories", ":command" or ":nothing".
std::string FormatCompletion(const Completion& completion, std::string_view shell);

/// The script for "bash", "zsh" or "fish"; empty for another one.
std::string_view CompletionScript(std::string_view shell);

}  // namespace lgpu::cli

#endif  // LGPU_CLI_COMPLETION_H_
