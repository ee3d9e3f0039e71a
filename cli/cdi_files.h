#ifndef LGPU_CLI_CDI_FILES_H_
#define LGPU_CLI_CDI_FILES_H_

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace lgpu::cli {

/// A CdiDevice is what a specification of the Container Device Interface does to a container that has one of
/// its devices: the device's own edits and those of all devices of the file.
struct CdiDevice {
  std::string version;  // of the specification
  nlohmann::json edits;
};

/// Finds the device, "nvidia.com/gpu=GPU-1001080f-...", in the files in JSON of `folders`. NOT_FOUND says
/// which devices there are.
absl::StatusOr<CdiDevice> FindCdiDevice(const std::string& name, const std::vector<std::string>& folders);

/// Adds `more` behind the lists of `edits`: variables, device files, mounts, hooks and others.
void AddCdiEdits(const nlohmann::json& more, nlohmann::json& edits);

}  // namespace lgpu::cli

#endif  // LGPU_CLI_CDI_FILES_H_
