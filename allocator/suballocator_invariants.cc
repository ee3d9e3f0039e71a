#include "absl/strings/str_cat.h"
#include "allocator/suballocator.h"

namespace lgpu {
namespace {

absl::Status Broken(const char* what, std::uint64_t offset, std::uint64_t a, std::uint64_t b) {
  return absl::InternalError(
      absl::StrCat("suballocator: ", what, " (at granule ", offset, ": ", a, " against ", b, ")"));
}

}  // namespace

absl::Status Suballocator::CheckNode(std::uint32_t index) const {
  const Node& node = nodes_[index];
  const State state = node.state();
  if (node.size == 0) return Broken("an empty node", node.offset, node.size, 0);
  if ((state == State::kFree || state == State::kUnmapped) && node.next != 0 &&
      nodes_[node.next].state() == state) {
    return Broken("neighbours that are free and of one kind are not merged", node.offset, index, node.next);
  }
  const std::uint64_t first = PageOf(node.offset);
  const std::uint64_t end = PageOf(node.end() - 1) + 1;
  const std::uint64_t mapped = pages_.CountMapped(first, end);
  const bool whole = node.offset % page_ == 0 && node.size % page_ == 0;
  switch (state) {
    case State::kVacant:
    case State::kRetired:
      return Broken("a vacant node in the address order", node.offset, index, 0);
    case State::kLive:
    case State::kShared:
    case State::kCached:
    case State::kFenced:
    case State::kFree:
    case State::kDetached:
      if (mapped != end - first) {
        return Broken("a live or free range touches a page that is not mapped", node.offset, node.size,
                      page_);
      }
      break;
    case State::kUnmapped:
      if (!whole || mapped != 0) {
        return Broken("an unmapped range is not made of whole unmapped pages", node.offset, node.size, page_);
      }
      break;
    case State::kClaimed:
      break;
  }
  if (state == State::kDetached &&
      (!whole || pages_.NextBorder(first, end) != first || pages_.PreviousBorder(end, first) != end)) {
    return Broken("a detached range is not made of whole chunks", node.offset, node.size, page_);
  }
  if (node.is_block() && node.stamp != kAnyChunk && node.size <= small_ && pages_.AnyLargeChunk(first, end)) {
    return Broken("a small block lies in a chunk of more than one page", node.offset, node.size, page_);
  }
  return absl::OkStatus();
}

absl::Status Suballocator::CheckIndex(const Index& fits, int zone, std::uint64_t expected) const {
  std::uint64_t count = 0;
  for (std::uint32_t c = 0; c < Index::kClasses; ++c) {
    std::uint32_t previous = 0;
    for (std::uint32_t index = fits.head(c); index != 0; index = nodes_[index].behind) {
      ++count;
      const Node& node = nodes_[index];
      const State kind = zone < kZones ? State::kFree : State::kUnmapped;
      if (node.state() != kind || node.before != previous || Index::ClassOf(node.size) != c ||
          (zone < kZones && ZoneOf(node.offset) != static_cast<std::size_t>(zone))) {
        return Broken("an index holds a wrong node", node.offset, node.size, c);
      }
      previous = index;
    }
    if ((fits.head(c) != 0) != (fits.NextClass(c) == c)) {
      return Broken("the bitmap of an index is wrong about a class", 0, c, fits.NextClass(c));
    }
  }
  return count == expected ? absl::OkStatus()
                           : Broken("an index misses nodes or has too many", 0, count, expected);
}

absl::Status Suballocator::CheckSlots(std::uint64_t in_order) const {
  std::uint64_t vacant = 0;
  for (std::uint32_t home = 0; home < kHomes; ++home) {
    for (std::uint32_t index = vacant_[home]; index != 0; index = nodes_[index].behind) {
      if (nodes_[index].state() != State::kVacant || nodes_[index].generation() >= last_generation_ ||
          ++vacant > nodes_.end()) {
        return Broken("a list of vacant slots holds a wrong one", 0, index, vacant);
      }
      if (HomeOf(index) != home) {
        return Broken("a slot is vacant in a home that is not its own", 0, HomeOf(index), home);
      }
    }
  }
  if (!run_homes_.empty() && run_homes_.size() != (nodes_.end() + kHomeRun - 1) / kHomeRun) {
    return Broken("slots and runs of homes differ", 0, run_homes_.size(), nodes_.end());
  }
  for (const std::uint8_t home : run_homes_) {
    if (home >= kHomes) return Broken("a run of slots is of a home that there is not", 0, home, kHomes);
  }
  const std::uint64_t slots = nodes_.end() - 1;
  return in_order + vacant + retired_nodes_ == slots
             ? absl::OkStatus()
             : Broken("nodes got lost", 0, in_order + vacant + retired_nodes_, slots);
}

absl::Status Suballocator::CheckInvariants() const {
  std::uint64_t reached = 0;
  std::uint64_t nodes = 0;
  std::uint64_t used = 0;
  std::uint64_t free = 0;
  std::uint64_t live = 0;
  std::array<std::uint64_t, kZones> free_nodes{};
  std::uint64_t unmapped_nodes = 0;
  std::uint64_t unmapped_pages = 0;
  std::uint32_t previous = 0;
  for (std::uint32_t index = first(); index != 0; index = nodes_[index].next) {
    const Node& node = nodes_[index];
    if (node.offset != reached || node.previous != previous) {
      return Broken("nodes do not follow each other", node.offset, node.offset, reached);
    }
    if (absl::Status status = CheckNode(index); !status.ok()) return status;
    ++nodes;
    if (node.is_block()) {
      used += node.size;
      ++live;
    } else if (node.state() == State::kFree) {
      free += node.size;
      ++free_nodes[ZoneOf(node.offset)];
    } else if (node.state() == State::kUnmapped) {
      ++unmapped_nodes;
      unmapped_pages += node.size / page_;
    } else if (node.state() == State::kClaimed) {
      const std::uint64_t end = PageOf(node.end() - 1) + 1;
      unmapped_pages += end - PageOf(node.offset) - pages_.CountMapped(PageOf(node.offset), end);
    }
    reached = node.end();
    previous = index;
  }
  if (reached != reserved_) return Broken("the nodes do not cover the region", reached, reached, reserved_);
  if (nodes_[0].state() != State::kVacant || nodes_[0].previous != previous) {
    return Broken("slot 0 is not the end of the list", 0, nodes_[0].previous, previous);
  }
  if (used != used_ || live != live_blocks_) {
    return Broken("used is not the sum of live blocks", 0, used, used_);
  }
  if (free != free_) return Broken("free is not the sum of free ranges", 0, free, free_);
  if (const char* broken = pages_.CheckInvariants(); broken != nullptr) {
    return absl::InternalError(absl::StrCat("page map: ", broken));
  }
  if (unmapped_pages + pages_.mapped_pages() != pages_.pages()) {
    return Broken("the unmapped ranges are not the pages that are not mapped", 0, unmapped_pages,
                  pages_.mapped_pages());
  }
  if (pages_.AnyLargeChunk(zones_[1] / page_, pages_.pages())) {
    return Broken("a chunk of more than one page among small blocks", zones_[1], 0, 0);
  }
  absl::Status status = CheckIndex(unmapped_, kZones, unmapped_nodes);
  for (std::size_t zone = 0; zone < kZones; ++zone) {
    status.Update(CheckIndex(free_ranges_[zone], static_cast<int>(zone), free_nodes[zone]));
  }
  status.Update(CheckSlots(nodes));
  return status;
}

}  // namespace lgpu
