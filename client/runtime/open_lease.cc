#include <cstdlib>
#include <string>

#include "client/runtime/daemon_lease.h"
#include "client/runtime/device_choice.h"
#include "client/runtime/lease.h"
#include "client/runtime/lease_common.h"
#include "client/runtime/local_lease.h"
#include "client/session/endpoint.h"
#include "lgpu/status.h"

namespace lgpu {

absl::StatusOr<std::unique_ptr<Lease>> OpenLease(const ContextOptions& options) {
  if (!options.lease.empty() && !options.logical_devices.empty()) {
    return absl::InvalidArgumentError(
        "lease \"" + options.lease +
        "\" has its own logical devices; give `lease` or `logical_devices`, not both");
  }
  LGPU_ASSIGN_OR_RETURN(const Endpoint endpoint,
                        ResolveEndpoint(options.endpoint, EndpointEnvironment::OfThisProcess()));
  const DeviceEnvironment environment = DeviceEnvironment::OfThisProcess();
  if (endpoint.local) return LocalLease::Open(endpoint, options, environment);
  std::string attach_to = options.lease;
  const char* variable = std::getenv("LGPU_LEASE");
  if (attach_to.empty() && variable != nullptr && *variable != '\0') {
    attach_to = variable;
    if (!options.logical_devices.empty()) {
      LogNote(options, "lgpu: note: LGPU_LEASE is set: this program runs inside lease " + attach_to +
                           "; the logical devices that it asks for itself are not made");
    }
  }
  return DaemonLease::Open(endpoint, options, attach_to, environment);
}

}  // namespace lgpu
