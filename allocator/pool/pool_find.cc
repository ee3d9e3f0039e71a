// Look-up by address, and the errors for wrong blocks.

#include "absl/strings/str_cat.h"
#include "allocator/pool/pool_impl.h"
#include "lgpu/status.h"

namespace lgpu {
namespace {

std::string Hex(const void* address) {
  return absl::StrCat("0x", absl::Hex(reinterpret_cast<std::uintptr_t>(address)));
}

Bytes OffsetOf(const Node& node) { return Suballocator::kGranule * node.offset; }
Bytes SizeOf(const Node& node) { return Suballocator::kGranule * node.size; }

}  // namespace

// Walks all entries: only error paths call it.
std::string Pool::Impl::DescribeAddress(const void* address) const {
  const auto at = reinterpret_cast<std::uintptr_t>(address);
  const auto base = reinterpret_cast<std::uintptr_t>(state_.base);
  if (at < base || at - base >= state_.reserved.count()) {
    return absl::StrCat("it lies outside this pool's region of ", FormatBytes(state_.reserved), " at ",
                        Hex(state_.base), ": it belongs to another pool, or to the host");
  }
  const Bytes offset(at - base);
  for (std::uint32_t index = 1; index < state_.nodes.end(); ++index) {
    const Node& node = state_.nodes[index];
    const Node::State state = node.state();
    if (!Node::IsBlock(state) || offset < OffsetOf(node) || offset >= OffsetOf(node) + SizeOf(node)) continue;
    if (state == Node::kCached || state == Node::kFenced) return "it was freed before";
    const std::string op = state_.owners.NameOf(BlockEntry::OpOf(node.behind));
    return absl::StrCat(
        offset == OffsetOf(node) ? "at" : absl::StrCat((offset - OffsetOf(node)).count(), " bytes inside"),
        " this address lies a live block of ", SizeOf(node).count(), " bytes",
        op.empty() ? "" : absl::StrCat(" of op ", op));
  }
  return "no block lies there: it was freed before, or never allocated";
}

absl::Status Pool::Impl::NotLive(const Block& block) const {
  std::string reason = DescribeAddress(block.address);
  if (state_.nodes.Has(block.node)) {
    const Node& node = state_.nodes[block.node];
    const std::uint32_t word = node.word.load(std::memory_order_acquire);
    const bool same_address = block.address == state_.base + OffsetOf(node).count();
    const bool same_size = block.bytes == SizeOf(node);
    const bool same_name = Node::GenerationOf(word) == block.generation;
    if (same_address && same_size && !same_name) {
      reason = "it was freed before, and its address may belong to another block now";
    } else if (same_address && same_name && !same_size) {
      reason = absl::StrCat("the block there has ", SizeOf(node).count(), " bytes");
    }
  }
  return absl::InvalidArgumentError(absl::StrCat("the block of ", block.bytes.count(), " bytes at ",
                                                 Hex(block.address),
                                                 " is not a live block of this pool: ", reason));
}

absl::StatusOr<Block> Pool::Impl::Find(const void* address) {
  LGPU_RETURN_IF_ERROR(state_.CheckAlive());
  const auto at = reinterpret_cast<std::uintptr_t>(address);
  const auto base = reinterpret_cast<std::uintptr_t>(state_.base);
  if (at >= base && at - base < state_.reserved.count() &&
      (at - base) % Suballocator::kGranule.count() == 0) {
    const auto offset = static_cast<std::uint32_t>((at - base) / Suballocator::kGranule.count());
    MutexLock lock(state_.mutex);
    if (!state_.by_address.is_on()) IndexAddresses();
    if (const std::uint32_t index = state_.by_address.Find(offset); index != 0) {
      const Node& node = state_.nodes[index];
      const std::uint32_t word = node.word.load(std::memory_order_acquire);
      const Node::State state = Node::StateOf(word);
      if (state == Node::kLive || state == Node::kShared) {
        return Block{state_.base + OffsetOf(node).count(), SizeOf(node), index, Node::GenerationOf(word)};
      }
    }
  }
  return absl::InvalidArgumentError(
      absl::StrCat("no live block of this pool starts at ", Hex(address), ": ", DescribeAddress(address)));
}

absl::StatusOr<Bytes> Pool::Impl::RequestedOf(const Block& block) const {
  LGPU_RETURN_IF_ERROR(state_.CheckAlive());
  if (state_.LiveWord(block) == 0) return NotLive(block);
  return block.bytes - Bytes(BlockEntry::PaddingOf(state_.nodes[block.node].behind));
}

void Pool::Impl::IndexAddresses() {
  state_.by_address.Start(state_.blocks.live_blocks());
  for (std::uint32_t index = 1; index < state_.nodes.end(); ++index) {
    const Node& node = state_.nodes[index];
    if (node.is_block()) state_.by_address.Insert(node.offset, index);
  }
}

absl::Status Pool::Impl::Free(const void* address) {
  LGPU_ASSIGN_OR_RETURN(const Block block, Find(address));
  return Free(block);
}

}  // namespace lgpu
