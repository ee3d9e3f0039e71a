#ifndef LGPU_CLI_DRIVER_SHIM_H_
#define LGPU_CLI_DRIVER_SHIM_H_

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/spawn.h"
#include "lgpu/v1/control.pb.h"

namespace lgpu::cli {

/// The value of a variable in a command's environment; nothing: not set.
using VariableReader = std::function<std::optional<std::string>(const std::string& name)>;

/// Gives a command that knows nothing of lgpu a lease's limit (docs/unmodified.md): a folder of links to
/// lgpu's libcuda.so.1 and to the real one, which the command's variables put first.
struct DriverShim {
  std::string folder;
  SpawnOptions::Environment variables;  // LD_LIBRARY_PATH and LD_PRELOAD, with their earlier values
};

/// The folders of the shim; a type of its own for tests.
struct DriverShimPlaces {
  std::vector<std::string> shims;    // folders that may have lgpu's libraries, in this order
  std::vector<std::string> parents;  // folders that may take the folder of links, in this order
  /// The places of this program; `runtime_dir` is the daemon's.
  static DriverShimPlaces OfThisProgram(const std::string& runtime_dir, const VariableReader& variable);
};

/// Makes the folder of links, or finds it made. Nothing: the command's environment finds no driver, so there
/// is nothing to limit. NOT_FOUND: this installation has no shim; FAILED_PRECONDITION: no place takes the
/// folder.
absl::StatusOr<std::optional<DriverShim>> MakeDriverShim(const DriverShimPlaces& places,
                                                         const VariableReader& variable);

/// The calls of the driver that this environment finds, for `lgpu doctor`. Nothing: it finds none.
struct DriverCalls {
  std::string shim;                // lgpu's library; empty: it is not installed
  std::string driver;              // the real one
  std::vector<std::string> newer;  // versions of calls that the driver has and lgpu does not count
};
std::optional<DriverCalls> CompareDriver(const DriverShimPlaces& places, const VariableReader& variable);

/// Whether the lease has a real GPU: a command on simulated ones keeps the machine's.
bool HasRealGpu(const v1::Lease& lease);
/// The UUIDs of the lease's cards, with commas, each once.
std::string CardUuids(const v1::Lease& lease);

/// A line for each real card that has several logical devices of the lease: the driver shows a program one
/// GPU there, whose memory is the sum of their limits, or the card's where that is less.
std::vector<std::string> DescribeSharedCards(const v1::Lease& lease);

/// The variables with which a command runs inside `lease`: LGPU_LEASE and LGPU_ENDPOINT, and on real GPUs
/// CUDA_VISIBLE_DEVICES and those of the shim. On simulated ones CUDA_VISIBLE_DEVICES is among them where it
/// is set here. `notes`: lines for people. LGPU_SHIM=off leaves the shim out, and says so.
struct LeaseEnvironment {
  SpawnOptions::Environment variables;
  std::vector<std::string> notes;
  bool has_shim = false;
  std::string shim_folder;  // of links; with a shim
};
absl::StatusOr<LeaseEnvironment> EnvironmentOf(const v1::Lease& lease, const std::string& runtime_dir,
                                               const VariableReader& variable);

}  // namespace lgpu::cli

#endif  // LGPU_CLI_DRIVER_SHIM_H_
