#ifndef LGPU_CLI_LEASE_CARDS_H_
#define LGPU_CLI_LEASE_CARDS_H_

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "lgpu/v1/control.pb.h"

namespace lgpu::cli {

/// The UUIDs of the cards of a lease, each once, in the order of its devices.
std::vector<std::string> CardUuidsOf(const v1::Lease& lease);

/// How many of the lease's devices a program inside it has with this value of CUDA_VISIBLE_DEVICES (nothing:
/// it is not set). NOT_FOUND where it has none.
absl::StatusOr<int> CountVisibleDevices(const v1::Lease& lease, std::optional<std::string_view> value);

}  // namespace lgpu::cli

#endif  // LGPU_CLI_LEASE_CARDS_H_
