#ifndef LGPU_PROTO_WIRE_SNAPSHOT_MESSAGES_H_
#define LGPU_PROTO_WIRE_SNAPSHOT_MESSAGES_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

/// The messages of lgpu/v1/snapshot.proto, and the frames with them, as plain structs. The .proto files say
/// what each field means; a test holds every number, name and type against them.

namespace lgpu::wire {

struct RegionStats {
  std::uint64_t base_address = 0;
  std::uint64_t reserved_bytes = 0;
  std::uint64_t granularity_bytes = 0;
  std::uint64_t limit_bytes = 0;
  std::uint64_t requested_bytes = 0;
  std::uint64_t used_bytes = 0;
  std::uint64_t peak_used_bytes = 0;
  std::uint64_t held_bytes = 0;
  std::uint64_t workspace_bytes = 0;
  std::uint64_t idle_bytes = 0;
  std::uint64_t cached_bytes = 0;
  std::uint64_t fenced_bytes = 0;
  std::uint64_t largest_free_block_bytes = 0;
  std::uint64_t live_blocks = 0;
  std::uint64_t allocations_total = 0;
  std::uint64_t refusals_total = 0;
  static void Fields(auto&& visit, auto& m) {
    visit(1, m.base_address);
    visit(2, m.reserved_bytes);
    visit(3, m.granularity_bytes);
    visit(4, m.limit_bytes);
    visit(5, m.requested_bytes);
    visit(6, m.used_bytes);
    visit(7, m.peak_used_bytes);
    visit(8, m.held_bytes);
    visit(9, m.workspace_bytes);
    visit(10, m.idle_bytes);
    visit(11, m.cached_bytes);
    visit(12, m.fenced_bytes);
    visit(13, m.largest_free_block_bytes);
    visit(14, m.live_blocks);
    visit(15, m.allocations_total);
    visit(16, m.refusals_total);
  }
};

struct MappingList {
  std::uint64_t start = 0;
  std::vector<std::uint64_t> gap;
  std::vector<std::uint64_t> bytes;
  static void Fields(auto&& visit, auto& m) {
    visit(1, m.start);
    visit(2, m.gap);
    visit(3, m.bytes);
  }
};

struct BlockList {
  enum class State : std::int32_t { kLive = 0, kCached = 1, kFenced = 2 };
  std::uint64_t start = 0;
  std::vector<std::uint64_t> gap;
  std::vector<std::uint64_t> bytes;
  std::vector<std::uint32_t> padding;
  std::vector<std::uint32_t> op;
  std::vector<std::uint32_t> stream;
  std::vector<std::uint32_t> age_ms;
  std::vector<State> state;
  static void Fields(auto&& visit, auto& m) {
    visit(1, m.start);
    visit(2, m.gap);
    visit(3, m.bytes);
    visit(4, m.padding);
    visit(5, m.op);
    visit(6, m.stream);
    visit(7, m.age_ms);
    visit(8, m.state);
  }
};

struct BlockMap {
  std::uint64_t held_bytes = 0;
  std::uint64_t cell_bytes = 0;
  std::vector<std::uint64_t> op_bytes;
  std::vector<std::uint32_t> op;
  std::vector<std::uint64_t> used;
  std::vector<std::uint32_t> blocks;
  std::vector<std::uint32_t> gaps;
  static void Fields(auto&& visit, auto& m) {
    visit(1, m.held_bytes);
    visit(2, m.cell_bytes);
    visit(3, m.op_bytes);
    visit(4, m.op);
    visit(5, m.used);
    visit(6, m.blocks);
    visit(7, m.gaps);
  }
};

struct Snapshot {
  std::uint64_t snapshot_id = 0;
  std::uint64_t device_id = 0;
  std::uint32_t page = 0;
  bool end = false;
  std::uint32_t cells = 0;
  static void Fields(auto&& visit, auto& m) {
    visit(1, m.snapshot_id);
    visit(2, m.device_id);
    visit(3, m.page);
    visit(4, m.end);
    visit(100, m.cells);
  }
};

struct SnapshotPage {
  std::uint64_t snapshot_id = 0;
  std::uint32_t page = 0;
  std::int32_t code = 0;
  std::string message;
  std::optional<RegionStats> region;
  std::vector<std::string> op_names;
  std::optional<MappingList> mappings;
  std::optional<BlockList> blocks;
  bool more = false;
  std::optional<BlockMap> map;
  static void Fields(auto&& visit, auto& m) {
    visit(1, m.snapshot_id);
    visit(2, m.page);
    visit(3, m.code);
    visit(4, m.message);
    visit(5, m.region);
    visit(6, m.op_names);
    visit(7, m.mappings);
    visit(8, m.blocks);
    visit(9, m.more);
    visit(100, m.map);
  }
};

}  // namespace lgpu::wire

#endif  // LGPU_PROTO_WIRE_SNAPSHOT_MESSAGES_H_
