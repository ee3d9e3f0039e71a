#include "cli/flag_table.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <optional>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "cli/verb_pages.h"

namespace lgpu::cli {
namespace {

FlagInfo Describe(const CLI::Option& option) {
  FlagInfo info;
  info.positional = option.get_positional();
  if (info.positional) {
    info.names = {option.get_name(true)};
  } else {
    for (const std::string& name : option.get_snames()) info.names.push_back("-" + name);
    for (const std::string& name : option.get_lnames()) info.names.push_back("--" + name);
  }
  info.optional_value = option.get_items_expected_max() == 0 && !option.get_type_name().empty();
  // Behind a colon the parser adds the names of its checks.
  const std::string type = option.get_type_name().substr(0, option.get_type_name().find(':'));
  if (option.get_items_expected_max() > 0 || info.optional_value) info.type = type;
  info.description = option.get_description();
  if (!info.optional_value) info.default_value = option.get_default_str();
  info.required = option.get_required();
  info.repeated = info.positional && option.get_items_expected_max() > 1;
  return info;
}

VerbInfo Describe(const CLI::App& app) {
  VerbInfo verb{.name = app.get_name(), .description = app.get_description()};
  verb.takes_command = verb.name == "run" || verb.name == "exec";
  for (const CLI::Option* option : app.get_options()) verb.flags.push_back(Describe(*option));
  return verb;
}

std::string Roff(std::string_view text) {
  std::string safe = absl::StrReplaceAll(std::string(text), {{"\\", "\\e"}, {"-", "\\-"}});
  return absl::StrReplaceAll(safe, {{"\n.", "\n\\&."}, {"\n'", "\n\\&'"}});
}

std::string RoffFlag(const FlagInfo& flag) {
  std::vector<std::string> names;
  for (const std::string& name : flag.names) names.push_back("\\fB" + Roff(name) + "\\fR");
  std::string text = ".TP\n" + absl::StrJoin(names, ", ");
  if (flag.positional) text = ".TP\n\\fI" + Roff(flag.type.empty() ? flag.names[0] : flag.type) + "\\fR";
  if (!flag.positional && flag.optional_value) absl::StrAppend(&text, "[=\\fI", Roff(flag.type), "\\fR]");
  if (!flag.positional && !flag.optional_value && !flag.type.empty()) {
    absl::StrAppend(&text, " \\fI", Roff(flag.type), "\\fR");
  }
  absl::StrAppend(&text, "\n", Roff(flag.description), ".");
  if (!flag.default_value.empty()) absl::StrAppend(&text, " Default: ", Roff(flag.default_value), ".");
  return text + "\n";
}

std::string RoffFlags(const VerbInfo& verb, bool positional) {
  std::string text;
  for (const FlagInfo& flag : verb.flags) {
    if (flag.positional == positional) text += RoffFlag(flag);
  }
  return text;
}

std::string Synopsis(const VerbInfo& verb) {
  std::string text = absl::StrCat(".B lgpu ", verb.name, "\n[\\fIflags\\fR]");
  for (const FlagInfo& flag : verb.flags) {
    const std::string word =
        "\\fI" + Roff(flag.type.empty() ? flag.names[0] : flag.type) + "\\fR" + (flag.repeated ? " ..." : "");
    if (flag.positional) absl::StrAppend(&text, " ", flag.required ? word : "[" + word + "]");
  }
  if (verb.takes_command) text += " \\-\\- \\fICMD\\fR [\\fIARGS\\fR]";
  return text + "\n";
}

constexpr char kExitCodes[] = R"(.SH EXIT STATUS
0 ok; 1 failure; 2 wrong flag, size or device name; 3 not supported; 4 not permitted; 6 not found;
9 no usable GPU; 69 daemon not reachable; 73 a lease of that name exists; 75 not enough memory now; 78 configuration wrong.
.B lgpu run
and
.B lgpu exec
end with the code of their command, 128 + n if signal n killed it; 125 if lgpu itself failed, 126 if the command
cannot be executed, 127 if there is none.
)";

std::string RoffDescription(const std::string& verb) {
  const std::optional<VerbPage> page = FindVerbPage(verb);
  return !page ? "" : absl::StrCat(".SH DESCRIPTION\n", Roff(page->description), "\n");
}

std::string RoffExamples(const std::string& verb) {
  const std::optional<VerbPage> page = FindVerbPage(verb);
  if (!page) return "";
  std::string text = ".SH EXAMPLES\n";
  for (const Example& example : page->examples) {
    absl::StrAppend(&text, ".TP\n\\fB", Roff(example.line), "\\fR\n", Roff(example.about), "\n");
  }
  return text;
}

constexpr char kSeeAlso[] = R"(.SH SEE ALSO
.BR lgpu (1),
.BR lgpu (7),
.BR lgpud (8),
.BR lgpud.toml (5)
)";

