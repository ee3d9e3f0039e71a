#include "cli/parser_errors.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "cli/output.h"

namespace lgpu::cli {
namespace {

/// The two parts of `text` around `middle`.
std::optional<std::pair<std::string, std::string>> Around(std::string_view text, std::string_view middle) {
  const std::size_t at = text.find(middle);
  if (at == std::string_view::npos) return std::nullopt;
  return std::pair(std::string(text.substr(0, at)), std::string(text.substr(at + middle.size())));
}

std::string VerbOf(const CLI::App& app) {
  for (const CLI::App* verb : app.get_subcommands()) return "lgpu " + verb->get_name();
  return "lgpu";
}

/// "LEASE" of the positional word `name`.
std::string WordOf(const CLI::App& app, const std::string& name) {
  for (const CLI::App* verb : app.get_subcommands()) {
    const CLI::Option* option = verb->get_option_no_throw(name);
    if (option != nullptr && !option->get_type_name().empty()) {
      return option->get_type_name().substr(0, option->get_type_name().find(':'));
    }
  }
  return name;
}

bool TakesNoValue(const CLI::App& app, const std::string& name) {
  std::vector<const CLI::App*> parts = {&app};
  for (const CLI::App* verb : app.get_subcommands()) parts.push_back(verb);
  return std::any_of(parts.begin(), parts.end(), [&name](const CLI::App* part) {
    const CLI::Option* option = part->get_option_no_throw(name);
    return option != nullptr && option->get_items_expected_max() == 0;
  });
}

/// Of a value that a check refused: "--to: x is not one of sh, json".
std::string RefusedValue(const std::string& text, const CLI::App& app) {
  auto flag = Around(text, ": ");
  if (!flag) return text;
  if (!flag->first.starts_with("-")) flag->first = VerbOf(app);
  if (const auto set = Around(flag->second, " not in {")) {
    const std::string choices = set->second.substr(0, set->second.rfind('}'));
    return absl::StrCat(flag->first, ": ", set->first, " is not one of ",
                        absl::StrReplaceAll(choices, {{",", ", "}}));
  }
  const auto range = Around(flag->second, " not in range ");
  if (range && range->first.starts_with("Value ")) {
    return absl::StrCat(flag->first, ": ", range->first.substr(6), " is not in ", range->second);
  }
  return text;
}

}  // namespace

std::string PlainParserError(const CLI::ParseError& error, const CLI::App& app) {
  const std::string text = error.what();
  const std::string kind = error.get_name();
  if (kind == "RequiredError") {
    const auto name = Around(text, " is required");
    if (!name || name->first == "A subcommand") return "lgpu needs a verb";
    return absl::StrCat(VerbOf(app), " needs ", WordOf(app, name->first));
  }
  if (kind == "ConversionError") {
    if (const auto value = Around(text, " = ")) {
      const auto flag = Around(value->first, "Could not convert: ");
      const std::string name = flag ? flag->second : value->first;
      if (TakesNoValue(app, name)) return name + " takes no value";
      return absl::StrCat(name, ": ", value->second, " is not a whole number");
    }
    if (const auto flag = Around(text, ": Should be true/false")) return flag->first + " takes no value";
  }
  if (kind == "ArgumentMismatch") {
    if (const auto flag = Around(text, ": 1 required ")) {
      const auto type = Around(flag->second, " missing");
      return absl::StrCat(flag->first,
                          " needs a value: ", type ? type->first.substr(0, type->first.find(':')) : "one");
    }
    if (const auto flag = Around(text, ": At Most 1 required")) return flag->first + " can be given once";
    if (const auto flag = Around(text, " was given a disallowed")) return flag->first + " takes no value";
  }
  if (kind == "RequiresError") {
    if (const auto both = Around(text, " requires ")) {
      return absl::StrCat(both->first, " needs ", both->second, " too");
    }
  }
  if (kind == "ExcludesError") {
    if (const auto both = Around(text, " excludes ")) {
      return absl::StrCat(both->first, " and ", both->second, " cannot be given together");
    }
  }
  if (kind == "ValidationError") return RefusedValue(text, app);
  return text;
}

}  // namespace lgpu::cli
