#include "allocator/pool/pool_blocks.h"

#include <algorithm>

namespace lgpu {
namespace {

constexpr std::uint32_t kMostOps = std::uint32_t{1} << 17;  // a BlockEntry has room for no more

void Add(MemoryStats& sum, const MemoryStats& more) {
  sum.limit += more.limit;
  sum.requested += more.requested;
  sum.used += more.used;
  sum.peak_used += more.peak_used;
  sum.held += more.held;
  sum.workspace += more.workspace;
  sum.idle += more.idle;
  sum.cached += more.cached;
  sum.fenced += more.fenced;
  sum.largest_free_block = std::max(sum.largest_free_block, more.largest_free_block);
  sum.live_blocks += more.live_blocks;
  sum.num_allocs += more.num_allocs;
  sum.num_refusals += more.num_refusals;
}

}  // namespace

void PoolBlocks::Append(const PoolBlocks& other) {
  const auto distance = static_cast<std::uint64_t>(other.about.base - about.base);
  const Bytes shift(distance);
  const auto granules = static_cast<std::uint32_t>(shift / Suballocator::kGranule);
  const auto first_op = static_cast<std::uint32_t>(ops.size());
  ops.insert(ops.end(), other.ops.begin(), other.ops.end());
  blocks.Reserve(blocks.size() + other.blocks.size());
  for (BlockCopy block : other.blocks) {
    const std::uint32_t op = BlockEntry::OpOf(block.about);
    const bool has_room = op != 0 && first_op + op < kMostOps;
    block.about = BlockEntry::About(BlockEntry::PaddingOf(block.about), BlockEntry::StreamOf(block.about),
                                    has_room ? first_op + op : 0);
    block.offset += granules;
    block.birth += now - other.now;
    blocks.push_back(block);
  }
  for (const MemorySnapshot::Mapping& mapping : other.about.mappings) {
    about.mappings.push_back({mapping.offset + shift, mapping.bytes});
  }
  about.reserved = shift + other.about.reserved;
  Add(about.stats, other.about.stats);
}

}  // namespace lgpu
