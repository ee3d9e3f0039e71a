#ifndef LGPU_DAEMON_STATIC_DEVICES_H_
#define LGPU_DAEMON_STATIC_DEVICES_H_

#include <vector>

#include "absl/status/status.h"
#include "daemon/config.h"
#include "daemon/lease_table.h"
#include "daemon/stats.h"

namespace lgpu::daemon {

/// Makes the leases that the configuration wants and that are not there. A lease that its owner has under
/// this name is left as it is. The first error, with the place in the file; the others are made all the same.
absl::Status MakeStaticLeases(const std::vector<StaticDeviceConfig>& devices,
                              const std::vector<v1::CardStats>& cards, LeaseTable& leases);

}  // namespace lgpu::daemon

#endif  // LGPU_DAEMON_STATIC_DEVICES_H_
