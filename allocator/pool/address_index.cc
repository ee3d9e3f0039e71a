#include "allocator/pool/address_index.h"

#include <algorithm>
#include <bit>
#include <utility>

namespace lgpu {

void AddressIndex::Start(std::size_t expected) {
  const std::size_t slots = std::bit_ceil(std::max<std::size_t>(expected * 2, 64));
  shift_ = 64 - std::countr_zero(slots);
  slots_.assign(slots, {});
  size_ = 0;
}

void AddressIndex::Insert(std::uint32_t offset, std::uint32_t index) {
  if (size_ * 2 >= slots_.size()) {
    const std::vector<Slot> old = std::move(slots_);
    Start(old.size());
    for (const Slot& slot : old) {
      if (slot.index != 0) Insert(slot.offset, slot.index);
    }
  }
  std::size_t at = HomeOf(offset);
  while (slots_[at].index != 0) at = (at + 1) & (slots_.size() - 1);
  slots_[at] = {offset, index};
  ++size_;
}

void AddressIndex::Erase(std::uint32_t offset) {
  const std::size_t mask = slots_.size() - 1;
  std::size_t gap = HomeOf(offset);
  while (slots_[gap].index == 0 || slots_[gap].offset != offset) gap = (gap + 1) & mask;
  // Moves entries that were pushed past the gap back into it.
  for (std::size_t at = (gap + 1) & mask; slots_[at].index != 0; at = (at + 1) & mask) {
    if (((at - HomeOf(slots_[at].offset)) & mask) >= ((at - gap) & mask)) {
      slots_[gap] = slots_[at];
      gap = at;
    }
  }
  slots_[gap] = {};
  --size_;
}

std::uint32_t AddressIndex::Find(std::uint32_t offset) const {
  const std::size_t mask = slots_.size() - 1;
  std::size_t at = HomeOf(offset);
  while (slots_[at].index != 0 && slots_[at].offset != offset) at = (at + 1) & mask;
  return slots_[at].index;
}

}  // namespace lgpu
