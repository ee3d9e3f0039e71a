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

/// What one cell has.
struct Cell {
  std::uint64_t used = 0;
  std::uint64_t blocks = 0;
  std::uint64_t gaps = 0;
  std::uint64_t most = 0;  // bytes of `op`, the op that has most of the cell
  std::int32_t op = -1;
};

/// The bytes that each op has of one cell. Blocks come in address order, so that cells come one after
/// another.
class CellOps {
 public:
  explicit CellOps(std::size_t ops) : bytes_(ops) {}
  void Add(Cell& cell, std::int32_t op, std::uint64_t bytes) {
    if (&cell != cell_) {
      for (const std::size_t seen : seen_) bytes_[seen] = 0;
      seen_.clear();
      cell_ = &cell;
    }
    std::uint64_t& sum = bytes_[static_cast<std::size_t>(op)];
    if (sum == 0) seen_.push_back(static_cast<std::size_t>(op));
    sum += bytes;
    if (sum > cell.most) {
      cell.most = sum;
      cell.op = op;
    }
  }

 private:
  const Cell* cell_ = nullptr;
  std::vector<std::uint64_t> bytes_;  // by op
  std::vector<std::size_t> seen_;     // whose bytes are not 0
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

/// Where the mapped bytes before an address end, if all of them lay side by side. Asked in rising order.
class Packing {
 public:
  explicit Packing(const std::vector<ToldMapping>& mappings) : mappings_(mappings) {}
  std::uint64_t PlaceOf(std::uint64_t offset) {
    while (at_ < mappings_.size() && mappings_[at_].offset + mappings_[at_].bytes <= offset) {
      before_ += mappings_[at_++].bytes;
    }
    if (at_ == mappings_.size() || offset <= mappings_[at_].offset) return before_;
    return before_ + (offset - mappings_[at_].offset);
  }

 private:
  const std::vector<ToldMapping>& mappings_;
  std::size_t at_ = 0;
  std::uint64_t before_ = 0;
};

/// The places of ops by their bytes, the largest first.
std::vector<std::size_t> ByBytes(const std::vector<std::uint64_t>& bytes) {
  std::vector<std::size_t> order(bytes.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&bytes](std::size_t a, std::size_t b) { return bytes[a] > bytes[b]; });
  std::erase_if(order, [&bytes](std::size_t op) { return bytes[op] == 0; });
  return order;
}

void CountGaps(const std::vector<ToldMapping>& mappings, std::uint64_t cell_bytes, std::vector<Cell>& cells) {
  std::uint64_t end = 0, packed = 0;
  for (const ToldMapping& mapping : mappings) {
    const std::uint64_t cell = packed / cell_bytes;
    if (mapping.offset > end && packed > 0 && cell < cells.size()) ++cells[cell].gaps;
    end = mapping.offset + mapping.bytes;
    packed += mapping.bytes;
  }
}

/// What is told of a map besides its cells.
struct MapSums {
  std::uint64_t held = 0, used = 0, live = 0;
  std::vector<std::uint64_t> bytes_of;  // by op
};

/// Fills the cells with the live blocks.
void AddBlocks(const DeviceBlocks& device, std::uint64_t cell_bytes, std::vector<Cell>& cells,
               MapSums& sums) {
  Packing packing(device.mappings);
  CellOps ops(sums.bytes_of.size());
  for (const ToldBlock& block : device.blocks) {
    if (block.state != v1::BlockList::STATE_LIVE || block.bytes == 0) continue;
    const std::int32_t op = block.op < sums.bytes_of.size() ? block.op : 0;
    ++sums.live;
    sums.used += block.bytes;
    sums.bytes_of[static_cast<std::size_t>(op)] += block.bytes;
    const std::uint64_t place = packing.PlaceOf(block.offset);
    if (place / cell_bytes < cells.size()) ++cells[place / cell_bytes].blocks;
    OverCells(cells, cell_bytes, place, block.bytes, [op, &ops](Cell& cell, std::uint64_t bytes) {
      cell.used += bytes;
      ops.Add(cell, op, bytes);
    });
  }
}

}  // namespace

json MapOf(const DeviceBlocks& device, std::size_t width) {
  MapSums sums;
  for (const ToldMapping& mapping : device.mappings) sums.held += mapping.bytes;
  sums.bytes_of.resize(std::max<std::size_t>(device.ops.size(), 1));
  std::vector<Cell> cells(sums.held == 0 ? 0 : std::clamp(width, kFewestCells, kMostCells));
  const std::uint64_t cell_bytes = cells.empty() ? 1 : (sums.held + cells.size() - 1) / cells.size();
  CountGaps(device.mappings, cell_bytes, cells);
  AddBlocks(device, cell_bytes, cells, sums);
  const std::vector<std::size_t> order = ByBytes(sums.bytes_of);
  std::vector<int> place_of(sums.bytes_of.size(), -1);
  json ops = json::array();
  for (std::size_t i = 0; i < order.size(); ++i) {
    place_of[order[i]] = static_cast<int>(i);
    ops.push_back({{"name", order[i] < device.ops.size() ? device.ops[order[i]] : std::string()},
                   {"bytes", sums.bytes_of[order[i]]}});
  }
  json thin = json::array();
  for (const Cell& cell : cells) {
    const double part = static_cast<double>(cell.used) / static_cast<double>(cell_bytes);
    thin.push_back({cell.op < 0 ? -1 : place_of[static_cast<std::size_t>(cell.op)], std::min(part, 1.0),
                    cell.blocks, cell.gaps});
  }
  const std::uint64_t slack = sums.held > sums.used ? sums.held - sums.used : 0;
  const std::uint64_t largest = std::min(device.region.largest_free_block_bytes(), slack);
  return {
      {"schema", "lgpu.map/v1"},
      {"gpu", device.card_index},
      {"device", device.index},
      {"cell_bytes", cell_bytes},
      {"cells", std::move(thin)},
      {"ops", std::move(ops)},
      {"live_blocks", sums.live},
      {"used_bytes", sums.used},
      {"held_bytes", sums.held},
      {"largest_free_block_bytes", largest},
      {"fragmentation", slack == 0 ? 0.0 : 1.0 - static_cast<double>(largest) / static_cast<double>(slack)}};
}

}  // namespace lgpu::daemon
