#include "allocator/block_table.h"

#include "allocator/check.h"

namespace lgpu {

std::uint32_t BlockTable::Extend() {
  static_assert(alignof(Entry) <= alignof(std::max_align_t));
  const std::uint32_t index = end_.load(std::memory_order_relaxed);
  const std::uint32_t shifted = index + kFirst;
  const auto segment = static_cast<std::uint32_t>(std::bit_width(shifted)) - kFirstWidth;
  LGPU_CHECK_OP(segment, <, kSegments);
  if (segments_[segment] == nullptr) {
    // Left as it is: entries begin one by one, so that a large segment costs no pause.
    segments_[segment] =
        std::make_unique_for_overwrite<std::byte[]>(sizeof(Entry) * (std::size_t{kFirst} << segment));
    starts_[segment].store(reinterpret_cast<Entry*>(segments_[segment].get()), std::memory_order_relaxed);
  }
  if (index == 1) {
    std::construct_at(&at(0));
  }
  std::construct_at(&at(index));
  end_.store(index + 1, std::memory_order_release);
  return index;
}

}  // namespace lgpu
