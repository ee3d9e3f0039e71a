#ifndef LGPU_ALLOCATOR_POOL_BLOCK_SCAN_H_
#define LGPU_ALLOCATOR_POOL_BLOCK_SCAN_H_

#include <cstdint>

#include "absl/functional/function_ref.h"
#include "allocator/node_table.h"
#include "allocator/pool/page_array.h"

namespace lgpu {

struct PoolState;

/// A copy of a pool's Node for one block. Offset and size are in granules; BlockEntry reads `about`.
struct BlockCopy {
  std::uint32_t offset = 0;
  std::uint32_t size = 0;
  std::uint32_t about = 0;
  std::uint32_t birth = 0;  // in milliseconds of the pool's clock
  std::uint32_t index = 0;  // of its node
  Node::State state = Node::kVacant;
};
static_assert(sizeof(BlockCopy) == 24);

/// Copies all blocks of a pool as they are at one moment, in no particular order, under the pool's lock:
/// about 2 ms for a million blocks, in which no other thread takes the lock. `at_that_moment` is called under
/// the lock. What changes without the lock, the state of a small block and what BlockEntry has of it, may be
/// older, in parts. Thread-safe.
PageArray<BlockCopy> ScanBlocks(const PoolState& state, absl::FunctionRef<void()> at_that_moment);

/// Sorts by offset.
void SortByOffset(PageArray<BlockCopy>& blocks);

}  // namespace lgpu

#endif  // LGPU_ALLOCATOR_POOL_BLOCK_SCAN_H_
