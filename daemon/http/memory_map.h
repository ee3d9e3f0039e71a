#ifndef LGPU_DAEMON_HTTP_MEMORY_MAP_H_
#define LGPU_DAEMON_HTTP_MEMORY_MAP_H_

#include <cstdint>

#include "daemon/snapshots/lease_blocks.h"
#include "nlohmann/json.hpp"

namespace lgpu::daemon {

/// "lgpu.map/v1": the map that a program told of one logical device. A cell is [op, used, blocks, gaps]: the
/// place in `ops` of the op that has most of the cell (-1: no block), the part of the cell (0 to 1) that lies
/// in live blocks, the blocks that begin in it, and how often address space without memory was left out
/// there. `ops` are sorted by bytes, the largest first.
nlohmann::json MapOf(const DeviceBlocks& device);
/// Its blocks.
std::uint64_t LiveBlocksOf(const ToldMap& map);

}  // namespace lgpu::daemon

#endif  // LGPU_DAEMON_HTTP_MEMORY_MAP_H_
