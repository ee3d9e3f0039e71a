#include "cli/user_config.h"

#include <toml++/toml.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/read_file.h"
#include "cli/output.h"
#include "lgpu/status.h"

namespace lgpu::cli {
namespace {

std::string Place(const std::string& path, const toml::source_region& source) {
  return absl::StrCat(path, ":", source.begin.line, ":", source.begin.column);
}

absl::Status Error(const std::string& place, const std::string& why) {
  return absl::InvalidArgumentError(absl::StrCat(place, ": ", why));
}

absl::Status CheckColor(const std::string& value) {
  if (value == "auto" || value == "always" || value == "never") return absl::OkStatus();
  return absl::InvalidArgumentError("expected \"auto\", \"always\" or \"never\"");
}

absl::Status CheckTimeout(const std::string& value) { return ParseDuration(value).status(); }

}  // namespace

std::vector<std::string> UserConfigFiles(const std::string& xdg_config_home, const std::string& home,
                                         const std::string& system_dir) {
  std::vector<std::string> files = {system_dir + "/config.toml"};
  // The XDG rule: a relative path is to be ignored.
  if (absl::StartsWith(xdg_config_home, "/")) {
    files.push_back(xdg_config_home + "/lgpu/config.toml");
  } else if (!home.empty()) {
    files.push_back(home + "/.config/lgpu/config.toml");
  }
  return files;
}

absl::Status ApplyUserConfig(std::string_view text, const std::string& path, UserConfig& config) {
  const struct Key {
    std::string_view name;
    UserSetting& to;
    absl::Status (*check)(const std::string& value);
  } keys[] = {{"color", config.color, &CheckColor}, {"timeout", config.timeout, &CheckTimeout}};
  toml::table root;
  try {
    root = toml::parse(text, path);
  } catch (const toml::parse_error& error) {
    return Error(Place(path, error.source()), std::string(error.description()));
  }
  for (const auto& [name, value] : root) {
    const Key* known = nullptr;
    for (const Key& key : keys) {
      if (key.name == name.str()) known = &key;
    }
    if (known == nullptr) {
      return Error(Place(path, name.source()),
                   absl::StrCat("unknown key '", std::string(name.str()), "'; known are: color, timeout"));
    }
    const auto* word = value.as_string();
    if (word == nullptr) return Error(Place(path, value.source()), "expected a text in quotes");
    if (const absl::Status status = known->check(word->get()); !status.ok()) {
      return Error(Place(path, value.source()), std::string(status.message()));
    }
    known->to = {.value = word->get(), .origin = Place(path, name.source())};
  }
  return absl::OkStatus();
}

absl::StatusOr<UserConfig> LoadUserConfig(const std::vector<std::string>& files) {
  UserConfig config;
  for (const std::string& path : files) {
    const absl::StatusOr<std::string> text = ReadWholeFile(path);
    if (absl::IsNotFound(text.status())) continue;
    if (!text.ok()) {
      config.notes.push_back(
          absl::StrCat(Printable(std::string(text.status().message())), "; lgpu ignores this file"));
      continue;
    }
    LGPU_RETURN_IF_ERROR(ApplyUserConfig(*text, path, config));
  }
  return config;
}

}  // namespace lgpu::cli
