#ifndef LGPU_DAEMON_HTTP_MEMORY_MAP_H_
#define LGPU_DAEMON_HTTP_MEMORY_MAP_H_

#include <cstddef>

#include "daemon/snapshots/lease_blocks.h"
#include "nlohmann/json.hpp"

namespace lgpu::daemon {

/// "lgpu.map/v1": the blocks of one logical device in one program as `width` cells in address order, from the
/// start of its region to the end of what is mapped. A cell is [op, used, mapped, blocks]: the place in `ops`
/// of the op that has most of the cell (-1: no block), the parts of the cell (0 to 1) that lie in live blocks
/// and in mapped memory, and the blocks that begin in it. `ops` are sorted by bytes, the largest first. Takes
/// one pass over the blocks.
nlohmann::json MapOf(const DeviceBlocks& device, std::size_t width);

}  // namespace lgpu::daemon

#endif  // LGPU_DAEMON_HTTP_MEMORY_MAP_H_
