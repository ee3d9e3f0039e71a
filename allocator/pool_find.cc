// Addresses without handles, and what to say of wrong ones.

#include <utility>

#include "absl/strings/str_cat.h"
#include "allocator/pool_impl.h"
#include "lgpu/status.h"

namespace lgpu {
namespace {

std::string Hex(const void* address) {
  return absl::StrCat("0x", absl::Hex(reinterpret_cast<std::uintptr_t>(address)));
}

Bytes OffsetOf(const BlockTable::Entry& entry) {
  return Suballocator::kGranule * entry.offset.load(std::memory_order_relaxed);
}

Bytes SizeOf(const BlockTable::Entry& entry) {
  return Suballocator::kGranule * entry.size.load(std::memory_order_relaxed);
}

}  // namespace

// A walk over all entries: this is on the way to an error.
std::string Pool::Impl::DescribeAddress(const void* address) const {
  const auto at = reinterpret_cast<std::uintptr_t>(address);
  const auto base = reinterpret_cast<std::uintptr_t>(base_);
  if (at < base || at - base >= reserved_.count()) {
    return absl::StrCat("it lies outside this pool's region of ", FormatBytes(reserved_), " at ", Hex(base_),
                        ": it belongs to another pool, or to the host");
  }
  const Bytes offset(at - base);
  for (std::uint32_t index = 1; index < table_.end(); ++index) {
    const BlockTable::Entry& entry = table_.at(index);
    const BlockTable::State state = entry.state();
    if (state == BlockTable::kVacant || offset < OffsetOf(entry) ||
        offset >= OffsetOf(entry) + SizeOf(entry)) {
      continue;
    }
    if (state == BlockTable::kCached || state == BlockTable::kFenced) {
      return "it was freed before";
    }
    const std::string op = owners_.NameOf(entry.op());
    return absl::StrCat(
        offset == OffsetOf(entry) ? "at" : absl::StrCat((offset - OffsetOf(entry)).count(), " bytes inside"),
        " this address lies a live block of ", SizeOf(entry).count(), " bytes",
        op.empty() ? "" : absl::StrCat(" of op ", op));
  }
  return "no block lies there: it was freed before, or never allocated";
}

absl::Status Pool::Impl::NotLive(const Block& block) const {
  std::string reason = DescribeAddress(block.address);
  if (table_.Has(block.node)) {
    const BlockTable::Entry& entry = table_.at(block.node);
    const std::uint32_t word = entry.word.load(std::memory_order_acquire);
    const bool same_place = block.address == base_ + OffsetOf(entry).count() && block.bytes == SizeOf(entry);
    if (same_place && BlockTable::GenerationOf(word) != block.generation) {
      reason = "it was freed before, and its address may belong to another block now";
    } else if (BlockTable::GenerationOf(word) == block.generation &&
               block.address == base_ + OffsetOf(entry).count() && block.bytes != SizeOf(entry)) {
      reason = absl::StrCat("the block there has ", SizeOf(entry).count(), " bytes");
    }
  }
  return absl::InvalidArgumentError(absl::StrCat("the block of ", block.bytes.count(), " bytes at ",
                                                 Hex(block.address),
                                                 " is not a live block of this pool: ", reason));
}

absl::StatusOr<Block> Pool::Impl::Find(const void* address) {
  LGPU_RETURN_IF_ERROR(CheckAlive());
  const auto at = reinterpret_cast<std::uintptr_t>(address);
  const auto base = reinterpret_cast<std::uintptr_t>(base_);
  if (at >= base && at - base < reserved_.count() && (at - base) % Suballocator::kGranule.count() == 0) {
    const auto offset = static_cast<std::uint32_t>((at - base) / Suballocator::kGranule.count());
    MutexLock lock(mutex_);
    if (!by_address_.is_on()) {
      IndexAddresses();
    }
    if (const std::uint32_t index = by_address_.Find(offset); index != 0) {
      const BlockTable::Entry& entry = table_.at(index);
      const std::uint32_t word = entry.word.load(std::memory_order_acquire);
      const BlockTable::State state = BlockTable::StateOf(word);
      if (state == BlockTable::kLive || state == BlockTable::kShared) {
        return Block{base_ + OffsetOf(entry).count(), SizeOf(entry), index, BlockTable::GenerationOf(word)};
      }
    }
  }
  return absl::InvalidArgumentError(
      absl::StrCat("no live block of this pool starts at ", Hex(address), ": ", DescribeAddress(address)));
}

void Pool::Impl::IndexAddresses() {
  by_address_.Start(blocks_.live_blocks());
  for (std::uint32_t index = 1; index < table_.end(); ++index) {
    const BlockTable::Entry& entry = table_.at(index);
    if (entry.state() != BlockTable::kVacant) {
      by_address_.Insert(entry.offset.load(std::memory_order_relaxed), index);
    }
  }
}

absl::Status Pool::Impl::Free(const void* address) {
  LGPU_ASSIGN_OR_RETURN(const Block block, Find(address));
  return Free(block);
}

}  // namespace lgpu
