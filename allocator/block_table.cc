#include "allocator/block_table.h"

#include "allocator/check.h"

namespace lgpu {

void BlockTable::MakeUpTo(std::uint32_t last) {
  static_assert(alignof(Entry) <= alignof(std::max_align_t));
  const std::uint32_t first = end_.load(std::memory_order_relaxed);
  for (std::uint32_t index = first == 1 ? 0 : first; index <= last; ++index) {
    const std::uint32_t shifted = index + kFirst;
    const auto segment = static_cast<std::uint32_t>(std::bit_width(shifted)) - kFirstWidth;
    LGPU_CHECK_OP(segment, <, kSegments);
    if (segments_[segment] == nullptr) {
      // Left as it is: entries begin one by one, so that a large segment costs no pause.
      segments_[segment] =
          std::make_unique_for_overwrite<std::byte[]>(sizeof(Entry) * (std::size_t{kFirst} << segment));
      starts_[segment].store(reinterpret_cast<Entry*>(segments_[segment].get()), std::memory_order_relaxed);
    }
    std::construct_at(&at(index));
  }
  end_.store(last + 1, std::memory_order_release);
}

}  // namespace lgpu
