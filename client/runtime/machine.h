#ifndef LGPU_CLIENT_RUNTIME_MACHINE_H_
#define LGPU_CLIENT_RUNTIME_MACHINE_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/runtime/device_choice.h"
#include "client/session/endpoint.h"
#include "lgpu/config.h"

namespace lgpu {

/// The physical devices of `endpoint` that this process may use: the CPU, then the GPUs that
/// CUDA_VISIBLE_DEVICES leaves and that are served, in its order. No GPU is no error; `notes` says why then.
/// Inside a lease of a daemon (environment.lease) the GPUs are the lease's, and the variable counts them.
/// UNAVAILABLE: no daemon; NOT_FOUND: no such lease.
absl::StatusOr<std::vector<PhysicalDeviceInfo>> ListMachine(const Endpoint& endpoint,
                                                            const DeviceEnvironment& environment,
                                                            std::vector<std::string>& notes);

/// The same for cards that are known; `served[i]` says whether cards[i] is to be had.
std::vector<PhysicalDeviceInfo> VisibleDevicesOf(const std::vector<PhysicalDeviceInfo>& cards,
                                                 const std::vector<bool>& served,
                                                 const DeviceEnvironment& environment,
                                                 std::vector<std::string>& notes);

}  // namespace lgpu

#endif  // LGPU_CLIENT_RUNTIME_MACHINE_H_
