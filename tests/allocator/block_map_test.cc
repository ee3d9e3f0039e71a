#include "allocator/pool/block_map.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <string>
#include <vector>

namespace lgpu {
namespace {

constexpr Bytes kMiB = Bytes(1 << 20);

PoolBlocks Empty(std::vector<MemorySnapshot::Mapping> mappings, std::vector<std::string> ops) {
  PoolBlocks taken;
  taken.about.granularity = kMiB * 2;
  taken.about.mappings = std::move(mappings);
  taken.ops = std::move(ops);
  return taken;
}

void Add(PoolBlocks& taken, Bytes offset, Bytes bytes, std::uint32_t op, Node::State state = Node::kLive) {
  taken.blocks.push_back({.offset = static_cast<std::uint32_t>(offset / Suballocator::kGranule),
                          .size = static_cast<std::uint32_t>(bytes / Suballocator::kGranule),
                          .about = BlockEntry::About(0, 0, op),
                          .state = state});
}

PoolBlocks TwoOps() {
  PoolBlocks taken = Empty({{Bytes(), kMiB * 4}, {kMiB * 8, kMiB * 2}}, {"", "MatMul", "AddN"});
  Add(taken, kMiB * 8, kMiB * 2, 2, Node::kShared);
  Add(taken, kMiB, kMiB, 2);
  Add(taken, Bytes(), kMiB, 1);
  return taken;
}

void ExpectCell(const BlockMap::Cell& cell, Bytes used, std::uint32_t op, std::uint32_t blocks,
                std::uint32_t gaps) {
  EXPECT_EQ(cell.used, used);
  if (!used.is_zero()) {
    EXPECT_EQ(cell.op, op);
  }
  EXPECT_EQ(cell.blocks, blocks);
  EXPECT_EQ(cell.gaps, gaps);
}

TEST(BlockMapTest, CellsAreInAddressOrderWithHolesAndWithoutAddressSpaceThatHasNoMemory) {
  const BlockMap map = MapOfBlocks(TwoOps(), 12);
  const Bytes half(1 << 19);
  EXPECT_EQ(map.held, kMiB * 6);
  EXPECT_EQ(map.cell_bytes, half);
  ASSERT_EQ(map.cells.size(), 12u);
  ExpectCell(map.cells[0], half, 1, 1, 0);
  ExpectCell(map.cells[1], half, 1, 0, 0);  // the block began before
  ExpectCell(map.cells[2], half, 2, 1, 0);
  ExpectCell(map.cells[4], Bytes(), 0, 0, 0);  // free
  ExpectCell(map.cells[8], half, 2, 1, 1);     // behind the gap
  EXPECT_EQ(map.op_bytes, (std::vector<Bytes>{Bytes(), kMiB, kMiB * 3}));
}

TEST(BlockMapTest, ACellHasTheOpOfMostBytesAlsoWhereThatIsLessThanHalf) {
  PoolBlocks taken = Empty({{Bytes(), kMiB * 1000}}, {"", "MatMul", "AddN", "Cast"});
  Add(taken, kMiB * 75, kMiB * 25, 3);
  Add(taken, Bytes(), kMiB * 20, 1);
  Add(taken, kMiB * 40, kMiB * 35, 2);
  Add(taken, kMiB * 20, kMiB * 20, 1);
  const BlockMap map = MapOfBlocks(taken, 10);
  EXPECT_EQ(map.cell_bytes, kMiB * 100);
  ExpectCell(map.cells[0], kMiB * 100, 1, 4, 0);
}

TEST(BlockMapTest, FreedBlocksAreFreeAndBlocksWithoutAnOwnerAreOfOpZero) {
  PoolBlocks taken = Empty({{Bytes(), kMiB * 10}}, {"", "MatMul"});
  Add(taken, Bytes(), kMiB, 1, Node::kCached);
  Add(taken, kMiB, kMiB, 1, Node::kFenced);
  Add(taken, kMiB * 2, kMiB, 0);
  const BlockMap map = MapOfBlocks(taken, 10);
  ExpectCell(map.cells[0], Bytes(), 0, 0, 0);
  ExpectCell(map.cells[1], Bytes(), 0, 0, 0);
  ExpectCell(map.cells[2], kMiB, 0, 1, 0);
  EXPECT_EQ(map.op_bytes[0], kMiB);
}

TEST(BlockMapTest, NothingMappedHasNoCells) {
  const BlockMap map = MapOfBlocks(Empty({}, {""}), 100);
  EXPECT_TRUE(map.held.is_zero());
  EXPECT_TRUE(map.cells.empty());
}

TEST(BlockMapTest, CellsAreWholeGranulesAndAtMostAsManyAsAsked) {
  for (const std::size_t cells : {0, 1, 7, 4095, 4096, 4097, 10'000, 12'287, 12'288, 1'000'000}) {
    const BlockMap map = MapOfBlocks(TwoOps(), cells);
    EXPECT_LE(map.cells.size(), std::max<std::size_t>(cells, 1));
    EXPECT_EQ(map.cell_bytes.count() % Suballocator::kGranule.count(), 0u);
    EXPECT_GE(map.cell_bytes * map.cells.size(), map.held);
    EXPECT_LT(map.cell_bytes * (map.cells.size() - 1), map.held) << "the last cell has no memory";
    Bytes used;
    for (const BlockMap::Cell& cell : map.cells) used += cell.used;
    EXPECT_EQ(used, kMiB * 4);
  }
}

// Beside a sum over every granule.
TEST(BlockMapTest, RandomBlocksInRandomOrderAreAsAGranuleByGranuleSumHasThem) {
  constexpr unsigned kSeed = 20261123;
  std::mt19937 random(kSeed);
  for (int round = 0; round < 50; ++round) {
    SCOPED_TRACE("seed " + std::to_string(kSeed) + ", round " + std::to_string(round));
    PoolBlocks taken = Empty({}, {"", "A", "B", "C", "D", "E"});
    std::vector<int> op_of;             // each mapped granule's op; -1: free
    std::vector<std::uint32_t> begins;  // packed granules where blocks begin
    std::uint64_t page = 0;
    for (std::uint32_t mapping = 0, mappings = random() % 5 + 1; mapping < mappings; ++mapping) {
      page += random() % 3 + (mapping > 0 ? 1 : 0);
      const std::uint64_t pages = random() % 3 + 1;
      taken.about.mappings.push_back({kMiB * 2 * page, kMiB * 2 * pages});
      const std::uint64_t end = (page + pages) * 4096;
      for (std::uint64_t at = page * 4096; at < end;) {
        const std::uint64_t size = std::min<std::uint64_t>(random() % 700 + 1, end - at);
        const auto op = static_cast<std::uint32_t>(random() % 6);
        const bool is_free = random() % 3 == 0;
        if (!is_free) {
          begins.push_back(static_cast<std::uint32_t>(op_of.size()));
          Add(taken, Suballocator::kGranule * at, Suballocator::kGranule * size, op);
        }
        op_of.insert(op_of.end(), size, is_free ? -1 : static_cast<int>(op));
        at += size;
      }
      page += pages;
    }
    std::shuffle(taken.blocks.begin(), taken.blocks.end(), random);
    const BlockMap map = MapOfBlocks(taken, random() % 300 + 1);
    const std::size_t cell = map.cell_bytes / Suballocator::kGranule;
    for (std::size_t i = 0; i < map.cells.size(); ++i) {
      std::map<int, std::uint64_t> sums;
      std::uint64_t used = 0;
      for (std::size_t at = i * cell; at < std::min((i + 1) * cell, op_of.size()); ++at) {
        if (op_of[at] < 0) continue;
        ++sums[op_of[at]];
        ++used;
      }
      EXPECT_EQ(map.cells[i].used, Suballocator::kGranule * used);
      std::uint64_t most = 0;
      for (const auto& [op, sum] : sums) most = std::max(most, sum);
      if (used > 0) {
        EXPECT_EQ(sums[static_cast<int>(map.cells[i].op)], most);
      }
      const auto begin_here =
          std::count_if(begins.begin(), begins.end(), [&](std::uint32_t at) { return at / cell == i; });
      EXPECT_EQ(map.cells[i].blocks, begin_here);
    }
  }
}

}  // namespace
}  // namespace lgpu
