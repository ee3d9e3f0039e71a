#include "absl/strings/str_cat.h"
#include "allocator/suballocator.h"

namespace lgpu {
namespace {

absl::Status Broken(const char* what, std::uint64_t offset, std::uint64_t a, std::uint64_t b) {
  return absl::InternalError(
      absl::StrCat("suballocator: ", what, " (at granule ", offset, ": ", a, " against ", b, ")"));
}

}  // namespace

bool Suballocator::AllPages(const Node& node, bool mapped) const {
  for (std::uint64_t page = node.offset / page_; page * page_ < std::uint64_t{node.offset} + node.size;
       ++page) {
    if (mapped_pages_[page] != mapped) {
      return false;
    }
  }
  return true;
}

absl::Status Suballocator::CheckNode(std::uint32_t index) const {
  const Node& node = nodes_[index];
  if (node.size == 0) {
    return Broken("an empty node", node.offset, node.size, 0);
  }
  const bool free = node.state == State::kFree || node.state == State::kUnmapped;
  if (free && node.next != 0 && nodes_[node.next].state == node.state) {
    return Broken("neighbours that are free and of one kind are not merged", node.offset, index, node.next);
  }
  switch (node.state) {
    case State::kVacant:
      return Broken("a vacant node in the address order", node.offset, index, 0);
    case State::kLive:
    case State::kFree:
    case State::kDetached:
      if (!AllPages(node, true)) {
        return Broken("a live or free range touches a page that is not mapped", node.offset, node.size,
                      page_);
      }
      break;
    case State::kUnmapped:
      if (!AllPages(node, false) || node.offset % page_ != 0 || node.size % page_ != 0) {
        return Broken("an unmapped range is not made of whole unmapped pages", node.offset, node.size, page_);
      }
      break;
    case State::kClaimed:
      break;
  }
  return absl::OkStatus();
}

absl::Status Suballocator::CheckIndices(std::uint64_t free_nodes, std::uint64_t unmapped_nodes) const {
  absl::Status status;
  const auto check = [&](const FitIndex<Node>& fits, State kind, std::uint64_t expected) {
    std::uint64_t count = 0;
    for (std::uint32_t c = 0; c < FitIndex<Node>::kClasses; ++c) {
      std::uint32_t previous = 0;
      for (std::uint32_t index = fits.head(c); index != 0; index = nodes_[index].link.next) {
        ++count;
        const Node& node = nodes_[index];
        if (node.state != kind || node.link.previous != previous || FitIndex<Node>::ClassOf(node.size) != c) {
          status.Update(Broken("an index holds a wrong node", node.offset, node.size, c));
        }
        previous = index;
      }
      if (fits.head(c) != 0 && fits.NextClass(c) != c) {
        status.Update(Broken("the bitmap of an index misses a class", 0, c, fits.NextClass(c)));
      }
    }
    if (count != expected) {
      status.Update(Broken("an index misses nodes or has too many", 0, count, expected));
    }
  };
  check(mapped_index_, State::kFree, free_nodes);
  check(unmapped_index_, State::kUnmapped, unmapped_nodes);
  return status;
}

absl::Status Suballocator::CheckInvariants() const {
  std::uint64_t reached = 0;
  std::uint64_t used = 0;
  std::uint64_t free = 0;
  std::uint64_t padding = 0;
  std::uint64_t live = 0;
  std::uint64_t free_nodes = 0;
  std::uint64_t unmapped_nodes = 0;
  std::uint32_t previous = 0;
  for (std::uint32_t index = first_; index != 0; index = nodes_[index].next) {
    const Node& node = nodes_[index];
    if (node.offset != reached || node.previous != previous) {
      return Broken("nodes do not follow each other", node.offset, node.offset, reached);
    }
    if (absl::Status status = CheckNode(index); !status.ok()) {
      return status;
    }
    if (node.state == State::kLive) {
      used += node.size;
      padding += node.padding;
      ++live;
    } else if (node.state == State::kFree) {
      free += node.size;
      ++free_nodes;
    } else if (node.state == State::kUnmapped) {
      ++unmapped_nodes;
    }
    reached += node.size;
    previous = index;
  }
  if (reached != reserved_) {
    return Broken("the nodes do not cover the region", reached, reached, reserved_);
  }
  if (used != used_ || live != live_blocks_ || padding != padding_) {
    return Broken("used is not the sum of live blocks", 0, used, used_);
  }
  if (free != free_) {
    return Broken("free is not the sum of free ranges", 0, free, free_);
  }
  return CheckIndices(free_nodes, unmapped_nodes);
}

}  // namespace lgpu
