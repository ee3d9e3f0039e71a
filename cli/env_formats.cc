#include "cli/env_formats.h"

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "cli/driver_shim.h"
#include "lgpu/status.h"
#include "proto/messages_json.h"

namespace lgpu::cli {
namespace {

using nlohmann::json;

// The place of the lease's directory in a container: lgpu looks there by default.
constexpr char kInContainer[] = "/run/lgpu";
// Where lgpu-hook mounts its copies. crun makes a root read-only before it starts hooks, so that the runtime
// has to make the folder.
constexpr char kCopiesInContainer[] = "/usr/lib/lgpu/cover";
// Of mounts with a type and of devices whose names begin with a digit.
constexpr char kCdiVersion[] = "0.5.0";
// Within which a container's runtime wants the hook to end.
constexpr int kHookSeconds = 10;

/// For a shell: everything but ' stands for itself between two '.
std::string ShellLine(const std::string& name, const std::string& value) {
  return absl::StrCat("export ", name, "='", absl::StrReplaceAll(value, {{"'", "'\\''"}}), "'\n");
}

/// systemd.exec(5): between " a backslash keeps the next of " \ ` $ as it is.
std::string SystemdLine(const std::string& name, const std::string& value) {
  const std::string quoted =
      absl::StrReplaceAll(value, {{"\\", "\\\\"}, {"\"", "\\\""}, {"`", "\\`"}, {"$", "\\$"}});
  return absl::StrCat(name, "=\"", quoted, "\"\n");
}

/// A name may begin with '.', '_' or '-', which a CDI device's may not.
std::string CdiName(const v1::Lease& lease) {
  const bool fits = !lease.name().empty() && absl::ascii_isalnum(static_cast<unsigned char>(lease.name()[0]));
  return fits ? lease.name() : lease.id();
}

/// The version of the lease's own fields, or that of the card's file where it is newer.
std::string NewerCdiVersion(const std::string& version) {
  const auto parts = [](const std::string& text) {
    std::vector<int> numbers;
    for (const absl::string_view part : absl::StrSplit(text, '.')) {
      int number = 0;
      numbers.push_back(absl::SimpleAtoi(part, &number) ? number : 0);
    }
    return numbers;
  };
  return parts(version) > parts(kCdiVersion) ? version : kCdiVersion;
}

}  // namespace

absl::StatusOr<std::string> FormatEnvironment(const std::string& lease_id,
                                              const SpawnOptions::Environment& variables,
                                              const std::string& format) {
  json object = json::object();
  std::string lines;
  for (const auto& [name, value] : variables) {
    if (!value) continue;
    object[name] = *value;
    // Slurm takes the line as it is, from the '=' to its end.
    if (format == "taskprolog" && value->find('\n') != std::string::npos) {
      return absl::InvalidArgumentError(absl::StrCat(
          name, " has a line break, which Slurm's TaskProlog cannot hand on\ntry: unset ", name));
    }
    absl::StrAppend(&lines, format == "sh"        ? ShellLine(name, *value)
                            : format == "systemd" ? SystemdLine(name, *value)
                                                  : absl::StrCat("export ", name, "=", *value, "\n"));
  }
  if (format != "json") return lines;
  return JsonLine({{"schema", "lgpu.env/v1"}, {"lease", lease_id}, {"variables", object}});
}

std::string FormatCdi(const v1::Lease& lease, const CdiPlaces& places) {
  json edits = places.with ? places.with->edits : json::object();
  json variables = {absl::StrCat("LGPU_ENDPOINT=", kInContainer), absl::StrCat("LGPU_LEASE=", lease.id())};
  const std::string cards = HasRealGpu(lease) ? CardUuids(lease) : "";
  if (!cards.empty()) variables.push_back(absl::StrCat("CUDA_VISIBLE_DEVICES=", cards));
  const json mount = {{"hostPath", places.directory},
                      {"containerPath", kInContainer},
                      {"options", {"bind", "ro", "nosuid", "nodev"}}};
  json own = {{"env", variables}, {"mounts", json::array({mount})}};
  if (!places.hook.empty()) {
    // With an environment of its own: the image's would be the hook's otherwise.
    const json hook = {{"hookName", "createContainer"},
                       {"path", places.hook},
                       {"args", {"lgpu-hook", "cover", lease.id(), cards, places.directory}},
                       {"env", {"PATH=/usr/bin:/bin"}},
                       {"timeout", kHookSeconds}};
    own["hooks"] = json::array({hook});
    own["mounts"].push_back({{"hostPath", "tmpfs"},
                             {"containerPath", kCopiesInContainer},
                             {"type", "tmpfs"},
                             {"options", {"nosuid", "nodev", "mode=0755", "size=64k"}}});
  }
  AddCdiEdits(own, edits);
  const json device = {{"name", CdiName(lease)}, {"containerEdits", edits}};
  const json spec = {{"cdiVersion", places.with ? NewerCdiVersion(places.with->version) : kCdiVersion},
                     {"kind", "lgpu.io/lease"},
                     {"devices", json::array({device})}};
  return spec.dump(2) + "\n";
}

}  // namespace lgpu::cli
