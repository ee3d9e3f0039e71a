#include "client/session/snapshot_pages.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "base/utf8.h"

namespace lgpu {
namespace {

std::size_t VarintBytes(std::uint64_t value) {
  std::size_t bytes = 1;
  for (; value >= 0x80; value >>= 7U) ++bytes;
  return bytes;
}

std::uint32_t Clamp32(std::uint64_t value) {
  return static_cast<std::uint32_t>(
      std::min<std::uint64_t>(value, std::numeric_limits<std::uint32_t>::max()));
}

std::string NameOnPage(const std::string& op) { return AsUtf8(op.substr(0, SnapshotPages::kMostNameBytes)); }

wire::BlockList::State StateOf(BlockState state) {
  switch (state) {
    case BlockState::kLive:
      return wire::BlockList::State::kLive;
    case BlockState::kCached:
      return wire::BlockList::State::kCached;
    case BlockState::kFenced:
      return wire::BlockList::State::kFenced;
  }
  return wire::BlockList::State::kLive;
}

wire::RegionStats RegionOf(const MemorySnapshot& snapshot) {
  const MemoryStats& stats = snapshot.stats;
  return {.base_address = reinterpret_cast<std::uintptr_t>(snapshot.base),
          .reserved_bytes = snapshot.reserved.count(),
          .granularity_bytes = snapshot.granularity.count(),
          .limit_bytes = stats.limit.count(),
          .requested_bytes = stats.requested.count(),
          .used_bytes = stats.used.count(),
          .peak_used_bytes = stats.peak_used.count(),
          .held_bytes = stats.held.count(),
          .workspace_bytes = stats.workspace.count(),
          .idle_bytes = stats.idle.count(),
          .cached_bytes = stats.cached.count(),
          .fenced_bytes = stats.fenced.count(),
          .largest_free_block_bytes = stats.largest_free_block.count(),
          .live_blocks = stats.live_blocks,
          .allocations_total = stats.num_allocs,
          .refusals_total = stats.num_refusals};
}

class BlocksInPages final : public SnapshotPages {
 public:
  explicit BlocksInPages(PoolBlocks taken) : taken_(std::move(taken)), told_(taken_.ops.size()) {
    SortByOffset(taken_.blocks);
  }

  void Fill(wire::SnapshotPage& page) override {
    if (page.page == 0) page.region = RegionOf(taken_.about);
    const std::size_t used = AddMappings(page);
    const std::size_t mappings = taken_.about.mappings.size();
    if (mapping_ == mappings) AddBlocks(kMostListBytes - used, page);
    page.more = mapping_ < mappings || block_ < taken_.blocks.size();
  }

 private:
  std::size_t AddMappings(wire::SnapshotPage& page);
  void AddBlocks(std::size_t bytes_left, wire::SnapshotPage& page);

