#ifndef LGPU_DAEMON_LEASES_STATIC_DEVICES_H_
#define LGPU_DAEMON_LEASES_STATIC_DEVICES_H_

#include <cstdint>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/leases/lease_table.h"
#include "daemon/server/config.h"
#include "daemon/server/device_registry.h"
#include "daemon/server/stats.h"

namespace lgpu::daemon {

/// Errors in the logical devices of a configuration that do not depend on cards: names and owners.
/// INVALID_ARGUMENT with the place. Asks the system for users; may block.
absl::Status CheckStaticNames(const Config& config);

/// Errors in a configuration's logical devices that depend on cards, of which the ones with a reason against
/// them are not served: no such GPU, limits and guarantees that do not fit (all of them together, on empty
/// cards), and the caps of their owners. Checks the reserve too. INVALID_ARGUMENT: this machine cannot have
/// these devices.
absl::Status CheckStaticDevices(const Config& config, const std::vector<DeviceRegistry::Card>& cards);

/// The owners and names of the leases that the configuration wants. Asks the system for users; may block.
absl::StatusOr<std::set<std::pair<std::uint32_t, std::string>>> StaticNames(
    const std::vector<StaticDeviceConfig>& devices);

/// Makes the leases that the configuration wants and that are not there. A lease that its owner has under
/// this name is left as it is. An error has the place in the file: with kUndo of the first lease that cannot
/// be made, and no lease is made; with kGoOn of every such lease, and the other leases are made.
enum class OnNoRoom { kUndo, kGoOn };
absl::Status MakeStaticLeases(const std::vector<StaticDeviceConfig>& devices,
                              const std::vector<v1::CardStats>& cards, LeaseTable& leases,
                              OnNoRoom on_no_room);

}  // namespace lgpu::daemon

#endif  // LGPU_DAEMON_LEASES_STATIC_DEVICES_H_
