#include "daemon/snapshots/block_pages.h"

#include <gtest/gtest.h>

#include <functional>
#include <utility>
#include <vector>

#include "lgpu/v1/session.pb.h"
#include "proto/generated_messages.h"
#include "proto/wire/session_messages.h"

namespace lgpu::daemon {
namespace {

constexpr std::uint64_t kPage = std::uint64_t{2} << 20;

/// A page that tells one mapping with two blocks of the op MatMul.
v1::SnapshotPage Good() {
  v1::SnapshotPage page;
  page.set_snapshot_id(1);
  page.mutable_region()->set_granularity_bytes(kPage);
  page.mutable_region()->set_reserved_bytes(8 * kPage);
  page.mutable_region()->set_base_address(std::uint64_t{1} << 40);
  page.add_op_names("MatMul");
  page.mutable_mappings()->add_gap(kPage);
  page.mutable_mappings()->add_bytes(kPage);
  v1::BlockList& blocks = *page.mutable_blocks();
  for (const std::uint64_t gap : {kPage, std::uint64_t{256}}) {
    blocks.add_gap(gap);
    blocks.add_bytes(512);
    blocks.add_padding(12);
    blocks.add_op(1);
    blocks.add_stream(0);
    blocks.add_age_ms(5);
    blocks.add_state(v1::BlockList::STATE_LIVE);
  }
  return page;
}

absl::Status AddOne(const v1::SnapshotPage& page) {
  BlockPages pages([](std::size_t) { return true; });
  return pages.Add(ToStruct<wire::SnapshotPage>(page));
}

TEST(BlockPagesTest, PutsAPageTogether) {
  BlockPages pages([](std::size_t) { return true; });
  v1::SnapshotPage page = Good();
  page.set_more(true);
  ASSERT_TRUE(pages.Add(ToStruct<wire::SnapshotPage>(page)).ok());
  v1::SnapshotPage next;
  next.set_page(1);
  *next.mutable_blocks() = Good().blocks();
  next.mutable_blocks()->set_start(kPage + 512 + 256 + 512);
  next.mutable_blocks()->set_gap(0, 0);
  ASSERT_TRUE(pages.Add(ToStruct<wire::SnapshotPage>(next)).ok());
  const DeviceBlocks told = pages.Take();
  ASSERT_EQ(told.mappings.size(), 1u);
  EXPECT_EQ(told.mappings[0].offset, kPage);
  ASSERT_EQ(told.blocks.size(), 4u);
  EXPECT_EQ(told.blocks[1].offset, kPage + 512 + 256);
  EXPECT_EQ(told.blocks[2].offset, told.blocks[1].end());
  EXPECT_EQ(told.ops.at(told.blocks[3].op), "MatMul");
}

TEST(BlockPagesTest, ImpossibleBlocksAreDataLoss) {
  const std::pair<const char*, std::function<void(v1::SnapshotPage&)>> lies[] = {
      {"no region", [](auto& page) { page.clear_region(); }},
      {"odd granularity", [](auto& page) { page.mutable_region()->set_granularity_bytes(3); }},
      {"region beyond the address space",
       [](auto& page) { page.mutable_region()->set_reserved_bytes(~std::uint64_t{0}); }},
      {"a size of exabytes", [](auto& page) { page.mutable_region()->set_held_bytes(~std::uint64_t{0}); }},
      {"mapping beyond the region", [](auto& page) { page.mutable_mappings()->set_gap(0, 8 * kPage); }},
      {"mapping that overflows",
       [](auto& page) { page.mutable_mappings()->set_bytes(0, ~std::uint64_t{0} - kPage + 1); }},
      {"mapping off the pages", [](auto& page) { page.mutable_mappings()->set_gap(0, 512); }},
      {"empty mapping", [](auto& page) { page.mutable_mappings()->set_bytes(0, 0); }},
      {"lists of mappings of two lengths", [](auto& page) { page.mutable_mappings()->add_gap(0); }},
      {"mappings that start elsewhere", [](auto& page) { page.mutable_mappings()->set_start(kPage); }},
      {"block outside the mappings", [](auto& page) { page.mutable_blocks()->set_gap(0, 0); }},
      {"block across the end of a mapping", [](auto& page) { page.mutable_blocks()->set_bytes(1, kPage); }},
      {"block that overflows",
       [](auto& page) { page.mutable_blocks()->set_gap(1, ~std::uint64_t{0} - kPage); }},
      {"empty block", [](auto& page) { page.mutable_blocks()->set_bytes(0, 0); }},
      {"more padding than bytes", [](auto& page) { page.mutable_blocks()->set_padding(0, 512); }},
      {"op without a name", [](auto& page) { page.mutable_blocks()->set_op(0, 2); }},
      {"unknown state", [](auto& page) { page.mutable_blocks()->set_state(0, v1::BlockList::State(9)); }},
      {"stream of no program", [](auto& page) { page.mutable_blocks()->set_stream(0, 1U << 20); }},
      {"lists of blocks of two lengths", [](auto& page) { page.mutable_blocks()->add_age_ms(1); }},
      {"blocks that start elsewhere", [](auto& page) { page.mutable_blocks()->set_start(256); }},
      {"a name of a kilobyte", [](auto& page) { page.add_op_names(std::string(1024, 'x')); }},
      {"an empty page before the last",
       [](auto& page) {
         page.clear_blocks();
         page.clear_mappings();
         page.set_more(true);
       }},
  };
  ASSERT_TRUE(AddOne(Good()).ok());
  for (const auto& [name, lie] : lies) {
    v1::SnapshotPage page = Good();
    lie(page);
    EXPECT_TRUE(absl::IsDataLoss(AddOne(page))) << name << ": " << AddOne(page);
  }
}

TEST(BlockPagesTest, NamesMappingsAndBlocksTakeRoomAndAreRefusedWithoutIt) {
  for (std::size_t granted = 0; granted < 3; ++granted) {
    std::vector<std::size_t> asked;
    BlockPages pages([&](std::size_t blocks) {
      asked.push_back(blocks);
      return asked.size() <= granted;
    });
    EXPECT_TRUE(absl::IsResourceExhausted(pages.Add(ToStruct<wire::SnapshotPage>(Good()))));
    const std::size_t names = 8 * static_cast<std::size_t>(Good().op_names_size());
    std::vector<std::size_t> expected = {names, 1, 2};
    expected.resize(granted + 1);
    EXPECT_EQ(asked, expected);
  }
}

TEST(BlockPagesTest, TheProgramsErrorIsShownCleaned) {
  v1::SnapshotPage page;
  page.set_code(static_cast<int>(absl::StatusCode::kNotFound));
  page.set_message("no\x1b[31m device");
  EXPECT_EQ(AddOne(page), absl::NotFoundError("the program answered: no?[31m device"));
  for (const int code : {-1, 17, 15}) {
    page.set_code(code);
    EXPECT_TRUE(absl::IsUnknown(AddOne(page))) << code;
  }
}

constexpr std::uint32_t kMostCells = 4;

/// The only page of a map: of two ops and three cells, the second one free.
v1::SnapshotPage GoodMap() {
  v1::SnapshotPage page;
  *page.mutable_region() = Good().region();
  page.add_op_names("MatMul");
  page.add_op_names("");
  v1::BlockMap& map = *page.mutable_map();
  map.set_held_bytes(3 * kPage);
  map.set_cell_bytes(kPage);
  map.add_op_bytes(kPage);
  map.add_op_bytes(512);
  for (const auto& [op, used] : {std::pair<std::uint32_t, std::uint64_t>{1, kPage}, {0, 0}, {2, 512}}) {
    map.add_op(op);
    map.add_used(used);
    map.add_blocks(used > 0 ? 1 : 0);
    map.add_gaps(0);
  }
  return page;
}

absl::Status AddMap(const v1::SnapshotPage& page) {
  BlockPages pages([](std::size_t) { return true; }, kMostCells);
  return pages.Add(ToStruct<wire::SnapshotPage>(page));
}

TEST(BlockPagesTest, PutsAMapTogether) {
  BlockPages pages([](std::size_t) { return true; }, kMostCells);
  v1::SnapshotPage page = GoodMap();
  page.set_more(true);
  ASSERT_TRUE(pages.Add(ToStruct<wire::SnapshotPage>(page)).ok());
  v1::SnapshotPage next;
  next.set_page(1);
  next.mutable_map()->add_op(1);
  next.mutable_map()->add_used(1024);
  next.mutable_map()->add_blocks(2);
  next.mutable_map()->add_gaps(3);
  ASSERT_TRUE(pages.Add(ToStruct<wire::SnapshotPage>(next)).ok());
  const DeviceBlocks told = pages.Take();
  EXPECT_EQ(told.map.held_bytes, 3 * kPage);
  EXPECT_EQ(told.map.op_bytes, (std::vector<std::uint64_t>{0, kPage, 512}));
  ASSERT_EQ(told.map.cells.size(), 4u);
  EXPECT_EQ(told.ops.at(told.map.cells[0].op), "MatMul");
  EXPECT_EQ(told.map.cells[1].op, 0u);
  EXPECT_EQ(told.map.cells[3].used, 1024u);
  EXPECT_EQ(told.map.cells[3].blocks, 2u);
  EXPECT_EQ(told.map.cells[3].gaps, 3u);
}

TEST(BlockPagesTest, ImpossibleMapsAreDataLoss) {
  const std::pair<const char*, std::function<void(v1::SnapshotPage&)>> lies[] = {
      {"more memory than address space", [](auto& page) { page.mutable_map()->set_held_bytes(9 * kPage); }},
      {"a cell of exabytes", [](auto& page) { page.mutable_map()->set_cell_bytes(~std::uint64_t{0}); }},
      {"no cell size", [](auto& page) { page.mutable_map()->set_cell_bytes(0); }},
      {"an op with more than all memory", [](auto& page) { page.mutable_map()->set_op_bytes(0, 4 * kPage); }},
      {"an op without a size", [](auto& page) { page.add_op_names("AddN"); }},
      {"a size without an op", [](auto& page) { page.mutable_map()->add_op_bytes(512); }},
      {"lists of two lengths", [](auto& page) { page.mutable_map()->add_gaps(0); }},
      {"a cell that is more than full", [](auto& page) { page.mutable_map()->set_used(2, kPage + 1); }},
      {"cells that are more than all memory", [](auto& page) { page.mutable_map()->set_held_bytes(kPage); }},
      {"an op without a name", [](auto& page) { page.mutable_map()->set_op(0, 3); }},
      {"a used cell of no op", [](auto& page) { page.mutable_map()->set_op(0, 0); }},
      {"a free cell of an op", [](auto& page) { page.mutable_map()->set_op(1, 1); }},
      {"more blocks than bytes", [](auto& page) { page.mutable_map()->set_blocks(2, 513); }},
      {"more cells than were asked for",
       [](auto& page) {
         for (int i = 0; i < 2; ++i) {
           page.mutable_map()->add_op(0);
           page.mutable_map()->add_used(0);
           page.mutable_map()->add_blocks(0);
           page.mutable_map()->add_gaps(0);
         }
       }},
  };
  ASSERT_TRUE(AddMap(GoodMap()).ok());
  for (const auto& [name, lie] : lies) {
    v1::SnapshotPage page = GoodMap();
    lie(page);
    EXPECT_TRUE(absl::IsDataLoss(AddMap(page))) << name << ": " << AddMap(page);
  }
}

TEST(BlockPagesTest, AProgramThatKnowsNoMapsIsNamedAsOlder) {
  const absl::Status status = AddMap(Good());
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
}

TEST(BlockPagesTest, AMapDoesNotTakeMoreRoomThanItsNamesAndCells) {
  std::vector<std::size_t> asked;
  BlockPages pages(
      [&](std::size_t blocks) {
        asked.push_back(blocks);
        return asked.size() < 2;
      },
      kMostCells);
  EXPECT_TRUE(absl::IsResourceExhausted(pages.Add(ToStruct<wire::SnapshotPage>(GoodMap()))));
  EXPECT_EQ(asked, (std::vector<std::size_t>{16, 3}));
}

}  // namespace
}  // namespace lgpu::daemon