  PoolBlocks taken_;
  std::vector<std::uint32_t> told_;  // the daemon's number of each of taken_.ops; 0: not told yet
  std::uint32_t told_ops_ = 0;
  std::size_t mapping_ = 0, block_ = 0;            // the next ones
  std::uint64_t mapping_end_ = 0, block_end_ = 0;  // of the ones before
};

std::size_t BlocksInPages::AddMappings(wire::SnapshotPage& page) {
  std::size_t used = 0;
  const std::vector<MemorySnapshot::Mapping>& mappings = taken_.about.mappings;
  if (mapping_ == mappings.size()) return used;
  wire::MappingList& list = page.mappings.emplace();
  list.start = mapping_end_;
  for (; mapping_ < mappings.size(); ++mapping_) {
    const MemorySnapshot::Mapping& mapping = mappings[mapping_];
    const std::uint64_t gap = mapping.offset.count() - mapping_end_;
    const std::size_t bytes = VarintBytes(gap) + VarintBytes(mapping.bytes.count());
    if (used + bytes > kMostListBytes) break;
    used += bytes;
    list.gap.push_back(gap);
    list.bytes.push_back(mapping.bytes.count());
    mapping_end_ = mapping.offset.count() + mapping.bytes.count();
  }
  return used;
}

void BlocksInPages::AddBlocks(std::size_t bytes_left, wire::SnapshotPage& page) {
  if (block_ == taken_.blocks.size()) return;
  wire::BlockList list;
  list.start = block_end_;
  for (; block_ < taken_.blocks.size(); ++block_) {
    const BlockCopy& block = taken_.blocks[block_];
    const std::uint64_t offset = PoolBlocks::OffsetOf(block).count();
    const std::uint64_t block_bytes = PoolBlocks::BytesOf(block).count();
    const std::uint64_t gap = offset - block_end_;
    const std::uint32_t padding = BlockEntry::PaddingOf(block.about);
    const std::uint32_t stream = BlockEntry::StreamOf(block.about);
    const std::uint32_t age =
        Clamp32(static_cast<std::uint64_t>(std::max<std::int64_t>(taken_.AgeOf(block).count(), 0)));
    const std::uint32_t op = BlockEntry::OpOf(block.about);
    const bool is_new = !taken_.ops[op].empty() && told_[op] == 0;
    const std::string name = is_new ? NameOnPage(taken_.ops[op]) : std::string();
    const std::uint32_t id = is_new ? told_ops_ + 1 : told_[op];
    const std::size_t bytes = VarintBytes(gap) + VarintBytes(block_bytes) + VarintBytes(padding) +
                              VarintBytes(id) + VarintBytes(stream) + VarintBytes(age) + 1 +
                              (is_new ? name.size() + 3 : 0);
    if (bytes > bytes_left) break;
    bytes_left -= bytes;
    if (is_new) {
      page.op_names.push_back(name);
      told_[op] = id;
      told_ops_ = id;
    }
    list.gap.push_back(gap);
    list.bytes.push_back(block_bytes);
    list.padding.push_back(padding);
    list.op.push_back(id);
    list.stream.push_back(stream);
    list.age_ms.push_back(age);
    list.state.push_back(StateOf(PoolBlocks::StateOf(block)));
    block_end_ = offset + block_bytes;
  }
  if (!list.bytes.empty()) page.blocks = std::move(list);
}

class MapInPages final : public SnapshotPages {
 public:
  MapInPages(const PoolBlocks& taken, std::size_t cells)
      : region_(RegionOf(taken.about)), map_(MapOfBlocks(taken, cells)), told_(taken.ops.size()) {
    for (std::size_t op = 0; op < taken.ops.size(); ++op) {
      if (!map_.op_bytes[op].is_zero()) ops_.push_back({op, NameOnPage(taken.ops[op])});
    }
    std::stable_sort(ops_.begin(), ops_.end(),
                     [this](const Op& a, const Op& b) { return map_.op_bytes[a.op] > map_.op_bytes[b.op]; });
    for (std::size_t i = 0; i < ops_.size(); ++i) told_[ops_[i].op] = static_cast<std::uint32_t>(i + 1);
  }

  void Fill(wire::SnapshotPage& page) override {
    wire::BlockMap& list = page.map.emplace();
    if (page.page == 0) {
      page.region = region_;
      list.held_bytes = map_.held.count();
      list.cell_bytes = map_.cell_bytes.count();
    }
    const std::size_t used = AddNames(page, list);
    if (op_ == ops_.size()) AddCells(kMostListBytes - used, list);
    page.more = op_ < ops_.size() || cell_ < map_.cells.size();
  }

 private:
  struct Op {
    std::size_t op;  // in PoolBlocks::ops
    std::string name;
  };
  std::size_t AddNames(wire::SnapshotPage& page, wire::BlockMap& list) {
    std::size_t used = 0;
    for (; op_ < ops_.size(); ++op_) {
      const std::uint64_t op_bytes = map_.op_bytes[ops_[op_].op].count();
      const std::size_t bytes = ops_[op_].name.size() + 3 + VarintBytes(op_bytes);
      if (used + bytes > kMostListBytes) break;
      used += bytes;
      page.op_names.push_back(ops_[op_].name);
      list.op_bytes.push_back(op_bytes);
    }
    return used;
  }
  void AddCells(std::size_t bytes_left, wire::BlockMap& list) {
    for (; cell_ < map_.cells.size(); ++cell_) {
      const BlockMap::Cell& cell = map_.cells[cell_];
      const std::uint32_t op = cell.used.is_zero() ? 0 : told_[cell.op];
      const std::size_t bytes = VarintBytes(op) + VarintBytes(cell.used.count()) + VarintBytes(cell.blocks) +
                                VarintBytes(cell.gaps);
      if (bytes > bytes_left) return;
      bytes_left -= bytes;
      list.op.push_back(op);
      list.used.push_back(cell.used.count());
      list.blocks.push_back(cell.blocks);
      list.gaps.push_back(cell.gaps);
    }
  }

  const wire::RegionStats region_;
  const BlockMap map_;
  std::vector<Op> ops_;              // of live blocks, the one with most bytes first
  std::vector<std::uint32_t> told_;  // the daemon's number of each of PoolBlocks::ops
  std::size_t op_ = 0, cell_ = 0;    // the next ones
};

}  // namespace

std::unique_ptr<SnapshotPages> SnapshotPages::OfBlocks(PoolBlocks taken) {
  return std::make_unique<BlocksInPages>(std::move(taken));
}

std::unique_ptr<SnapshotPages> SnapshotPages::OfMap(const PoolBlocks& taken, std::size_t cells) {
  return std::make_unique<MapInPages>(taken, cells);
}

}  // namespace lgpu
