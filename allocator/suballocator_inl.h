#ifndef LGPU_ALLOCATOR_SUBALLOCATOR_INL_H_
#define LGPU_ALLOCATOR_SUBALLOCATOR_INL_H_

// The steps that Suballocator's members are made of, for its own source files: as calls they would take most
// of the time of an allocation. Slot 0 takes writes beyond the ends of lists: it is never free, so nothing
// merges with it.

#include <algorithm>

#include "allocator/suballocator.h"
#include "base/check.h"

namespace lgpu {

namespace suballocator_internal {

constexpr std::uint64_t AlignUp(std::uint64_t value, std::uint64_t alignment) {
  return (value + alignment - 1) & ~(alignment - 1);
}
constexpr std::uint64_t AlignDown(std::uint64_t value, std::uint64_t alignment) {
  return value & ~(alignment - 1);
}

}  // namespace suballocator_internal

[[gnu::always_inline]] inline std::uint32_t Suballocator::NodeOf(Handle handle) const {
  const auto index = static_cast<std::uint32_t>(handle);
  LGPU_CHECK(nodes_.Has(index) && HandleOf(index) == handle);
  return index;
}

[[gnu::always_inline]] inline std::uint32_t Suballocator::NodeOf(Handle handle, State state) const {
  const std::uint32_t index = NodeOf(handle);
  LGPU_CHECK(nodes_[index].state() == state);
  return index;
}

[[gnu::always_inline]] inline std::uint32_t Suballocator::BlockOf(Handle handle) const {
  const auto index = static_cast<std::uint32_t>(handle);
  LGPU_CHECK(nodes_.Has(index));
  const std::uint32_t word = nodes_[index].word.load(std::memory_order_relaxed);
  LGPU_CHECK(Node::GenerationOf(word) == handle >> 32 && Node::IsBlock(Node::StateOf(word)));
  return index;
}

[[gnu::always_inline]] inline std::uint32_t Suballocator::NewNode(std::uint32_t home) {
  const std::uint32_t index = TakeVacant(home);
  return index == 0 ? AddNode(home) : index;
}

[[gnu::always_inline]] inline std::uint32_t Suballocator::TakeVacant(std::uint32_t home) {
  const std::uint32_t index = vacant_[home];
  if (index != 0) [[likely]] {
    vacant_[home] = nodes_[index].behind;
  }
  return index;
}

[[gnu::always_inline]] inline void Suballocator::PutVacant(std::uint32_t home, std::uint32_t index) {
  nodes_[index].behind = vacant_[home];
  vacant_[home] = index;
}

[[gnu::always_inline]] inline void Suballocator::DropNode(std::uint32_t index, std::uint32_t generation) {
  Node& node = nodes_[index];
  if (generation >= last_generation_) [[unlikely]] {
    node.Set(generation, Node::kRetired);
    ++retired_nodes_;
    return;
  }
  node.Set(generation, Node::kVacant);
  PutVacant(HomeOf(index), index);
}

[[gnu::always_inline]] inline void Suballocator::LinkBefore(std::uint32_t index, std::uint32_t fresh) {
  const std::uint32_t before = nodes_[index].previous;
  nodes_[fresh].previous = before;
  nodes_[fresh].next = index;
  nodes_[index].previous = fresh;
  nodes_[before].next = fresh;
}

[[gnu::always_inline]] inline void Suballocator::Unlink(std::uint32_t index) {
  const Node& node = nodes_[index];
  nodes_[node.previous].next = node.next;
  nodes_[node.next].previous = node.previous;
}

// Cuts a node that is in no index. The new node has the range behind the first `size` granules, and is in no
// index either.
inline std::uint32_t Suballocator::SplitAfter(std::uint32_t index, std::uint32_t size, std::uint32_t home) {
  const std::uint32_t rest = NewNode(home);
  Node& node = nodes_[index];
  Node& behind = nodes_[rest];
  behind.offset = node.offset + size;
  behind.size = node.size - size;
  behind.previous = index;
  behind.next = node.next;
  behind.stamp = node.stamp;
  behind.set_state(node.state());
  nodes_[node.next].previous = rest;
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
inline std::uint32_t Suballocator::Carve(std::uint32_t index, std::uint32_t start, std::uint32_t size,
                                         std::uint32_t home) {
  if (nodes_[index].state() == State::kFree) free_ -= size;
  if (nodes_[index].size == size) {
    RemoveFree(index);
    return index;
  }
  if (start != nodes_[index].offset) {
    const std::uint64_t end = nodes_[index].end();
    const std::uint32_t left = start - nodes_[index].offset;
    RemoveFree(index);
    const std::uint32_t piece = SplitAfter(index, left, home);
    InsertFree(index);
    if (start + std::uint64_t{size} != end) InsertFree(SplitAfter(piece, size));
    return piece;
  }
  // The rest keeps its slot, so that it often stays where it is in its index.
  const std::uint32_t piece = NewNode(home);
  Node& node = nodes_[index];
  Node& front = nodes_[piece];
  front.offset = start;
  front.size = size;
  front.stamp = node.stamp;
  front.set_state(node.state());
  LinkBefore(index, piece);
  Resize(index, start + size, node.size - size);
  return piece;
}

// Makes a node that is in no index one of `kind`, free or unmapped, and merges it with its neighbours.
inline void Suballocator::Settle(std::uint32_t index, State kind, Stamp stamp) {
  Node* const nodes = nodes_.data();
  Node& node = nodes[index];
  if (kind == State::kFree) free_ += node.size;
  const std::uint32_t previous = node.previous;
  const std::uint32_t next = node.next;
  const bool merges_next = nodes[next].state() == kind;
  if (nodes[previous].state() == kind) {
    Node& whole = nodes[previous];
    std::uint32_t size = whole.size + node.size;
    std::uint32_t behind = next;
    stamp = std::max(whole.stamp, stamp);
    DropNode(index);
    if (merges_next) {
      size += nodes[next].size;
      stamp = std::max(nodes[next].stamp, stamp);
      behind = nodes[next].next;
      RemoveFree(next);
      DropNode(next);
    }
    whole.stamp = stamp;
    whole.next = behind;
    nodes[behind].previous = previous;
    Resize(previous, whole.offset, size);
    return;
  }
  if (merges_next) {
    Node& whole = nodes[next];
    whole.stamp = std::max(whole.stamp, stamp);
    whole.previous = previous;
    nodes[previous].next = next;
    const std::uint32_t offset = node.offset;
    const std::uint32_t size = node.size + whole.size;
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
  const std::size_t zone = (size <= small_ ? 1u : 0u) + (size <= tiny_ ? 1u : 0u);
  return {.size = size,
          .alignment = std::max<std::uint64_t>(request.alignment / kGranule, 1),
          .zone = request.any_chunk ? 0 : zone};
}

// A node in no index in the place of one whose names are used up; else the node itself.
[[gnu::always_inline]] inline std::uint32_t Suballocator::WithNames(std::uint32_t index) {
  if (nodes_[index].generation() < last_generation_) [[likely]] {
    return index;
  }
  return Replaced(index, HomeOf(index));
}

// The same, also in the place of one of another home.
[[gnu::always_inline]] inline std::uint32_t Suballocator::AtHome(std::uint32_t index, std::uint32_t home) {
  if (nodes_[index].generation() < last_generation_ && HomeOf(index) == home) [[likely]] {
    return index;
  }
  return Replaced(index, home);
}

[[gnu::always_inline]] inline Suballocator::Handle Suballocator::MakeLive(std::uint32_t index,
                                                                          const Request& request) {
  index = AtHome(index, request.home);
  Node& node = nodes_[index];
  node.set_state(State::kLive);
  freed_at_ = node.stamp;
  node.stamp = request.any_chunk ? kAnyChunk : 0;
  node.before = 0;
  node.behind = 0;
  used_ += node.size;
  ++live_blocks_;
  return HandleOf(index);
}

}  // namespace lgpu

#endif  // LGPU_ALLOCATOR_SUBALLOCATOR_INL_H_
