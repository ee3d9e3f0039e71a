#ifndef LGPU_ALLOCATOR_POOL_BLOCK_ENTRY_H_
#define LGPU_ALLOCATOR_POOL_BLOCK_ENTRY_H_

#include <cstdint>

namespace lgpu {

/// A Pool's data of a block, in the two numbers of its Node that belong to the owner. `behind` has the
/// padding (size less the size asked for), the stream and the op; `before` has the time of the allocation, in
/// milliseconds of the pool's clock.
struct BlockEntry {
  static std::uint32_t About(std::uint32_t padding, std::uint32_t stream, std::uint32_t op) {
    return padding | stream << 9 | op << 15;
  }
  static std::uint32_t PaddingOf(std::uint32_t about) { return about & 0x1ff; }
  static std::uint32_t StreamOf(std::uint32_t about) { return (about >> 9) & 0x3f; }
  static std::uint32_t OpOf(std::uint32_t about) { return about >> 15; }
};

}  // namespace lgpu

#endif  // LGPU_ALLOCATOR_POOL_BLOCK_ENTRY_H_
