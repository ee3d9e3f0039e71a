#ifndef LGPU_DAEMON_LEASES_IDS_H_
#define LGPU_DAEMON_LEASES_IDS_H_

#include <string>

#include "allocator/broker/ids.h"

namespace lgpu::daemon {

/// "/device:GPU:0", as users see the logical device `index` of their lease.
inline std::string DeviceName(int index) { return "/device:GPU:" + std::to_string(index); }
/// "/job:localhost/replica:0/task:0/device:GPU:0".
inline std::string FullDeviceName(int index) { return "/job:localhost/replica:0/task:0" + DeviceName(index); }

}  // namespace lgpu::daemon

#endif  // LGPU_DAEMON_LEASES_IDS_H_
