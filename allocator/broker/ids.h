#ifndef LGPU_ALLOCATOR_BROKER_IDS_H_
#define LGPU_ALLOCATOR_BROKER_IDS_H_

#include "lgpu/id.h"

namespace lgpu {

/// One holder of memory: a connected Context of lgpud, or a region source of a `local` context. Unique within
/// the broker's life.
using SessionId = Id<struct SessionTag>;
/// One lease. Unique within the broker's life.
using LeaseKey = Id<struct LeaseKeyTag>;
/// One request that waits, or may have to. Unique within the broker's life.
using WaiterId = Id<struct WaiterTag>;

}  // namespace lgpu

#endif  // LGPU_ALLOCATOR_BROKER_IDS_H_
