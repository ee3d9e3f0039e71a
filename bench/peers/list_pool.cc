#include "bench/peers/list_pool.h"

#include <algorithm>
#include <iterator>

namespace lgpu::bench {

bool ListPool::Allocate(Slot slot, Bytes bytes) {
  const Bytes rounded = RoundUp(bytes, 256_B);
  auto best = free_.end();
  for (auto range = free_.begin(); range != free_.end(); ++range) {
    if (range->bytes >= rounded && (best == free_.end() || range->bytes < best->bytes)) best = range;
  }
  if (best == free_.end()) {
    const Bytes left = limit_ - held_;
    if (rounded > left) return false;
    const Bytes step = std::min(left, std::max(rounded, held_));
    best = free_.insert(free_.end(), {next_address_, step});
    next_address_ += step + 256_B;  // never adjacent to what came before
    held_ += step;
    ++growths_;
  }
  live_[slot] = {best->offset, rounded};
  if (best->bytes == rounded) {
    free_.erase(best);
  } else {
    best->offset += rounded;
    best->bytes -= rounded;
  }
  return true;
}

void ListPool::Free(Slot slot) {
  const Range block = live_[slot];
  const auto next = std::find_if(free_.begin(), free_.end(),
                                 [&](const Range& range) { return range.offset > block.offset; });
  auto place = free_.insert(next, block);
  if (next != free_.end() && place->end() == next->offset) {
    place->bytes += next->bytes;
    free_.erase(next);
  }
  if (place != free_.begin()) {
    const auto previous = std::prev(place);
    if (previous->end() == place->offset) {
      previous->bytes += place->bytes;
      free_.erase(place);
    }
  }
}

}  // namespace lgpu::bench
