#ifndef LGPU_ALLOCATOR_PAGE_MAP_H_
#define LGPU_ALLOCATOR_PAGE_MAP_H_

#include <cstdint>
#include <vector>

namespace lgpu {

/// A PageMap says which pages of a region are mapped: one bit a page. Once there is a chunk of more than one
/// page, a second bit says that a page continues the chunk of the page before it. It is pure arithmetic over
/// page numbers; ranges are half open. Not thread-safe.
///
///   only a mapped page continues a chunk, and only where the page before it is mapped
class PageMap {
 public:
  explicit PageMap(std::uint64_t pages);

  std::uint64_t pages() const { return pages_; }
  bool IsMapped(std::uint64_t page) const { return Bit(mapped_, page); }
  /// Whether the page lies in a chunk of more than one page.
  bool InLargeChunk(std::uint64_t page) const { return Continues(page) || Continues(page + 1); }
  bool AnyLargeChunk(std::uint64_t first, std::uint64_t end) const;
  std::uint64_t mapped_pages() const { return mapped_pages_; }

  /// Pages [first, end) were mapped as one chunk; they were not mapped before.
  void Map(std::uint64_t first, std::uint64_t end);
  /// Pages [first, end), whole chunks, are not mapped any more.
  void Unmap(std::uint64_t first, std::uint64_t end);

  std::uint64_t CountMapped(std::uint64_t first, std::uint64_t end) const;
  /// The first page from `page` on that is (not) mapped; `end` if there is none below it.
  std::uint64_t NextMapped(std::uint64_t page, std::uint64_t end) const { return Next(page, end, 0); }
  std::uint64_t NextUnmapped(std::uint64_t page, std::uint64_t end) const {
    return Next(page, end, ~std::uint64_t{0});
  }
  /// The first page from `page` on where a chunk starts or nothing is mapped; at most `end`.
  std::uint64_t NextBorder(std::uint64_t page, std::uint64_t end) const;
  /// The last page up to `page`, `first` at least, where a chunk starts or nothing is mapped.
  std::uint64_t PreviousBorder(std::uint64_t page, std::uint64_t first) const;

  /// Null, or the invariant that does not hold.
  const char* CheckInvariants() const;
  /// Bytes of the heap.
  std::uint64_t footprint() const { return (mapped_.capacity() + continues_.capacity()) * 8; }

 private:
  using Words = std::vector<std::uint64_t>;
  static bool Bit(const Words& words, std::uint64_t page) {
    return (words[page / 64] >> (page % 64) & 1) != 0;
  }
  bool Continues(std::uint64_t page) const {
    return !continues_.empty() && page < pages_ && Bit(continues_, page);
  }
  static void Set(Words& words, std::uint64_t first, std::uint64_t end, bool value);
  std::uint64_t Next(std::uint64_t page, std::uint64_t end, std::uint64_t flip) const;

  const std::uint64_t pages_;
  std::uint64_t mapped_pages_ = 0;
  Words mapped_;
  Words continues_;
};

}  // namespace lgpu

#endif  // LGPU_ALLOCATOR_PAGE_MAP_H_
