#ifndef LGPU_DAEMON_RECOVERY_RECOVERY_PARTS_H_
#define LGPU_DAEMON_RECOVERY_RECOVERY_PARTS_H_

#include <string>

#include "allocator/broker/broker.h"
#include "allocator/device/device_memory.h"
#include "daemon/leases/lease_table.h"
#include "daemon/recovery/journal.h"
#include "daemon/recovery/reclaimer.h"
#include "daemon/server/event_log.h"
#include "daemon/sessions/session_state.h"
#include "lgpu/v1/events.pb.h"

namespace lgpu::daemon {

/// The parts of a daemon that restores an earlier one's accounts.
struct RecoveryParts {
  DeviceMemory& backend;
  Broker& broker;
  LeaseTable& leases;
  SessionDirectory& sessions;
  Reclaimer& reclaimer;
  EventLog& events;
  Journal& journal;

  /// A warning in the log, and an event.
  void Tell(v1::Event::Kind kind, std::string text) const;
};

}  // namespace lgpu::daemon

#endif  // LGPU_DAEMON_RECOVERY_RECOVERY_PARTS_H_
