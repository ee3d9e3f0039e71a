#include "cli/memory_map_text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "cli/output.h"

namespace lgpu::cli {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr std::uint64_t kMapMiB = 1 << 20;

SnapshotRecord OneDevice() {
  SnapshotRecord record;
  SnapshotRecord::Session& session = record.sessions.emplace_back();
  session.about.set_pid(4711);
  SnapshotRecord::Device& device = session.devices.emplace_back();
  device.about.set_name("/job:localhost/replica:0/task:0/device:GPU:1");
  device.about.mutable_region()->set_held_bytes(12 * kMapMiB);
  device.about.mutable_region()->set_used_bytes(6 * kMapMiB);
  device.about.mutable_region()->set_largest_free_block_bytes(3 * kMapMiB);
  device.ops = {"", "MatMul", "AddN"};
  // Held, a hole, held: MatMul in the first half of the first mapping, a small AddN in the second one.
  device.mappings = {{.offset = 0, .bytes = 8 * kMapMiB}, {.offset = 12 * kMapMiB, .bytes = 4 * kMapMiB}};
  device.blocks = {
      {.offset = 0, .bytes = 4 * kMapMiB, .op = 1},
      {.offset = 4 * kMapMiB, .bytes = 2 * kMapMiB, .op = 2, .state = v1::BlockList::STATE_CACHED},
      {.offset = 14 * kMapMiB, .bytes = 2 * kMapMiB, .op = 2}};
  return record;
}

std::vector<std::size_t> WidthsOf(const std::string& text) {
  std::vector<std::size_t> widths;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) widths.push_back(TextWidth(line));
  return widths;
}

/// The cells of all rows, one after the other.
std::string CellsOf(const std::string& text) {
  std::string cells;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (line.size() > 14 && line.find_first_not_of("ABCDEFGHIJKL+-|", 14) == std::string::npos) {
      cells += line.substr(14);
    }
  }
  return cells;
}

TEST(MemoryMapTextTest, CellsAreInAddressOrderAndEachByteHasItsPlace) {
  const std::string text = FormatMemoryMaps(OneDevice(), 80, /*ascii=*/true);
  EXPECT_THAT(text, AllOf(HasSubstr("Memory map of GPU:1 in pid 4711\n"), HasSubstr("A MatMul 4.00MiB in 1"),
                          HasSubstr("B AddN 2.00MiB in 1"), HasSubstr("largest free block 3.00MiB"),
                          HasSubstr("fragmentation 50%")));
  const std::string cells = CellsOf(text);
  ASSERT_GT(cells.size(), 400u) << text;
  // Twelfths of the mapped memory: 4 of MatMul, 4 free (a cached block is free), then the hole, 2 free, 2 of
  // AddN.
  const std::string twelfths = "AAAA------BB";
  const std::size_t hole = cells.find('|');
  ASSERT_NE(hole, std::string::npos);
  EXPECT_NEAR(static_cast<double>(hole), static_cast<double>(cells.size()) * 2 / 3, 2);
  EXPECT_EQ(std::count(cells.begin(), cells.end(), '|'), 1);
  for (std::size_t i = 0; i < 12; ++i) {
    EXPECT_EQ(cells[(2 * i + 1) * cells.size() / 24], twelfths[i]) << i << "\n" << text;
  }
}

TEST(MemoryMapTextTest, LinesFitTheirColumns) {
  SnapshotRecord record = OneDevice();
  SnapshotRecord::Device& device = record.sessions[0].devices[0];
  for (int i = 0; i < 40; ++i) {
    device.ops.push_back(absl::StrCat("a_long_name_of_an_op_that_goes_on_and_on_", i));
    device.blocks.push_back({.offset = 16 * kMapMiB + static_cast<std::uint64_t>(i) * 512,
                             .bytes = 512,
                             .op = static_cast<std::uint32_t>(device.ops.size() - 1)});
  }
  device.mappings.push_back({.offset = 16 * kMapMiB, .bytes = 2 * kMapMiB});
  for (const std::size_t columns : {60, 80}) {
    for (const bool ascii : {true, false}) {
      const std::string text = FormatMemoryMaps(record, columns, ascii);
      EXPECT_THAT(WidthsOf(text), Each(::testing::Le(columns))) << text;
      const bool is_ascii = std::all_of(text.begin(), text.end(), [](char c) { return (c & 0x80) == 0; });
      EXPECT_EQ(is_ascii, ascii);
      EXPECT_THAT(text, HasSubstr("+ further ops "));
    }
  }
}

TEST(MemoryMapTextTest, AProgramThatToldNothingSaysWhy) {
  SnapshotRecord record;
  record.sessions.emplace_back().about.set_pid(7);
  record.sessions[0].about.set_code(4);
  record.sessions[0].about.set_message("it is stopped\nor busy");
  SnapshotRecord::Device& device = record.sessions.emplace_back().devices.emplace_back();
  EXPECT_THAT(FormatMemoryMaps(record, 80, true),
              AllOf(HasSubstr("Memory map of pid 7\n  no map: it is stopped\n"),
                    HasSubstr("nothing is mapped"), Not(HasSubstr("or busy"))));
  device.about.set_code(4);
  device.about.set_message("too late");
  EXPECT_THAT(FormatMemoryMaps(record, 80, true), HasSubstr("no map: too late\n"));
}

}  // namespace
}  // namespace lgpu::cli
