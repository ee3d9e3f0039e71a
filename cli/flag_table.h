#ifndef LGPU_CLI_FLAG_TABLE_H_
#define LGPU_CLI_FLAG_TABLE_H_

#include <string>
#include <vector>

#include "nlohmann/json.hpp"

namespace CLI {
class App;
}

namespace lgpu::cli {

/// One flag or positional word as the parser knows it.
struct FlagInfo {
  std::vector<std::string> names = {};  // "-m", "--memory"; a positional: its name alone
  std::string type = {};                // "SIZE"; empty: takes no value
  std::string description = {};
  std::string default_value = {};
  bool positional = false;
  bool required = false;
  bool repeated = false;        // a positional that takes any number of words
  bool optional_value = false;  // --wait or --wait=10m
};

/// One verb, or (without a name) the flags that all verbs share.
struct VerbInfo {
  std::string name = {};
  std::string description = {};
  std::vector<FlagInfo> flags = {};
  bool takes_command = false;  // behind --
};

/// The table that help, man pages and completion are made of: first the shared flags, then the verbs.
std::vector<VerbInfo> FlagTable(const CLI::App& app);

/// "lgpu.help/v1"
nlohmann::json ToJson(const std::vector<VerbInfo>& table);

/// The text of --help of a verb (empty: of lgpu itself), at most `width` columns wide.
std::string HelpText(const std::vector<VerbInfo>& table, const std::string& verb, std::size_t width);

/// The man page of a verb (empty: of lgpu itself) in roff.
std::string ManPage(const std::vector<VerbInfo>& table, const std::string& verb);

}  // namespace lgpu::cli

#endif  // LGPU_CLI_FLAG_TABLE_H_
