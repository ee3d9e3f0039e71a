#ifndef LGPU_MEMORY_SNAPSHOT_H_
#define LGPU_MEMORY_SNAPSHOT_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "lgpu/bytes.h"
#include "lgpu/export.h"
#include "lgpu/memory_stats.h"
#include "lgpu/stream_fences.h"

namespace lgpu {

/// The state of a block at one moment.
enum class BlockState {
  kLive,    // allocated
  kCached,  // freed, in a thread's front cache
  kFenced,  // freed, waiting for the fences of streams that used it
};
/// "live", "cached", "fenced".
LGPU_API std::string_view BlockStateName(BlockState state);

/// Everything that is known of one block; a value type.
struct BlockInfo {
  Bytes offset;  // from the start of the region
  Bytes bytes;
  Bytes requested;
  std::string op = {};  // AllocateOptions.op; empty: not given
  StreamId stream = 0;
  std::chrono::milliseconds age{0};  // since it was allocated, within a second or so
  BlockState state = BlockState::kLive;
};

/// The live blocks of one op.
struct MemoryOwner {
  std::string op = {};  // empty: blocks that were allocated without an op
  Bytes bytes;
  std::uint64_t blocks = 0;
};

/// A MemorySnapshot is a copy of a Pool's state at one moment; a value type.
struct MemorySnapshot {
  /// Neighbouring chunks that are mapped.
  struct Mapping {
    Bytes offset;
    Bytes bytes;
  };
  std::string device = {};  // "/device:GPU:0"
  std::string lease = {};
  std::byte* base = nullptr;  // first address of the region
  Bytes reserved;             // size of the region
  Bytes granularity;          // of its pages
  MemoryStats stats;
  std::vector<BlockInfo> blocks = {};    // by offset
  std::vector<Mapping> mappings = {};    // by offset
  std::vector<MemoryOwner> owners = {};  // largest first
};

/// One JSON object; docs/allocator.md has its schema.
LGPU_API std::string SnapshotJson(const MemorySnapshot& snapshot);
/// For people: the numbers, a picture of the region with a character for each page, the largest owners. No
/// trailing newline.
LGPU_API std::string SnapshotText(const MemorySnapshot& snapshot);

}  // namespace lgpu

#endif  // LGPU_MEMORY_SNAPSHOT_H_
