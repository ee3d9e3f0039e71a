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

/// Copies all blocks of a pool as they are at one moment, in no particular order. Reads the nodes without the
/// pool's lock while the pool notes which of them change. Reads those again, until so few are left that
/// reading them under the lock takes less than a millisecond. `at_that_moment` is called under the lock. What
/// changes without the lock, the state of a small block and what BlockEntry has of it, may be older, in
/// parts. Thread-safe; one scan of a pool runs at a time.
PageArray<BlockCopy> ScanBlocks(const PoolState& state, absl::FunctionRef<void()> at_that_moment);

/// Sorts by offset.
void SortByOffset(PageArray<BlockCopy>& blocks);

}  // namespace lgpu

#endif  // LGPU_ALLOCATOR_POOL_BLOCK_SCAN_H_
