#ifndef LGPU_CLIENT_RUNTIME_OPEN_LEASE_H_
#define LGPU_CLIENT_RUNTIME_OPEN_LEASE_H_

#include <memory>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "client/runtime/device_choice.h"
#include "client/session/endpoint.h"
#include "client/session/lease.h"
#include "lgpu/context.h"

namespace lgpu {

/// What the memory of a lease is for. Tensors can be moved to host memory and back, as lgpud tells.
enum class Contents { kTensors, kBlocksOfCaller };
/// A lease as the options say: endpoint, lease or logical devices, CUDA_VISIBLE_DEVICES.
absl::StatusOr<std::unique_ptr<Lease>> OpenLease(const ContextOptions& options, Contents contents);

/// OpenLease where `endpoint.local` holds. FAILED_PRECONDITION: there is no GPU, and none is to be simulated.
absl::StatusOr<std::unique_ptr<Lease>> OpenLocalLease(const Endpoint& endpoint, const ContextOptions& options,
                                                      const DeviceEnvironment& environment);
/// OpenLease on a daemon. `attach_to`: the handle or name of an existing lease; empty: makes a new one.
absl::StatusOr<std::unique_ptr<Lease>> OpenDaemonLease(const Endpoint& endpoint,
                                                       const ContextOptions& options,
                                                       const std::string& attach_to,
                                                       const DeviceEnvironment& environment,
                                                       Contents contents);

/// Writes a line for people who read the log: to the options' sink, else to stderr.
void LogNote(const ContextOptions& options, std::string_view line);

}  // namespace lgpu

#endif  // LGPU_CLIENT_RUNTIME_OPEN_LEASE_H_
