#ifndef LGPU_CLI_DEVICE_FLAGS_H_
#define LGPU_CLI_DEVICE_FLAGS_H_

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "cli/connection.h"
#include "cli/idle_after_flag.h"
#include "lgpu/v1/control.pb.h"

namespace CLI {
class App;
}

namespace lgpu::cli {

/// The flags of a lease and its devices; `create` and `run` share them.
struct DeviceFlags {
  std::string memory;     // -m: of every logical device; empty: all that its card can give
  std::string guarantee;  // --guarantee: growth only
  std::uint32_t devices = 1;
  bool growth = false;
  bool preallocate = false;
  std::string preemptible;  // "idle", "always"; empty or "never": it is not
  std::string gpus;         // empty: those of CUDA_VISIBLE_DEVICES; "all": ignores that variable
  std::string name;
  std::string wait;  // empty: do not; a duration, or "forever"
  IdleAfterFlag idle_after;

  void AddTo(CLI::App& verb);
  /// One logical device as the flags have it, before any card is known. INVALID_ARGUMENT names the flag.
  absl::StatusOr<v1::LogicalDeviceSpec> Spec() const;
};

/// The request of the flags. `visible_devices` is CUDA_VISIBLE_DEVICES, which narrows the choice of --gpus;
/// `order` is CUDA_DEVICE_ORDER. INVALID_ARGUMENT: a size that cannot be read; NOT_FOUND: no such GPU, naming
/// the known ones.
absl::StatusOr<v1::CreateLeaseRequest> MakeCreateRequest(const DeviceFlags& flags,
                                                         const v1::ListPhysicalDevicesResponse& cards,
                                                         std::optional<std::string> visible_devices);

/// Asks the daemon for its cards and makes the request, with the variables of this process.
absl::StatusOr<v1::CreateLeaseRequest> MakeCreateRequest(const DeviceFlags& flags, Connection& connection,
                                                         const CommonOptions& options);

/// A size that a flag has; INVALID_ARGUMENT names the flag. Zero is no size, but can be a guarantee.
absl::StatusOr<std::uint64_t> ParseSize(const char* flag, const std::string& text);

absl::StatusOr<std::uint64_t> ParseSizeOrZero(const char* flag, const std::string& text);

/// Makes the lease; with --wait as soon as there is memory. CANCELLED: one of the signals that `run` holds
/// back for its command ended the wait; `stopped_by` is its number.
absl::StatusOr<v1::Lease> CreateLease(const DeviceFlags& flags, Connection& connection,
                                      const v1::CreateLeaseRequest& request, const CommonOptions& options,
                                      std::optional<int>& stopped_by);

/// "lease train: GPU:0 = 256.00MiB (growth) on GPU 0 Simulated GPU", a line for every logical device, without
/// newlines.
std::vector<std::string> DescribeLease(const v1::Lease& lease);

}  // namespace lgpu::cli

#endif  // LGPU_CLI_DEVICE_FLAGS_H_
