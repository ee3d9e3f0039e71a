#include "cli/cdi_files.h"

#include <filesystem>
#include <fstream>
#include <set>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace lgpu::cli {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

json Member(const json& value, const char* name) {
  return value.is_object() && value.contains(name) ? value[name] : json();
}
std::string Text(const json& value) { return value.is_string() ? value.get<std::string>() : ""; }

}  // namespace

absl::StatusOr<CdiDevice> FindCdiDevice(const std::string& name, const std::vector<std::string>& folders) {
  std::set<std::string> others;
  bool is_yaml_there = false;
  for (const std::string& folder : folders) {
    std::error_code error;
    for (const auto& entry : fs::directory_iterator(folder, error)) {
      const fs::path& path = entry.path();
      is_yaml_there = is_yaml_there || path.extension() == ".yaml" || path.extension() == ".yml";
      if (path.extension() != ".json") continue;
      std::ifstream file(path);
      const json spec = json::parse(file, nullptr, /*allow_exceptions=*/false);
      for (const json& device : Member(spec, "devices")) {
        const std::string found = absl::StrCat(Text(Member(spec, "kind")), "=", Text(Member(device, "name")));
        if (found != name) {
          others.insert(found);
          continue;
        }
        CdiDevice result{.version = Text(Member(spec, "cdiVersion")), .edits = json::object()};
        AddCdiEdits(Member(spec, "containerEdits"), result.edits);
        AddCdiEdits(Member(device, "containerEdits"), result.edits);
        return result;
      }
    }
  }
  return absl::NotFoundError(absl::StrCat(
      "there is no device ", name, " in the CDI files of ", absl::StrJoin(folders, " and "),
      others.empty() ? "" : absl::StrCat("; there are: ", absl::StrJoin(others, ", ")),
      is_yaml_there ? "\nlgpu reads files in JSON, and there are some in YAML\ntry: nvidia-ctk cdi generate "
                      "--format=json --output=/etc/cdi/nvidia.json"
                    : "\ntry: nvidia-ctk cdi generate --format=json --output=/etc/cdi/nvidia.json"));
}

void AddCdiEdits(const json& more, json& edits) {
  if (!more.is_object()) return;
  for (const auto& [key, value] : more.items()) {
    if (value.is_array() && edits.contains(key) && edits[key].is_array()) {
      for (const json& each : value) edits[key].push_back(each);
    } else {
      edits[key] = value;
    }
  }
}

}  // namespace lgpu::cli