std::string RoffVerb(const std::vector<VerbInfo>& table, std::string_view name) {
  const auto found =
      std::find_if(table.begin(), table.end(), [&](const VerbInfo& verb) { return verb.name == name; });
  if (found == table.end()) return "";
  return absl::StrCat(".TP\n\\fB", found->name, "\\fR\n", Roff(found->description), ".\n");
}

std::string ManOfAll(const std::vector<VerbInfo>& table) {
  std::string text = ".TH LGPU 1 \"\" \"lgpu " LGPU_VERSION
                     "\" \"User Commands\"\n.SH NAME\nlgpu \\- logical GPUs with hard "
                     "memory limits\n.SH SYNOPSIS\n.B lgpu\n\\fIVERB\\fR [\\fIflags\\fR] [\\fIargs\\fR]\n" +
                     RoffDescription("") + ".SH VERBS\n";
  for (const VerbGroup& group : VerbGroups()) {
    absl::StrAppend(&text, ".SS ", group.title, "\n");
    for (const std::string_view name : group.verbs) text += RoffVerb(table, name);
  }
  absl::StrAppend(&text, ".SH FLAGS OF EVERY VERB\n", RoffFlags(table.front(), false), RoffExamples(""),
                  kExitCodes, kSeeAlso);
  return text;
}

}  // namespace

std::vector<VerbInfo> FlagTable(const CLI::App& app) {
  std::vector<VerbInfo> table = {Describe(app)};
  table.front().name.clear();
  for (const CLI::App* verb : app.get_subcommands([](const CLI::App*) { return true; })) {
    table.push_back(Describe(*verb));
  }
  return table;
}

nlohmann::json ToJson(const std::vector<VerbInfo>& table) {
  nlohmann::json json = {{"schema", "lgpu.help/v1"}, {"verbs", nlohmann::json::array()}};
  for (const VerbInfo& verb : table) {
    nlohmann::json flags = nlohmann::json::array();
    for (const FlagInfo& flag : verb.flags) {
      flags.push_back({{"names", flag.names},
                       {"value", flag.type},
                       {"description", flag.description},
                       {"default", flag.default_value},
                       {"positional", flag.positional},
                       {"required", flag.required}});
    }
    if (verb.name.empty()) {
      json["flags"] = flags;
    } else {
      json["verbs"].push_back({{"name", verb.name}, {"description", verb.description}, {"flags", flags}});
    }
  }
  return json;
}

std::string ManPage(const std::vector<VerbInfo>& table, const std::string& verb) {
  if (verb.empty()) return ManOfAll(table);
  const auto found =
      std::find_if(table.begin(), table.end(), [&](const VerbInfo& entry) { return entry.name == verb; });
  if (found == table.end()) return "";
  std::string text = absl::StrCat(".TH LGPU\\-", absl::AsciiStrToUpper(verb), " 1 \"\" \"lgpu ", LGPU_VERSION,
                                  "\" \"User Commands\"\n.SH NAME\nlgpu\\-", verb, " \\- ",
                                  Roff(found->description), "\n.SH SYNOPSIS\n", Synopsis(*found));
  text += RoffDescription(verb);
  const std::string words = RoffFlags(*found, true);
  if (!words.empty()) absl::StrAppend(&text, ".SH ARGUMENTS\n", words);
  absl::StrAppend(&text, ".SH FLAGS\n", RoffFlags(*found, false),
                  ".PP\nFlags of every verb are in\n.BR lgpu (1).\n", RoffExamples(verb), kExitCodes,
                  kSeeAlso);
  return text;
}

}  // namespace lgpu::cli
