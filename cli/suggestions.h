#ifndef LGPU_CLI_SUGGESTIONS_H_
#define LGPU_CLI_SUGGESTIONS_H_

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cli/flag_table.h"

namespace lgpu::cli {

/// A command line that was not understood: the error, and the line to write.
struct WrongLine {
  bool takes_command = false;  // the verb of the line does
  std::string what = {};
  std::string advice = {};  // without "try: "
};

/// Explains a line that the parser refused. `table`: of FlagTable; `words`: those before `--`; `command`:
/// those behind it, absent without `--`; `parser_says`: its message, for lines without a better explanation.
WrongLine ExplainWrongLine(const std::vector<VerbInfo>& table, const std::vector<std::string>& words,
                           const std::optional<std::vector<std::string>>& command,
                           std::string_view parser_says);

/// Advice for a word that is no verb: the lgpu command of another tool's verb ("top", "status"), or the verb
/// that is spelled most alike. Empty: nothing is near.
std::string SuggestForVerb(std::string_view word, const std::vector<VerbInfo>& table);

/// How many letters must be inserted, deleted, replaced or swapped with their neighbour.
std::size_t EditDistance(std::string_view a, std::string_view b);

}  // namespace lgpu::cli

#endif  // LGPU_CLI_SUGGESTIONS_H_
