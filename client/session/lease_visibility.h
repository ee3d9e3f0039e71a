#ifndef LGPU_CLIENT_SESSION_LEASE_VISIBILITY_H_
#define LGPU_CLIENT_SESSION_LEASE_VISIBILITY_H_

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "proto/wire/control_messages.h"

// CUDA_VISIBLE_DEVICES of a process inside a lease, where it counts the lease's cards. The driver shim does
// the same for programs that know nothing of lgpu (client/driver/visible_devices.h).

namespace lgpu {

/// Whether this process runs inside the lease: LGPU_LEASE names it, by its handle or its name. A process that
/// attaches to another lease is outside of it, and the variable counts the machine's cards.
bool IsInsideLease(const wire::Lease& lease);

/// The UUIDs of the lease's cards, each once, in the lease's order.
std::vector<std::string> CardUuidsOf(const wire::Lease& lease);

/// The places of the lease's logical devices on these cards: card by card, or in the lease's order where the
/// cards are all of the lease's in its order.
std::vector<int> DevicesOnCards(const wire::Lease& lease, std::span<const std::string> uuids);

/// The value of CUDA_VISIBLE_DEVICES; nothing: it is not set.
std::optional<std::string> VisibleDevicesVariable();

/// Sets CUDA_VISIBLE_DEVICES to these UUIDs, before the driver reads it. The variable is left as it is where
/// it says the same, as mostly: another thread's getenv beside setenv is not safe.
void SetVisibleDevices(std::span<const std::string> uuids);

}  // namespace lgpu

#endif  // LGPU_CLIENT_SESSION_LEASE_VISIBILITY_H_
