#ifndef LGPU_CLI_ENV_FORMATS_H_
#define LGPU_CLI_ENV_FORMATS_H_

#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "base/spawn.h"
#include "cli/cdi_files.h"
#include "lgpu/v1/control.pb.h"

namespace lgpu::cli {

/// The variables that put programs into a lease, as `lgpu env --format` prints them: "sh", "json", "systemd"
/// (an EnvironmentFile=) or "taskprolog" (Slurm's TaskProlog). INVALID_ARGUMENT for a value that a format
/// cannot carry.
absl::StatusOr<std::string> FormatEnvironment(const std::string& lease_id,
                                              const SpawnOptions::Environment& variables,
                                              const std::string& format);

/// A specification of the Container Device Interface, version 0.5.0, with one device, `lgpu.io/lease=NAME`.
/// `directory`: the lease's own. `hook`: the machine's lgpu-hook, which limits programs that do not use
/// liblgpu; "": simulated GPUs, which such programs cannot use. `with`: the edits of a card's own device,
/// which come first; the file has its version where that is newer.
struct CdiPlaces {
  std::string directory;
  std::string hook = {};
  std::optional<CdiDevice> with = std::nullopt;
};
std::string FormatCdi(const v1::Lease& lease, const CdiPlaces& places);

}  // namespace lgpu::cli

#endif  // LGPU_CLI_ENV_FORMATS_H_
