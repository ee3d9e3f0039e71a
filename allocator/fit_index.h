#ifndef LGPU_ALLOCATOR_FIT_INDEX_H_
#define LGPU_ALLOCATOR_FIT_INDEX_H_

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "allocator/node_table.h"

namespace lgpu {

/// A FitIndex finds a node by size: 32 linear classes per power of two, each a list, over two levels of
/// bitmaps. It owns nothing: nodes are slots of the owner's table, which hang in their lists by `before` and
/// `behind`. Slot 0 is no node: it takes writes beyond the end of a list. Insert and Remove take O(1). Not
/// thread-safe.
class FitIndex {
 public:
  static constexpr std::uint32_t kSubdivisions = 32;
  static constexpr std::uint32_t kLevels = 28;  // sizes below 32 have a class each; then 2^5 ... 2^31
  static constexpr std::uint32_t kClasses = kLevels * kSubdivisions;

  /// The class that holds `size`; a higher class holds only larger sizes. Branch-free: a processor cannot
  /// predict sizes.
  static std::uint32_t ClassOf(std::uint32_t size) {
    const auto shift = static_cast<std::uint32_t>(std::bit_width(size | kSubdivisions)) - 6;
    return shift * kSubdivisions + (size >> shift);
  }

  void Insert(Node* nodes, std::uint32_t index, std::uint32_t size) {
    Node& node = nodes[index];
    const std::uint32_t size_class = ClassOf(size);
    const std::uint32_t head = heads_[size_class];
    node.before = 0;
    node.behind = head;
    nodes[head].before = index;
    heads_[size_class] = index;
    classes_[size_class / kSubdivisions] |= std::uint32_t{1} << (size_class % kSubdivisions);
    levels_ |= std::uint32_t{1} << (size_class / kSubdivisions);
  }

  void Remove(Node* nodes, std::uint32_t index, std::uint32_t size) {
    const std::uint32_t before = nodes[index].before;
    const std::uint32_t behind = nodes[index].behind;
    nodes[behind].before = before;
    if (before != 0) {
      nodes[before].behind = behind;
      return;
    }
    const std::uint32_t size_class = ClassOf(size);
    heads_[size_class] = behind;
    if (behind == 0) {
      std::uint32_t& bits = classes_[size_class / kSubdivisions];
      bits &= ~(std::uint32_t{1} << (size_class % kSubdivisions));
      if (bits == 0) levels_ &= ~(std::uint32_t{1} << (size_class / kSubdivisions));
    }
  }

  std::uint32_t head(std::uint32_t size_class) const { return heads_[size_class]; }

  /// The first class from `from` on that is not empty; kClasses if there is none.
  std::uint32_t NextClass(std::uint32_t from) const {
    if (from >= kClasses) return kClasses;
    const std::uint32_t level = from / kSubdivisions;
    const std::uint32_t here = classes_[level] & (~std::uint32_t{0} << (from % kSubdivisions));
    if (here != 0) return level * kSubdivisions + static_cast<std::uint32_t>(std::countr_zero(here));
    const std::uint32_t above = level + 1 < 32 ? levels_ & (~std::uint32_t{0} << (level + 1)) : 0;
    if (above == 0) return kClasses;
    const auto next = static_cast<std::uint32_t>(std::countr_zero(above));
    return next * kSubdivisions + static_cast<std::uint32_t>(std::countr_zero(classes_[next]));
  }

  /// The highest class that is not empty; kClasses if all are.
  std::uint32_t LastClass() const {
    if (levels_ == 0) return kClasses;
    const auto level = static_cast<std::uint32_t>(std::bit_width(levels_)) - 1;
    return level * kSubdivisions + static_cast<std::uint32_t>(std::bit_width(classes_[level])) - 1;
  }

  /// Calls visit(index) for every node of a class from `from` on, until it says false.
  template <typename Visit>
  void ForEach(const Node* nodes, std::uint32_t from, Visit visit) const {
    for (std::uint32_t c = NextClass(from); c < kClasses; c = NextClass(c + 1)) {
      for (std::uint32_t index = heads_[c]; index != 0; index = nodes[index].behind) {
        if (!visit(index)) return;
      }
    }
  }

 private:
  std::uint32_t levels_ = 0;
  std::array<std::uint32_t, kLevels> classes_{};
  std::array<std::uint32_t, kClasses> heads_{};
};

}  // namespace lgpu

#endif  // LGPU_ALLOCATOR_FIT_INDEX_H_
