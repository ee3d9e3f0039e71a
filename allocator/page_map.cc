#include "allocator/page_map.h"

#include <algorithm>
#include <bit>

namespace lgpu {
namespace {

// The bits of pages [first, end) that lie in one word.
struct Part {
  std::uint64_t word;
  std::uint64_t mask;
  std::uint64_t next;  // where the next part starts
};

Part PartAt(std::uint64_t first, std::uint64_t end) {
  const std::uint64_t word = first / 64;
  const std::uint64_t next = std::min(end, (word + 1) * 64);
  const std::uint64_t below_end = next % 64 == 0 ? ~std::uint64_t{0} : (std::uint64_t{1} << next % 64) - 1;
  return {word, below_end & (~std::uint64_t{0} << first % 64), next};
}

}  // namespace

PageMap::PageMap(std::uint64_t pages) : pages_(pages), mapped_((pages + 63) / 64) {}

void PageMap::Set(Words& words, std::uint64_t first, std::uint64_t end, bool value) {
  while (first < end) {
    const Part part = PartAt(first, end);
    std::uint64_t& word = words[part.word];
    word = value ? word | part.mask : word & ~part.mask;
    first = part.next;
  }
}

void PageMap::Map(std::uint64_t first, std::uint64_t end) {
  Set(mapped_, first, end, true);
  mapped_pages_ += end - first;
  if (end - first > 1) {
    continues_.resize(mapped_.size());
    Set(continues_, first + 1, end, true);
  }
}

void PageMap::Unmap(std::uint64_t first, std::uint64_t end) {
  Set(mapped_, first, end, false);
  mapped_pages_ -= end - first;
  if (!continues_.empty()) Set(continues_, first, end, false);
}

bool PageMap::AnyLargeChunk(std::uint64_t first, std::uint64_t end) const {
  if (continues_.empty()) return false;
  for (; first < end; ++first) {
    if (InLargeChunk(first)) return true;
  }
  return false;
}

std::uint64_t PageMap::CountMapped(std::uint64_t first, std::uint64_t end) const {
  std::uint64_t count = 0;
  while (first < end) {
    const Part part = PartAt(first, end);
    count += static_cast<std::uint64_t>(std::popcount(mapped_[part.word] & part.mask));
    first = part.next;
  }
  return count;
}

std::uint64_t PageMap::Next(std::uint64_t page, std::uint64_t end, std::uint64_t flip) const {
  while (page < end) {
    const Part part = PartAt(page, end);
    if (const std::uint64_t found = (mapped_[part.word] ^ flip) & part.mask; found != 0) {
      return part.word * 64 + static_cast<std::uint64_t>(std::countr_zero(found));
    }
    page = part.next;
  }
  return end;
}

std::uint64_t PageMap::NextBorder(std::uint64_t page, std::uint64_t end) const {
  while (page < end && Continues(page)) ++page;
  return page;
}

std::uint64_t PageMap::PreviousBorder(std::uint64_t page, std::uint64_t first) const {
  while (page > first && Continues(page)) --page;
  return page;
}

const char* PageMap::CheckInvariants() const {
  if (CountMapped(0, pages_) != mapped_pages_) return "the number of mapped pages is not that of their bits";
  for (std::uint64_t page = 0; page < pages_ && !continues_.empty(); ++page) {
    if (Continues(page) && (!IsMapped(page) || page == 0 || !IsMapped(page - 1))) {
      return "a page continues a chunk where none is mapped";
    }
  }
  return nullptr;
}

}  // namespace lgpu
