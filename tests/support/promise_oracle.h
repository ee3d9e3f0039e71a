#ifndef LGPU_TESTS_SUPPORT_PROMISE_ORACLE_H_
#define LGPU_TESTS_SUPPORT_PROMISE_ORACLE_H_

// The promise of a Pool, worked out by brute force. This file knows nothing of the allocator: it includes
// none of its headers, and tries every place.

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <vector>

namespace lgpu::oracle {

struct World {
  std::uint64_t page;
  std::uint64_t reserved;
  std::map<std::uint64_t, std::uint64_t> chunks;  // mapped, by offset
  std::map<std::uint64_t, std::uint64_t> live;    // blocks, by offset
};

struct Need {
  std::uint64_t bytes;  // after rounding
  std::uint64_t alignment;
  bool one_page_chunks;  // a small block does not lie in a chunk of more than one page
};

/// Bytes of chunks that hold a live block.
inline std::uint64_t Pinned(const World& world) {
  std::uint64_t pinned = 0;
  for (const auto& [offset, bytes] : world.chunks) {
    const auto at = world.live.lower_bound(offset + bytes);
    if (at != world.live.begin() && std::prev(at)->first + std::prev(at)->second > offset) pinned += bytes;
  }
  return pinned;
}

/// The fewest bytes of pages, of no pinned chunk, that the block touches, wherever it may lie; nothing if
/// there is no place among the addresses.
inline std::optional<std::uint64_t> Needed(const World& world, const Need& need) {
  const std::uint64_t pages = world.reserved / world.page;
  std::vector<std::uint64_t> loose(pages, 1);   // in no pinned chunk
  std::vector<std::uint64_t> barred(pages, 0);  // in a pinned chunk where the block must not lie
  for (const auto& [offset, bytes] : world.chunks) {
    const auto at = world.live.lower_bound(offset + bytes);
    if (at != world.live.begin() && std::prev(at)->first + std::prev(at)->second > offset) {
      for (std::uint64_t p = offset / world.page; p < (offset + bytes) / world.page; ++p) {
        loose[p] = 0;
        barred[p] = need.one_page_chunks && bytes > world.page ? 1 : 0;
      }
    }
  }
  std::vector<std::uint64_t> loose_before(pages + 1, 0);
  std::vector<std::uint64_t> barred_before(pages + 1, 0);
  for (std::uint64_t p = 0; p < pages; ++p) {
    loose_before[p + 1] = loose_before[p] + loose[p];
    barred_before[p + 1] = barred_before[p] + barred[p];
  }
  // The cost of a place changes only at borders of pages and of live blocks.
  const std::uint64_t step = std::max<std::uint64_t>(need.alignment, 512);
  std::vector<std::uint64_t> starts;
  const auto add = [&](std::uint64_t border) {
    starts.push_back((border + step - 1) / step * step);
    if (border >= need.bytes) starts.push_back((border - need.bytes) / step * step);
  };
  for (std::uint64_t border = 0; border <= world.reserved; border += world.page) add(border);
  for (const auto& [offset, bytes] : world.live) {
    add(offset);
    add(offset + bytes);
  }
  std::optional<std::uint64_t> fewest;
  for (const std::uint64_t start : starts) {
    const std::uint64_t end = start + need.bytes;
    if (end > world.reserved || end < start) continue;
    const auto at = world.live.lower_bound(end);
    if (at != world.live.begin() && std::prev(at)->first + std::prev(at)->second > start) continue;
    const std::uint64_t first = start / world.page;
    const std::uint64_t last = (end + world.page - 1) / world.page;
    if (barred_before[last] != barred_before[first]) continue;
    const std::uint64_t cost = (loose_before[last] - loose_before[first]) * world.page;
    fewest = std::min(fewest.value_or(cost), cost);
  }
  return fewest;
}

}  // namespace lgpu::oracle

#endif  // LGPU_TESTS_SUPPORT_PROMISE_ORACLE_H_
