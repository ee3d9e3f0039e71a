#ifndef LGPU_DAEMON_SNAPSHOTS_LEASE_BLOCKS_H_
#define LGPU_DAEMON_SNAPSHOTS_LEASE_BLOCKS_H_

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "allocator/broker/broker.h"
#include "lgpu/v1/stats.pb.h"
#include "proto/wire/snapshot_messages.h"

namespace lgpu::daemon {

/// The records of a memory snapshot: the blocks of the programs of one lease, as the programs told them.
/// Every number was checked for sense: blocks and mappings lie inside the region, in address order, and do
/// not overlap; ops have names. Whether they are true is the program's affair. Offsets are bytes from the
/// start of the region. Plain values.

/// One block.
struct ToldBlock {
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
  std::uint32_t padding = 0;  // bytes beyond what was asked for
  std::uint32_t age_ms = 0;   // at DeviceBlocks::taken_at
  std::uint32_t op = 0;       // in DeviceBlocks::ops
  std::uint16_t stream = 0;
  std::uint8_t state = static_cast<std::uint8_t>(wire::BlockList::State::kLive);
  std::uint64_t end() const { return offset + bytes; }
};
static_assert(sizeof(ToldBlock) == 32);

/// Neighbouring chunks that are mapped. What no mapping covers is address space without memory.
struct ToldMapping {
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
};

/// A cell of a map. `op`: that has most of it, in DeviceBlocks::ops; 0: no live block.
struct ToldCell {
  std::uint64_t used = 0;  // bytes in live blocks
  std::uint32_t op = 0;
  std::uint32_t blocks = 0;  // live ones that begin in it
  std::uint32_t gaps = 0;    // how often address space without memory was left out there
};

/// The mapped memory of one logical device in address order, thinned by its program.
struct ToldMap {
  std::uint64_t held_bytes = 0;
  std::uint64_t cell_bytes = 0;
  std::vector<std::uint64_t> op_bytes = {0};  // in live blocks, as DeviceBlocks::ops
  std::vector<ToldCell> cells = {};
};

/// One logical device inside one program.
struct DeviceBlocks {
  LogicalId id;
  int index = 0;  // GPU:index inside the lease
  std::string card_uuid;
  int card_index = 0;
  /// Not OK: there is nothing below. DEADLINE_EXCEEDED: no answer in time; UNAVAILABLE: the program ended, or
  /// lost the daemon; DATA_LOSS: what it told cannot be; else as the program answered.
  absl::Status status;
  std::chrono::system_clock::time_point taken_at;
  wire::RegionStats region;
  std::vector<std::string> ops;  // [0]: "", of blocks whose owner said nothing
  // Either these, or the map.
  std::vector<ToldMapping> mappings;
  std::vector<ToldBlock> blocks;
  ToldMap map;
};

/// One session of the lease.
struct SessionBlocks {
  SessionId id;
  std::int64_t pid = 0;
  std::string command;
  /// FAILED_PRECONDITION: its program cannot answer: older than snapshots, or not connected again.
  absl::Status status;
  std::vector<v1::ChargedKind> charged_by_kind;  // of a program that takes memory from the driver itself
  std::vector<DeviceBlocks> devices;             // none: the program has no blocks, or cannot answer
};

/// The blocks of a lease's programs.
struct LeaseBlocks {
  std::string lease_id;
  std::string lease_name;
  std::string owner;
  std::chrono::system_clock::time_point taken_at;  // when the programs were asked
  std::vector<SessionBlocks> sessions = {};
  /// The user's room for blocks that this record takes up, given back with the record's last copy.
  std::shared_ptr<void> room = {};
};

}  // namespace lgpu::daemon

#endif  // LGPU_DAEMON_SNAPSHOTS_LEASE_BLOCKS_H_
