#ifndef LGPU_CLI_VERB_PAGES_H_
#define LGPU_CLI_VERB_PAGES_H_

#include <array>
#include <optional>
#include <string_view>
#include <vector>

namespace lgpu::cli {

/// A command line and its effect.
struct Example {
  const char* line;
  const char* about;
};

/// The text of --help and the man page for a verb, beside its flags.
struct VerbPage {
  const char* description;
  std::vector<Example> examples;
};

/// Verbs that belong together, for the lists of --help and of the man page.
struct VerbGroup {
  const char* title;
  std::vector<std::string_view> verbs;
};
/// Every verb is in one group.
std::array<VerbGroup, 3> VerbGroups();

/// The page of a verb, or of lgpu itself for an empty word; nothing: there is no such verb.
std::optional<VerbPage> FindVerbPage(std::string_view verb);

}  // namespace lgpu::cli

#endif  // LGPU_CLI_VERB_PAGES_H_
