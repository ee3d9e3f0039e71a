#include "allocator/pool/block_map.h"

#include <algorithm>
#include <bit>
#include <utility>

namespace lgpu {
namespace {

constexpr Bytes kGranule = Suballocator::kGranule;

std::uint32_t Granules(Bytes bytes) { return static_cast<std::uint32_t>(bytes / kGranule); }

/// Where each live block lies if all mapped pages lay side by side. Blocks come in any order, so there is a
/// table of the region's pages; live blocks lie in mapped pages.
class Packing {
 public:
  explicit Packing(const MemorySnapshot& about)
      : page_bits_(static_cast<unsigned>(std::countr_zero(Granules(about.granularity)))) {
    for (const MemorySnapshot::Mapping& mapping : about.mappings) {
      const std::uint32_t end = Granules(mapping.offset + mapping.bytes) >> page_bits_;
      pages_before_.resize(Granules(mapping.offset) >> page_bits_, pages_);
      while (pages_before_.size() < end) pages_before_.push_back(pages_++);
    }
  }
  std::uint32_t granules() const { return pages_ << page_bits_; }
  std::uint32_t PlaceOf(std::uint32_t offset) const {
    const std::uint32_t in_page = offset & ((std::uint32_t{1} << page_bits_) - 1);
    return (pages_before_[offset >> page_bits_] << page_bits_) + in_page;
  }

 private:
  const unsigned page_bits_;
  std::vector<std::uint32_t> pages_before_;  // that are mapped, for each page of the region
  std::uint32_t pages_ = 0;
};

/// What one block has of one cell.
struct Piece {
  std::uint32_t op;
  std::uint32_t granules;
};

/// Calls `each(block, cell, granules)` for every cell that a live block touches, its first one first.
template <typename Each>
void OverPieces(const PoolBlocks& taken, const Packing& packing, std::uint32_t cell_granules,
                const Each& each) {
  for (const BlockCopy& block : taken.blocks) {
    if (PoolBlocks::StateOf(block) != BlockState::kLive) continue;
    std::uint32_t at = packing.PlaceOf(block.offset);
    const std::uint32_t end = at + block.size;
    for (std::uint32_t cell = at / cell_granules; at < end; ++cell) {
      // In 64 bits: the last cell may end behind the last address.
      const std::uint64_t cell_end = (std::uint64_t{cell} + 1) * cell_granules;
      const auto next = static_cast<std::uint32_t>(std::min<std::uint64_t>(end, cell_end));
      each(block, cell, next - at);
      at = next;
    }
  }
}

/// The op with most of the granules. `sums`: for each op a 0, before and after.
std::uint32_t MostOf(const Piece* begin, const Piece* end, std::vector<std::uint32_t>& sums) {
  for (const Piece* piece = begin; piece != end; ++piece) sums[piece->op] += piece->granules;
  std::uint32_t most = 0, op = 0;
  for (const Piece* piece = begin; piece != end; ++piece) {
    const std::uint32_t sum = std::exchange(sums[piece->op], 0);
    if (sum > most || (sum == most && sum > 0 && piece->op < op)) {
      most = sum;
      op = piece->op;
    }
  }
  return op;
}

void CountGaps(const MemorySnapshot& about, const Packing& packing, std::uint32_t cell_granules,
               std::vector<BlockMap::Cell>& cells) {
  Bytes end;
  for (const MemorySnapshot::Mapping& mapping : about.mappings) {
    const std::uint32_t place = packing.PlaceOf(Granules(mapping.offset));
    if (mapping.offset > end && place > 0) ++cells[place / cell_granules].gaps;
    end = mapping.offset + mapping.bytes;
  }
}

}  // namespace

BlockMap MapOfBlocks(const PoolBlocks& taken, std::size_t cells) {
  const Packing packing(taken.about);
  BlockMap map;
  map.op_bytes.resize(taken.ops.size());
  map.held = kGranule * packing.granules();
  if (map.held.is_zero()) return map;
  const auto most = static_cast<std::uint32_t>(std::clamp<std::size_t>(cells, 1, packing.granules()));
  const std::uint32_t cell_granules = (packing.granules() - 1) / most + 1;
  map.cell_bytes = kGranule * cell_granules;
  map.cells.resize((packing.granules() - 1) / cell_granules + 1);
  CountGaps(taken.about, packing, cell_granules, map.cells);

  // The pieces of a cell side by side: counted, then placed.
  std::vector<std::size_t> begin(map.cells.size() + 1);
  const BlockCopy* last = nullptr;
  OverPieces(taken, packing, cell_granules,
             [&](const BlockCopy& block, std::uint32_t cell, std::uint32_t granules) {
               map.cells[cell].used += kGranule * granules;
               if (&block != last) ++map.cells[cell].blocks;
               last = &block;
               ++begin[cell + 1];
             });
  for (std::size_t cell = 1; cell < begin.size(); ++cell) begin[cell] += begin[cell - 1];
  PageArray<Piece> pieces;
  pieces.Reserve(begin.back());
  for (std::size_t i = 0; i < begin.back(); ++i) pieces.push_back({});
  std::vector<std::size_t> end = begin;
  OverPieces(taken, packing, cell_granules,
             [&](const BlockCopy& block, std::uint32_t cell, std::uint32_t granules) {
               const std::uint32_t op = BlockEntry::OpOf(block.about);
               map.op_bytes[op] += kGranule * granules;
               pieces[end[cell]++] = {op, granules};
             });
  std::vector<std::uint32_t> sums(taken.ops.size());
  for (std::size_t cell = 0; cell < map.cells.size(); ++cell) {
    map.cells[cell].op = MostOf(pieces.begin() + begin[cell], pieces.begin() + begin[cell + 1], sums);
  }
  return map;
}

}  // namespace lgpu
