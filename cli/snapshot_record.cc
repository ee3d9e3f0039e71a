#include "cli/snapshot_record.h"

#include <algorithm>
#include <string_view>

#include "lgpu/bytes.h"
#include "lgpu/memory_stats.h"
#include "lgpu/status.h"

namespace lgpu::cli {
namespace {

absl::Status AddLists(const v1::MemorySnapshotPart& part, SnapshotRecord::Device& device) {
  for (const std::string& name : part.op_names()) device.ops.push_back(name);
  std::uint64_t at = part.mappings().start();
  const v1::BlockList& list = part.blocks();
  const int count = list.bytes_size();
  if (part.mappings().gap_size() != part.mappings().bytes_size() || list.gap_size() != count ||
      list.padding_size() != count || list.op_size() != count || list.stream_size() != count ||
      list.age_ms_size() != count || list.state_size() != count) {
    return absl::InternalError("the daemon sent lists of blocks of different lengths");
  }
  for (int i = 0; i < part.mappings().bytes_size(); ++i) {
    at += part.mappings().gap(i);
    device.mappings.push_back({.offset = at, .bytes = part.mappings().bytes(i)});
    at += part.mappings().bytes(i);
  }
  at = list.start();
  for (int i = 0; i < count; ++i) {
    at += list.gap(i);
    if (list.op(i) >= device.ops.size()) return absl::InternalError("a block's op has no name");
    device.blocks.push_back({.offset = at,
                             .bytes = list.bytes(i),
                             .padding = list.padding(i),
                             .age_ms = list.age_ms(i),
                             .op = list.op(i),
                             .stream = static_cast<std::uint16_t>(list.stream(i)),
                             .state = static_cast<std::uint8_t>(list.state(i))});
    at += list.bytes(i);
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status SnapshotRecord::Add(const v1::MemorySnapshotPart& part) {
  if (part.has_head()) head = part.head();
  if (part.has_session()) sessions.push_back({.about = part.session()});
  if (part.has_device()) {
    if (sessions.empty()) return absl::InternalError("the daemon sent a device without its session");
    sessions.back().devices.push_back({.about = part.device()});
  }
  const bool has_lists = part.op_names_size() > 0 || part.has_mappings() || part.has_blocks();
  if (!has_lists) return absl::OkStatus();
  if (sessions.empty() || sessions.back().devices.empty()) {
    return absl::InternalError("the daemon sent blocks without their device");
  }
  return AddLists(part, sessions.back().devices.back());
}

absl::StatusOr<SnapshotRecord> FetchSnapshot(Connection& connection,
                                             const v1::GetMemorySnapshotRequest& request) {
  SnapshotRecord record;
  LGPU_RETURN_IF_ERROR((connection.Watch(
      kGetMemorySnapshot, request, [&](const v1::MemorySnapshotPart& part) { return record.Add(part); })));
  return record;
}

std::string_view BlockStateText(std::uint8_t state) {
  switch (state) {
    case v1::BlockList::STATE_CACHED:
      return "cached";
    case v1::BlockList::STATE_FENCED:
      return "fenced";
    default:
      return "live";
  }
}

double FragmentationOf(const v1::RegionStats& region) {
  MemoryStats stats;
  stats.held = Bytes(region.held_bytes());
  stats.used = Bytes(region.used_bytes());
  stats.workspace = Bytes(region.workspace_bytes());
  stats.largest_free_block = Bytes(region.largest_free_block_bytes());
  return stats.Fragmentation();
}

}  // namespace lgpu::cli
