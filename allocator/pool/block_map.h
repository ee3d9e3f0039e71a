#ifndef LGPU_ALLOCATOR_POOL_BLOCK_MAP_H_
#define LGPU_ALLOCATOR_POOL_BLOCK_MAP_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "allocator/pool/pool_blocks.h"
#include "lgpu/bytes.h"

namespace lgpu {

/// A BlockMap is a snapshot of a pool thinned to cells of one size: its mapped memory in address order.
/// Address space without memory takes no room: the memory behind it follows at once. A plain value.
struct BlockMap {
  struct Cell {
    Bytes used;                // in live blocks
    std::uint32_t op = 0;      // that has most of the used bytes, as in PoolBlocks::ops
    std::uint32_t blocks = 0;  // live blocks that begin in the cell
    std::uint32_t gaps = 0;    // how often address space without memory was left out there
  };
  Bytes held;                   // of all mappings
  Bytes cell_bytes;             // a multiple of the granule; the last cell may have less memory
  std::vector<Cell> cells;      // none where nothing is mapped
  std::vector<Bytes> op_bytes;  // in live blocks, as PoolBlocks::ops
};

/// Thins `taken` to at most `cells` cells, at least one. Its blocks may have any order. Takes 8 bytes for
/// each live block in each cell that it touches meanwhile, which the system has back at the end.
BlockMap MapOfBlocks(const PoolBlocks& taken, std::size_t cells);

}  // namespace lgpu

#endif  // LGPU_ALLOCATOR_POOL_BLOCK_MAP_H_
