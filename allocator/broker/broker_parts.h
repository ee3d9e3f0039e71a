#ifndef LGPU_ALLOCATOR_BROKER_BROKER_PARTS_H_
#define LGPU_ALLOCATOR_BROKER_BROKER_PARTS_H_

#include "allocator/broker/broker_core.h"
#include "allocator/broker/card_observer.h"
#include "allocator/broker/chunk_reclaimer.h"
#include "allocator/broker/chunk_returns.h"
#include "allocator/broker/grants.h"
#include "allocator/broker/lease_suspensions.h"
#include "allocator/broker/logical_devices.h"
#include "allocator/broker/reservations.h"
#include "allocator/broker/session_releases.h"
#include "allocator/broker/session_restore.h"
#include "allocator/broker/session_trims.h"
#include "allocator/broker/spare_chunks.h"

namespace lgpu {

/// BrokerParts are what a Broker is made of: the core, and the classes that do its longer calls.
struct BrokerParts {
  BrokerParts(DeviceMemory& backend, GrantLog& log, const Broker::Options& options)
      : core(backend, log, options) {}

  BrokerCore core;
  SpareChunks spare{core};
  ChunkReclaimer reclaimer{core, spare};
  ChunkReturns returns{core, reclaimer};
  CardObserver observer{core};
  Grants grants{core, reclaimer, returns, observer};
  Reservations reservations{core};
  LogicalDevices devices{core, spare, reclaimer};
  SessionRestore restore{core, reclaimer};
  SessionTrims trims{core};
  SessionReleases releases{core};
  LeaseSuspensions suspensions{core};
};

}  // namespace lgpu

#endif  // LGPU_ALLOCATOR_BROKER_BROKER_PARTS_H_
