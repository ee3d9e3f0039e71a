#ifndef LGPU_ALLOCATOR_POOL_POOL_BLOCKS_H_
#define LGPU_ALLOCATOR_POOL_POOL_BLOCKS_H_

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "allocator/pool/block_entry.h"
#include "allocator/pool/block_scan.h"
#include "allocator/suballocator.h"
#include "lgpu/memory_snapshot.h"

namespace lgpu {

/// A PoolBlocks is a snapshot of a pool in 24 bytes for each block, which go back to the system with it. A
/// plain value.
struct PoolBlocks {
  MemorySnapshot about = {};          // everything but blocks and owners
  PageArray<BlockCopy> blocks = {};   // in no particular order
  std::vector<std::string> ops = {};  // by BlockEntry::OpOf; [0]: ""
  std::uint32_t now = 0;              // of the clock of BlockCopy::birth

  /// Those of another pool whose region lies behind this one's: both become one snapshot, of both regions and
  /// all between them. What only one pool can have, as the largest free block, is the larger one's.
  void Append(const PoolBlocks& other);

  static Bytes OffsetOf(const BlockCopy& block) { return Suballocator::kGranule * block.offset; }
  static Bytes BytesOf(const BlockCopy& block) { return Suballocator::kGranule * block.size; }
  std::chrono::milliseconds AgeOf(const BlockCopy& block) const {
    return std::chrono::milliseconds(now - block.birth);
  }
  static BlockState StateOf(const BlockCopy& block) {
    if (block.state == Node::kCached) return BlockState::kCached;
    return block.state == Node::kFenced ? BlockState::kFenced : BlockState::kLive;
  }
};

}  // namespace lgpu

#endif  // LGPU_ALLOCATOR_POOL_POOL_BLOCKS_H_
