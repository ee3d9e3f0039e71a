#ifndef LGPU_DAEMON_LEASES_LEASE_RECORD_H_
#define LGPU_DAEMON_LEASES_LEASE_RECORD_H_

#include "daemon/leases/lease.h"
#include "lgpu/v1/journal.pb.h"

namespace lgpu::daemon {

/// The record of a lease in the journal and in the file of lasting leases.
v1::JournalLease RecordOf(const Lease& lease);

}  // namespace lgpu::daemon

#endif  // LGPU_DAEMON_LEASES_LEASE_RECORD_H_
