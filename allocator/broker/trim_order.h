#ifndef LGPU_ALLOCATOR_BROKER_TRIM_ORDER_H_
#define LGPU_ALLOCATOR_BROKER_TRIM_ORDER_H_

#include "allocator/ledger.h"
#include "lgpu/bytes.h"
#include "lgpu/id.h"

namespace lgpu {

/// One request to a holder of memory for what lies idle there.
using TrimId = Id<struct TrimTag>;

/// What a holder of memory is asked for: another one is short of memory, so the idle memory of `device` is to
/// be returned.
struct TrimOrder {
  TrimId id;
  LogicalId device;
  Bytes bytes;
};

}  // namespace lgpu

#endif  // LGPU_ALLOCATOR_BROKER_TRIM_ORDER_H_
