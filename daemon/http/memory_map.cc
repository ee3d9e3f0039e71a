#include "daemon/http/memory_map.h"

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <vector>

#include "lgpu/memory_stats.h"

namespace lgpu::daemon {
namespace {

using nlohmann::json;

/// The places of ops by their bytes, the largest first; without those that have no live block.
std::vector<std::size_t> ByBytes(const std::vector<std::uint64_t>& bytes) {
  std::vector<std::size_t> order(bytes.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&bytes](std::size_t a, std::size_t b) { return bytes[a] > bytes[b]; });
  std::erase_if(order, [&bytes](std::size_t op) { return bytes[op] == 0; });
  return order;
}

}  // namespace

std::uint64_t LiveBlocksOf(const ToldMap& map) {
  std::uint64_t live = 0;
  for (const ToldCell& cell : map.cells) live += cell.blocks;
  return live;
}

json MapOf(const DeviceBlocks& device) {
  const ToldMap& map = device.map;
  std::vector<int> place_of(map.op_bytes.size(), -1);
  json ops = json::array();
  for (const std::size_t op : ByBytes(map.op_bytes)) {
    place_of[op] = static_cast<int>(ops.size());
    ops.push_back({{"name", device.ops[op]}, {"bytes", map.op_bytes[op]}});
  }
  json cells = json::array();
  for (const ToldCell& cell : map.cells) {
    const double part = static_cast<double>(cell.used) / static_cast<double>(map.cell_bytes);
    cells.push_back({place_of[cell.op], part, cell.blocks, cell.gaps});
  }
  MemoryStats stats;
  stats.held = Bytes(device.region.held_bytes);
  stats.used = Bytes(device.region.used_bytes);
  stats.workspace = Bytes(device.region.workspace_bytes);
  stats.largest_free_block = std::min(Bytes(device.region.largest_free_block_bytes), stats.slack());
  return {{"schema", "lgpu.map/v1"},
          {"gpu", device.card_index},
          {"device", device.index},
          {"cell_bytes", map.cell_bytes},
          {"cells", std::move(cells)},
          {"ops", std::move(ops)},
          {"live_blocks", LiveBlocksOf(map)},
          {"used_bytes", stats.used.count()},
          {"granted_bytes", stats.held.count()},
          {"largest_free_block_bytes", stats.largest_free_block.count()},
          {"fragmentation", stats.Fragmentation()}};
}

}  // namespace lgpu::daemon
