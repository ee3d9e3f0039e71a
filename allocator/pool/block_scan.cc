#include "allocator/pool/block_scan.h"

#include <array>
#include <utility>

#include "allocator/pool/pool_state.h"

namespace lgpu {

// The array has its memory before the lock is taken, with room for blocks that other threads make until then:
// under the lock the copy is one pass over the nodes, without a page fault.
PageArray<BlockCopy> ScanBlocks(const PoolState& state, absl::FunctionRef<void()> at_that_moment) {
  PageArray<BlockCopy> blocks;
  std::uint64_t expected = 0;
  {
    const MutexLock lock(state.mutex);
    expected = state.blocks.live_blocks();
  }
  blocks.Populate(expected + expected / 8);
  const MutexLock lock(state.mutex);
  for (std::uint32_t index = 1; index < state.nodes.end(); ++index) {
    const Node& node = state.nodes[index];
    const Node::State block = node.state();
    if (Node::IsBlock(block)) {
      blocks.push_back({node.offset, node.size, node.behind, node.before, index, block});
    }
  }
  at_that_moment();
  return blocks;
}

// By 11 bits of the offset at a time, from the low ones up: a sort by comparisons takes ten times as long.
void SortByOffset(PageArray<BlockCopy>& blocks) {
  constexpr unsigned kBits = 11;
  constexpr std::uint32_t kMask = (std::uint32_t{1} << kBits) - 1;
  struct Key {
    std::uint32_t offset;
    std::uint32_t place;
  };
  PageArray<Key> keys, sorted;
  keys.Reserve(blocks.size());
  sorted.Reserve(blocks.size());
  for (std::uint32_t place = 0; place < blocks.size(); ++place) {
    keys.push_back({blocks[place].offset, place});
    sorted.push_back({});
  }
  for (unsigned shift = 0; shift < 32; shift += kBits) {
    std::array<std::uint32_t, kMask + 1> begin{};
    for (const Key& key : keys) ++begin[key.offset >> shift & kMask];
    std::uint32_t before = 0;
    for (std::uint32_t& count : begin) before += std::exchange(count, before);
    for (const Key& key : keys) sorted[begin[key.offset >> shift & kMask]++] = key;
    keys.swap(sorted);
  }
  PageArray<BlockCopy> in_order;
  in_order.Reserve(blocks.size());
  for (const Key& key : keys) in_order.push_back(blocks[key.place]);
  blocks = std::move(in_order);
}

}  // namespace lgpu
