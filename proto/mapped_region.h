#ifndef LGPU_PROTO_MAPPED_REGION_H_
#define LGPU_PROTO_MAPPED_REGION_H_

#include "proto/wire/mapping.h"

namespace lgpu {

/// The MapMemory of lgpud and of liblgpu: a mapped_region of Boost.Interprocess owns the mapping. Boost's
/// exceptions end here.
Mapping MapWithBoost(const MapRequest& request);

}  // namespace lgpu

#endif  // LGPU_PROTO_MAPPED_REGION_H_
