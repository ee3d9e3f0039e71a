#ifndef LGPU_BENCH_PEERS_FLAT_FIT_H_
#define LGPU_BENCH_PEERS_FLAT_FIT_H_

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "bench/peers/contender.h"

namespace lgpu::bench {

/// Two-level segregated fit over one flat range, the base of the ratios of time: the cost of placing a block
/// with nothing else around it.
///
/// Modelled from the TLSF paper (Masmano and others, 2004) and OffsetAllocator's idea of nodes beside
/// the memory: 16 linear classes per doubling, a bitmap for each level, boundary neighbours linked by
/// address, immediate merging, good fit. Like the allocator under test it looks at four blocks of the
/// request's own class before it takes the next class. Granules of 512 bytes, nodes of 32.
///
/// Simplified: the whole limit is one range from the start; the caller keeps the handle; no lock. It is
/// in its header so that the compiler can inline it into the timed loop: an easy base would flatter.
class FlatFit final : public Contender {
 public:
  explicit FlatFit(const ContenderOptions& options) : handles_(options.slots) {
    nodes_.reserve(2 * static_cast<std::size_t>(options.slots) + 16);
    nodes_.resize(2);
    nodes_[1].size = static_cast<std::uint32_t>(options.limit / kGranule);
    Insert(1);
  }

  bool Allocate(Slot slot, Bytes bytes) override {
    const std::uint32_t node = Place(ToGranules(bytes));
    handles_[slot] = node;
    return node != 0;
  }
  void Free(Slot slot) override { Release(handles_[slot]); }

  Bytes OffsetOf(Slot slot) const override { return kGranule * nodes_[handles_[slot]].offset; }
  Bytes held() const override { return RoundUp(kGranule * highest_, kPage); }
  PageOperations page_operations() const override { return {.mapped = held() / kPage}; }

  /// The same for a caller without slots.
  static std::uint32_t ToGranules(Bytes bytes) {
    return static_cast<std::uint32_t>((bytes.count() + 511) / 512);
  }
  std::uint32_t Place(std::uint32_t size) {
    const std::uint32_t index = Find(size);
    if (index == 0) return 0;
    Remove(index);
    if (nodes_[index].size != size) Insert(Split(index, size));
    Node& node = nodes_[index];
    node.live = true;
    highest_ = std::max(highest_, std::uint64_t{node.offset} + size);
    return index;
  }
  void Release(std::uint32_t index) {
    nodes_[index].live = false;
    const std::uint32_t next = nodes_[index].next;
    const std::uint32_t previous = nodes_[index].previous;
    if (next != 0 && !nodes_[next].live) {
      Remove(next);
      Join(index, next);
    }
    if (previous != 0 && !nodes_[previous].live) {
      Remove(previous);
      Join(previous, index);
      index = previous;
    }
    Insert(index);
  }
  std::uint32_t offset(std::uint32_t node) const { return nodes_[node].offset; }

 private:
  static constexpr Bytes kGranule = Bytes(512);
  static constexpr std::uint32_t kLogSubdivisions = 4;
  static constexpr std::uint32_t kSubdivisions = 1u << kLogSubdivisions;
  static constexpr std::uint32_t kLevels = 32 - kLogSubdivisions + 1;
  static constexpr int kTries = 4;

  struct Node {  // index 0 is none
    std::uint32_t offset = 0;
    std::uint32_t size = 0;
    std::uint32_t previous = 0;  // by address
    std::uint32_t next = 0;
    std::uint32_t before = 0;  // in its class
    std::uint32_t behind = 0;
    std::uint32_t vacant = 0;
    bool live = false;
  };
  struct Class {
    std::uint32_t level;
    std::uint32_t part;
  };

