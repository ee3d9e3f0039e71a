#ifndef LGPU_DAEMON_LEASES_LEASE_IDLE_H_
#define LGPU_DAEMON_LEASES_LEASE_IDLE_H_

#include <chrono>
#include <cstdint>
#include <optional>

#include "absl/status/statusor.h"
#include "allocator/broker/broker.h"
#include "daemon/leases/lease.h"
#include "daemon/leases/lease_table.h"
#include "daemon/sessions/session_state.h"
#include "daemon/sessions/session_use.h"

namespace lgpu::daemon {

/// When a program of the lease last used a GPU, attached or ended, or the lease was made: it is idle since
/// then. Nothing: one of its programs cannot tell.
std::optional<UseTime> LastUse(const Lease& lease, const SessionDirectory& sessions);

/// For how long a lease is to be idle before it is asked to give way, as a request has it; 0: it says
/// nothing. INVALID_ARGUMENT: less than a second, or more than ten years.
absl::StatusOr<std::chrono::milliseconds> ParseIdleAfter(std::uint64_t asked_ms);
/// How long the lease is idle when it is asked to give way, at least.
std::chrono::milliseconds LeastIdle(const Lease& lease);

/// Tells the broker about the last uses of all leases, for its refusals.
void TellLastUses(const LeaseTable& leases, const SessionDirectory& sessions, Broker& broker);

}  // namespace lgpu::daemon

#endif  // LGPU_DAEMON_LEASES_LEASE_IDLE_H_
