#ifndef LGPU_DAEMON_LEASES_LEASE_IDLE_H_
#define LGPU_DAEMON_LEASES_LEASE_IDLE_H_

#include <optional>

#include "daemon/leases/lease.h"
#include "daemon/sessions/session_state.h"
#include "daemon/sessions/session_use.h"

namespace lgpu::daemon {

/// When a program of the lease last used a GPU, attached or ended, or the lease was made: it is idle since
/// then. Nothing: one of its programs cannot tell.
std::optional<UseTime> LastUse(const Lease& lease, const SessionDirectory& sessions);

}  // namespace lgpu::daemon

#endif  // LGPU_DAEMON_LEASES_LEASE_IDLE_H_