  static Class ClassOf(std::uint32_t size) {
    if (size < kSubdivisions) return {0, size};
    const auto log = static_cast<std::uint32_t>(std::bit_width(size)) - 1;
    const std::uint32_t shift = log - kLogSubdivisions;
    return {shift + 1, (size >> shift) & (kSubdivisions - 1)};
  }
  std::uint32_t Find(std::uint32_t size) const {
    auto [level, part] = ClassOf(size);
    std::uint32_t index = heads_[level][part];
    for (int i = 0; i < kTries && index != 0; ++i, index = nodes_[index].behind) {
      if (nodes_[index].size >= size) return index;
    }
    // Every node of a higher class is large enough. A part beyond the last shifts to no bits.
    std::uint32_t parts = parts_[level] & (~std::uint32_t{1} << part);
    if (parts == 0) {
      const std::uint32_t levels = levels_ & (~std::uint32_t{1} << level);
      if (levels == 0) return 0;
      level = static_cast<std::uint32_t>(std::countr_zero(levels));
      parts = parts_[level];
    }
    return heads_[level][static_cast<std::uint32_t>(std::countr_zero(parts))];
  }
  void Insert(std::uint32_t index) {
    const auto [level, part] = ClassOf(nodes_[index].size);
    std::uint32_t& head = heads_[level][part];
    nodes_[index].before = 0;
    nodes_[index].behind = head;
    if (head != 0) nodes_[head].before = index;
    head = index;
    parts_[level] |= 1u << part;
    levels_ |= 1u << level;
  }
  void Remove(std::uint32_t index) {
    const Node& node = nodes_[index];
    if (node.behind != 0) nodes_[node.behind].before = node.before;
    if (node.before != 0) {
      nodes_[node.before].behind = node.behind;
      return;
    }
    const auto [level, part] = ClassOf(node.size);
    heads_[level][part] = node.behind;
    if (node.behind == 0) {
      parts_[level] &= ~(1u << part);
      if (parts_[level] == 0) levels_ &= ~(1u << level);
    }
  }
  // Leaves `size` granules in the node; the rest is a new node, in no class.
  std::uint32_t Split(std::uint32_t index, std::uint32_t size) {
    std::uint32_t rest = vacant_;
    if (rest == 0) {
      rest = static_cast<std::uint32_t>(nodes_.size());
      nodes_.emplace_back();
    } else {
      vacant_ = nodes_[rest].vacant;
    }
    Node& node = nodes_[index];
    nodes_[rest] = {
        .offset = node.offset + size, .size = node.size - size, .previous = index, .next = node.next};
    if (node.next != 0) nodes_[node.next].previous = rest;
    node.next = rest;
    node.size = size;
    return rest;
  }
  void Join(std::uint32_t index, std::uint32_t next) {
    Node& node = nodes_[index];
    node.size += nodes_[next].size;
    node.next = nodes_[next].next;
    if (node.next != 0) nodes_[node.next].previous = index;
    nodes_[next].vacant = vacant_;
    vacant_ = next;
  }

  std::vector<Node> nodes_;
  std::uint32_t vacant_ = 0;
  std::uint32_t levels_ = 0;
  std::array<std::uint32_t, kLevels> parts_{};
  std::array<std::array<std::uint32_t, kSubdivisions>, kLevels> heads_{};
  std::uint64_t highest_ = 0;  // granules
  std::vector<std::uint32_t> handles_;
};

/// FlatFit as a library would have to offer it: free by address, through an open-addressed table, and one
/// uncontended mutex around each call. The base for the cost of the whole Pool.
class LockedFlatFit final : public Contender {
 public:
  explicit LockedFlatFit(const ContenderOptions& options)
      : fit_({.limit = options.limit, .slots = 0}), offsets_(options.slots) {
    table_.resize(std::bit_ceil(std::size_t{options.slots} * 2 + 16));
  }

  bool Allocate(Slot slot, Bytes bytes) override {
    const std::scoped_lock lock(mutex_);
    const std::uint32_t node = fit_.Place(FlatFit::ToGranules(bytes));
    if (node == 0) return false;
    offsets_[slot] = fit_.offset(node);
    std::size_t at = HomeOf(offsets_[slot]);
    while (table_[at].node != 0) at = (at + 1) & (table_.size() - 1);
    table_[at] = {offsets_[slot], node};
    return true;
  }
  void Free(Slot slot) override {
    const std::scoped_lock lock(mutex_);
    std::size_t at = HomeOf(offsets_[slot]);
    while (table_[at].offset != offsets_[slot] || table_[at].node == 0) at = (at + 1) & (table_.size() - 1);
    const std::uint32_t node = table_[at].node;
    CloseGap(at);
    fit_.Release(node);
  }

  Bytes OffsetOf(Slot slot) const override { return Bytes(512) * offsets_[slot]; }
  Bytes held() const override { return fit_.held(); }
  PageOperations page_operations() const override { return fit_.page_operations(); }

 private:
  struct Entry {
    std::uint32_t offset = 0;
    std::uint32_t node = 0;  // 0: empty
  };
  std::size_t HomeOf(std::uint32_t offset) const {
    return (offset * std::uint64_t{0x9e3779b97f4a7c15} >> 32) & (table_.size() - 1);
  }
  // Moves later entries of the run into the empty place, so that no search stops short of them.
  void CloseGap(std::size_t gap) {
    const std::size_t mask = table_.size() - 1;
    for (std::size_t at = (gap + 1) & mask; table_[at].node != 0; at = (at + 1) & mask) {
      if (((at - HomeOf(table_[at].offset)) & mask) >= ((at - gap) & mask)) {
        table_[gap] = table_[at];
        gap = at;
      }
    }
    table_[gap] = {};
  }

  std::mutex mutex_;
  FlatFit fit_;
  std::vector<Entry> table_;
  std::vector<std::uint32_t> offsets_;
};

}  // namespace lgpu::bench

#endif  // LGPU_BENCH_PEERS_FLAT_FIT_H_
