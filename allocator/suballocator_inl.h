#ifndef LGPU_ALLOCATOR_SUBALLOCATOR_INL_H_
#define LGPU_ALLOCATOR_SUBALLOCATOR_INL_H_

// The steps that Suballocator's members are made of, for its own source files: most of the time of an
// allocation would be calls otherwise.

#include <algorithm>

#include "allocator/check.h"
#include "allocator/suballocator.h"

namespace lgpu {

namespace suballocator_internal {

constexpr std::uint64_t AlignUp(std::uint64_t value, std::uint64_t alignment) {
  return (value + alignment - 1) & ~(alignment - 1);
}
constexpr std::uint64_t AlignDown(std::uint64_t value, std::uint64_t alignment) {
  return value & ~(alignment - 1);
}

}  // namespace suballocator_internal

[[gnu::always_inline]] inline std::uint32_t Suballocator::NodeOf(Handle handle, State state) const {
  const auto index = static_cast<std::uint32_t>(handle);
  LGPU_CHECK(index != 0 && index < nodes_.size() && HandleOf(index) == handle &&
             nodes_[index].state() == state);
  return index;
}

[[gnu::always_inline]] inline std::uint32_t Suballocator::NewNode() {
  if (vacant_ == 0) {
    if (nodes_.size() == nodes_.capacity()) {
      nodes_.reserve(nodes_.size() + nodes_.size() / 4 +
                     64);  // twice as many would be too much beside a block
    }
    nodes_.emplace_back();
    return static_cast<std::uint32_t>(nodes_.size() - 1);
  }
  const std::uint32_t index = vacant_;
  vacant_ = nodes_[index].link.next;
  return index;
}

[[gnu::always_inline]] inline void Suballocator::DropNode(std::uint32_t index) {
  Node& node = nodes_[index];
  if (node.generation >= last_generation_) {
    node.set_state(State::kRetired);
    ++retired_nodes_;
    return;
  }
  node.set_state(State::kVacant);
  node.link.next = vacant_;
  vacant_ = index;
}

[[gnu::always_inline]] inline void Suballocator::LinkBefore(std::uint32_t index, std::uint32_t fresh) {
  const std::uint32_t before = nodes_[index].previous;
  nodes_[fresh].previous = before;
  nodes_[fresh].next = index;
  nodes_[index].previous = fresh;
  (before != 0 ? nodes_[before].next : first_) = fresh;
}

[[gnu::always_inline]] inline void Suballocator::Unlink(std::uint32_t index) {
  const Node& node = nodes_[index];
  (node.previous != 0 ? nodes_[node.previous].next : first_) = node.next;
  if (node.next != 0) {
    nodes_[node.next].previous = node.previous;
  }
}

// Cuts a node that is in no index; the new one, in no index either, is what lies behind the first `size`
// granules.
inline std::uint32_t Suballocator::SplitAfter(std::uint32_t index, std::uint32_t size) {
  const std::uint32_t rest = NewNode();
  Node& node = nodes_[index];
  Node& behind = nodes_[rest];
  behind.offset = node.offset + size;
  behind.size = node.size - size;
  behind.previous = index;
  behind.next = node.next;
  behind.stamp = node.stamp;
  behind.state_bits = node.state_bits;
  if (node.next != 0) {
    nodes_[node.next].previous = rest;
  }
  node.next = rest;
  node.size = size;
  return rest;
}

// Changes the extent of a node that is in an index.
[[gnu::always_inline]] inline void Suballocator::Resize(std::uint32_t index, std::uint32_t offset,
                                                        std::uint32_t size) {
  Node& node = nodes_[index];
  const bool same_zone = ZoneOf(node.offset) == ZoneOf(offset);
  if (same_zone && Index::ClassOf(node.size) == Index::ClassOf(size)) {
    node.offset = offset;
    node.size = size;
    return;
  }
  RemoveFree(index);
  node.offset = offset;
  node.size = size;
  InsertFree(index);
}

// Cuts [start, start + size) out of a free or unmapped node; it is in no index afterwards, the rest is.
inline std::uint32_t Suballocator::Carve(std::uint32_t index, std::uint32_t start, std::uint32_t size) {
  if (nodes_[index].state() == State::kFree) {
    free_ -= size;
  }
  if (nodes_[index].size == size) {
    RemoveFree(index);
    return index;
  }
  if (start != nodes_[index].offset) {
    const std::uint64_t end = nodes_[index].end();
    const std::uint32_t left = start - nodes_[index].offset;
    RemoveFree(index);
    const std::uint32_t piece = SplitAfter(index, left);
    InsertFree(index);
    if (start + std::uint64_t{size} != end) {
      InsertFree(SplitAfter(piece, size));
    }
    return piece;
  }
  // The rest keeps its slot, so that it often stays where it is in its index.
  const std::uint32_t piece = NewNode();
  Node& node = nodes_[index];
  Node& front = nodes_[piece];
  front.offset = start;
  front.size = size;
  front.stamp = node.stamp;
  front.state_bits = node.state_bits;
  LinkBefore(index, piece);
  Resize(index, start + size, node.size - size);
  return piece;
}

// Makes a node that is in no index one of `kind`, free or unmapped, and merges it with its neighbours.
inline void Suballocator::Settle(std::uint32_t index, State kind, Stamp stamp) {
  Node& node = nodes_[index];
  if (kind == State::kFree) {
    free_ += node.size;
  }
  const std::uint32_t previous = node.previous;
  const std::uint32_t next = node.next;
  const bool merges_next = next != 0 && nodes_[next].state() == kind;
  if (previous != 0 && nodes_[previous].state() == kind) {
    Node& whole = nodes_[previous];
    std::uint32_t size = whole.size + node.size;
    whole.stamp = std::max(whole.stamp, stamp);
    Unlink(index);
    DropNode(index);
    if (merges_next) {
      size += nodes_[next].size;
      whole.stamp = std::max(whole.stamp, nodes_[next].stamp);
      RemoveFree(next);
      Unlink(next);
      DropNode(next);
    }
    Resize(previous, whole.offset, size);
    return;
  }
  if (merges_next) {
    Node& whole = nodes_[next];
    whole.stamp = std::max(whole.stamp, stamp);
    const std::uint32_t offset = node.offset;
    const std::uint32_t size = node.size + whole.size;
    Unlink(index);
    DropNode(index);
    Resize(next, offset, size);
    return;
  }
  node.stamp = stamp;
  node.set_state(kind);
  InsertFree(index);
}

[[gnu::always_inline]] inline Suballocator::Want Suballocator::WantOf(const Request& request) const {
  const std::uint64_t size = RoundUp(request.bytes, kGranule) / kGranule;
  // A sum, since a processor cannot guess the sizes.
  const std::size_t zone = (size <= std::min(ToGranules(kLargestSmall), page_) ? 1u : 0u) +
                           (size <= std::min(ToGranules(kLargestTiny), page_) ? 1u : 0u);
  return {.size = size,
          .alignment = std::max<std::uint64_t>(request.alignment / kGranule, 1),
          .zone = request.any_chunk ? 0 : zone};
}

// A node in no index in the place of one whose names are used up; else the node itself.
[[gnu::always_inline]] inline std::uint32_t Suballocator::WithNames(std::uint32_t index) {
  if (nodes_[index].generation < last_generation_) [[likely]] {
    return index;
  }
  const std::uint32_t other = NewNode();
  const std::uint32_t generation = nodes_[other].generation;
  nodes_[other] = nodes_[index];
  nodes_[other].generation = generation & ((1u << 29) - 1);
  LinkBefore(index, other);
  Unlink(index);
  DropNode(index);
  return other;
}

[[gnu::always_inline]] inline Suballocator::Handle Suballocator::MakeLive(std::uint32_t index,
                                                                          const Request& request) {
  index = WithNames(index);
  Node& node = nodes_[index];
  node.set_state(State::kLive);
  node.stamp = 0;
  const auto padding = static_cast<std::uint32_t>((FromGranules(node.size) - request.bytes).count());
  node.link = {.previous = 0, .next = padding | (request.any_chunk ? kAnyChunkBit : 0)};
  used_ += node.size;
  padding_ += padding;
  ++live_blocks_;
  return HandleOf(index);
}

}  // namespace lgpu

#endif  // LGPU_ALLOCATOR_SUBALLOCATOR_INL_H_
