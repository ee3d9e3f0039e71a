#include "daemon/http/memory_map.h"

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <string>
#include <vector>

namespace lgpu::daemon {
namespace {

using nlohmann::json;

constexpr std::size_t kFewestCells = 10;
constexpr std::size_t kMostCells = 10'000;

/// What one cell has. Blocks come in address order, so the bytes of one op after another are enough to know
/// the op that has most of it where a cell has many blocks of few ops.
struct Cell {
  std::uint64_t used = 0;
  std::uint64_t mapped = 0;
  std::uint64_t blocks = 0;
  std::uint64_t lead = 0;  // by how much `op` is ahead of the others (Boyer and Moore's majority vote)
  std::int32_t op = -1;
  void Vote(std::int32_t of, std::uint64_t bytes) {
    if (of == op) {
      lead += bytes;
    } else if (bytes > lead) {
      op = of;
      lead = bytes - lead;
    } else {
      lead -= bytes;
    }
  }
};

/// Calls `each(cell, bytes)` for every cell that [offset, offset + bytes) touches.
template <typename Each>
void OverCells(std::vector<Cell>& cells, std::uint64_t cell_bytes, std::uint64_t offset, std::uint64_t bytes,
               const Each& each) {
  const std::uint64_t end = offset + bytes;
  while (offset < end && offset / cell_bytes < cells.size()) {
    const std::uint64_t next = std::min(end, (offset / cell_bytes + 1) * cell_bytes);
    each(cells[offset / cell_bytes], next - offset);
    offset = next;
  }
}

/// The places of ops by their bytes, the largest first.
std::vector<std::size_t> ByBytes(const std::vector<std::uint64_t>& bytes) {
  std::vector<std::size_t> order(bytes.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&bytes](std::size_t a, std::size_t b) { return bytes[a] > bytes[b]; });
  std::erase_if(order, [&bytes](std::size_t op) { return bytes[op] == 0; });
  return order;
}

}  // namespace

json MapOf(const DeviceBlocks& device, std::size_t width) {
  std::uint64_t end = 0, held = 0, used = 0, live = 0;
  for (const ToldMapping& mapping : device.mappings) {
    end = std::max(end, mapping.offset + mapping.bytes);
    held += mapping.bytes;
  }
  for (const ToldBlock& block : device.blocks) end = std::max(end, block.end());
  std::vector<Cell> cells(end == 0 ? 0 : std::clamp(width, kFewestCells, kMostCells));
  const std::uint64_t cell_bytes = cells.empty() ? 1 : (end + cells.size() - 1) / cells.size();
  std::vector<std::uint64_t> bytes_of(std::max<std::size_t>(device.ops.size(), 1));
  for (const ToldMapping& mapping : device.mappings) {
    OverCells(cells, cell_bytes, mapping.offset, mapping.bytes,
              [](Cell& cell, std::uint64_t bytes) { cell.mapped += bytes; });
  }
  for (const ToldBlock& block : device.blocks) {
    if (block.state != v1::BlockList::STATE_LIVE) continue;
    const std::int32_t op = block.op < bytes_of.size() ? block.op : 0;
    ++live;
    used += block.bytes;
    bytes_of[static_cast<std::size_t>(op)] += block.bytes;
    if (block.bytes == 0) continue;
    ++cells[block.offset / cell_bytes].blocks;
    OverCells(cells, cell_bytes, block.offset, block.bytes, [op](Cell& cell, std::uint64_t bytes) {
      cell.used += bytes;
      cell.Vote(op, bytes);
    });
  }
  const std::vector<std::size_t> order = ByBytes(bytes_of);
  std::vector<int> place(bytes_of.size(), -1);
  json ops = json::array();
  for (std::size_t i = 0; i < order.size(); ++i) {
    place[order[i]] = static_cast<int>(i);
    ops.push_back({{"name", order[i] < device.ops.size() ? device.ops[order[i]] : std::string()},
                   {"bytes", bytes_of[order[i]]}});
  }
  json thin = json::array();
  for (const Cell& cell : cells) {
    const auto part = [cell_bytes](std::uint64_t bytes) {
      return static_cast<double>(bytes) / static_cast<double>(cell_bytes);
    };
    thin.push_back({cell.op < 0 ? -1 : place[static_cast<std::size_t>(cell.op)], part(cell.used),
                    part(cell.mapped), cell.blocks});
  }
  const std::uint64_t slack = held > used ? held - used : 0;
  const std::uint64_t largest = std::min(device.region.largest_free_block_bytes(), slack);
  return {
      {"schema", "lgpu.map/v1"},
      {"gpu", device.card_index},
      {"device", device.index},
      {"cell_bytes", cell_bytes},
      {"cells", std::move(thin)},
      {"ops", std::move(ops)},
      {"live_blocks", live},
      {"used_bytes", used},
      {"held_bytes", held},
      {"largest_free_block_bytes", largest},
      {"fragmentation", slack == 0 ? 0.0 : 1.0 - static_cast<double>(largest) / static_cast<double>(slack)}};
}

}  // namespace lgpu::daemon
