#include <algorithm>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "cli/flag_table.h"
#include "cli/output.h"
#include "cli/verb_pages.h"

namespace lgpu::cli {
namespace {

constexpr std::size_t kLeftColumn = 28;

/// "  LEFT      RIGHT", on two lines where LEFT is long.
std::string Row(const std::string& left, std::string_view right, std::size_t width) {
  std::string text = "  " + left;
  if (text.size() + 2 > kLeftColumn) {
    absl::StrAppend(&text, "\n", std::string(kLeftColumn, ' '));
  } else {
    text.append(kLeftColumn - text.size(), ' ');
  }
  return text + Wrap(right, width, kLeftColumn, kLeftColumn) + "\n";
}

std::string FlagRow(const FlagInfo& flag, std::size_t width) {
  std::string left =
      flag.positional ? (flag.type.empty() ? flag.names[0] : flag.type) : absl::StrJoin(flag.names, ", ");
  if (!flag.positional && flag.optional_value) absl::StrAppend(&left, "[=", flag.type, "]");
  if (!flag.positional && !flag.optional_value && !flag.type.empty()) absl::StrAppend(&left, " ", flag.type);
  std::string right = flag.description;
  if (!flag.default_value.empty()) absl::StrAppend(&right, " (default: ", flag.default_value, ")");
  return Row(left, right, width);
}

std::string VerbRow(const std::vector<VerbInfo>& table, std::string_view name, std::size_t width) {
  const auto found =
      std::find_if(table.begin(), table.end(), [&](const VerbInfo& verb) { return verb.name == name; });
  return found == table.end() ? "" : Row(found->name, found->description, width);
}

std::string Rows(const VerbInfo& verb, bool positional, std::size_t width) {
  std::string text;
  for (const FlagInfo& flag : verb.flags) {
    if (flag.positional == positional) text += FlagRow(flag, width);
  }
  return text;
}

std::string Usage(const VerbInfo& verb) {
  std::string text = absl::StrCat("Usage: lgpu ", verb.name, " [FLAGS]");
  for (const FlagInfo& flag : verb.flags) {
    if (!flag.positional) continue;
    const std::string word = (flag.type.empty() ? flag.names[0] : flag.type) + (flag.repeated ? " ..." : "");
    absl::StrAppend(&text, " ", flag.required ? word : "[" + word + "]");
  }
  return text + (verb.takes_command ? " -- CMD [ARGS]" : "") + "\n";
}

std::string Examples(const VerbPage& page, std::size_t width) {
  std::string text = "\nExamples:\n";
  for (const Example& example : page.examples) {
    absl::StrAppend(&text, "  ", example.line, "\n", std::string(6, ' '), Wrap(example.about, width, 6, 6),
                    "\n");
  }
  return text;
}

}  // namespace

std::string HelpText(const std::vector<VerbInfo>& table, const std::string& verb, std::size_t width) {
  const auto found =
      std::find_if(table.begin(), table.end(), [&](const VerbInfo& entry) { return entry.name == verb; });
  if (found == table.end()) return "";
  const std::optional<VerbPage> page = FindVerbPage(verb);
  std::string text = verb.empty() ? "Usage: lgpu VERB [FLAGS] [ARGS]\n" : Usage(*found);
  if (page) absl::StrAppend(&text, "\n", Wrap(page->description, width, 0, 0), "\n");
  if (verb.empty()) {
    for (const VerbGroup& group : VerbGroups()) {
      absl::StrAppend(&text, "\n", group.title, ":\n");
      for (const std::string_view verb_name : group.verbs) text += VerbRow(table, verb_name, width);
    }
  }
  const std::string words = Rows(*found, true, width);
  if (!words.empty()) absl::StrAppend(&text, "\nArguments:\n", words);
  absl::StrAppend(&text, verb.empty() ? "\nFlags of every verb, before or behind it:\n" : "\nFlags:\n",
                  Rows(*found, false, width));
  if (page) text += Examples(*page, width);
  absl::StrAppend(&text, "\n",
                  verb.empty()
                      ? "The flags of a verb: lgpu help VERB\n"
                      : "Flags of every verb (--json, --endpoint, --timeout, -q, ...): lgpu --help\n");
  return text;
}

}  // namespace lgpu::cli
