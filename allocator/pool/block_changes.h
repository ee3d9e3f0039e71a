#ifndef LGPU_ALLOCATOR_POOL_BLOCK_CHANGES_H_
#define LGPU_ALLOCATOR_POOL_BLOCK_CHANGES_H_

#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace lgpu {

/// A BlockChanges notes the nodes whose blocks are made, freed or parked while a scan reads the nodes without
/// the pool's lock. Its memory is there, and touched, from the start. Nodes from `end` on, which were made
/// later, count as changed. Not thread-safe.
class BlockChanges {
 public:
  explicit BlockChanges(std::uint32_t end) : end_(end), words_(end / 64 + 1) {}

  std::uint32_t end() const { return end_; }
  void Note(std::uint32_t index) {
    if (index >= end_) return;
    std::uint64_t& word = words_[index / 64];
    const std::uint64_t bit = std::uint64_t{1} << (index % 64);
    noted_ += (word & bit) == 0 ? 1 : 0;
    word |= bit;
  }
  bool Has(std::uint32_t index) const {
    return index >= end_ || (words_[index / 64] >> (index % 64) & 1) != 0;
  }
  /// How many of the nodes below `end` have changed.
  std::uint64_t CountBelow(std::uint32_t end) const { return noted_ + (end > end_ ? end - end_ : 0); }
  /// Calls visit(index) for each of them, from low to high.
  template <typename Visit>
  void EachBelow(std::uint32_t end, Visit visit) const {
    for (std::size_t i = 0; i < words_.size(); ++i) {
      for (std::uint64_t word = words_[i]; word != 0; word &= word - 1) {
        visit(static_cast<std::uint32_t>(i * 64 + static_cast<std::size_t>(std::countr_zero(word))));
      }
    }
    for (std::uint32_t index = end_; index < end; ++index) visit(index);
  }
  /// Adds the notes of `later`.
  void Include(const BlockChanges& later) {
    later.EachBelow(later.end_, [this](std::uint32_t index) { Note(index); });
  }

 private:
  const std::uint32_t end_;
  std::uint64_t noted_ = 0;
  std::vector<std::uint64_t> words_;  // a bit for each node
};

}  // namespace lgpu

#endif  // LGPU_ALLOCATOR_POOL_BLOCK_CHANGES_H_
