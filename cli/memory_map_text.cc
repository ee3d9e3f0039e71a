#include "cli/memory_map_text.h"

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <string_view>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "cli/output.h"
#include "lgpu/bytes.h"

namespace lgpu::cli {
namespace {

constexpr std::size_t kFewestMapColumns = 60;
constexpr std::size_t kMapRows = 8;
constexpr std::size_t kMapMargin = 14;   // the offset at which a row begins
constexpr std::size_t kMapLetters = 12;  // ops with a letter of their own
constexpr std::uint64_t kSmallestMapCell = 512;

/// The ops of live blocks, the largest first, and the place of each among them.
struct MapOps {
  std::vector<std::uint64_t> bytes, blocks;
  std::vector<std::size_t> order, place;
  explicit MapOps(const SnapshotRecord::Device& device)
      : bytes(device.ops.size()),
        blocks(device.ops.size()),
        order(device.ops.size()),
        place(device.ops.size()) {
    for (const SnapshotRecord::Block& block : device.blocks) {
      if (block.state != v1::BlockList::STATE_LIVE) continue;
      bytes[block.op] += block.bytes;
      ++blocks[block.op];
    }
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::stable_sort(order.begin(), order.end(),
                     [this](std::size_t a, std::size_t b) { return bytes[a] > bytes[b]; });
    for (std::size_t i = 0; i < order.size(); ++i) place[order[i]] = i;
    std::erase_if(order, [this](std::size_t op) { return bytes[op] == 0; });
  }
  static char Letter(std::size_t place) { return place < kMapLetters ? static_cast<char>('A' + place) : '+'; }
};

/// A slice of the region.
struct MapCell {
  std::vector<std::uint64_t> of_place =
      {};  // live bytes by the place of their op; the last one: all further ops
};

/// Neighbouring mappings, which have cells of their own.
struct MapRange {
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
  std::vector<MapCell> cells = {};
};

std::vector<MapRange> MapRangesOf(const SnapshotRecord::Device& device) {
  std::vector<MapRange> ranges;
  for (const SnapshotRecord::Mapping& mapping : device.mappings) {
    if (!ranges.empty() && ranges.back().offset + ranges.back().bytes == mapping.offset) {
      ranges.back().bytes += mapping.bytes;
    } else {
      ranges.push_back({.offset = mapping.offset, .bytes = mapping.bytes});
    }
  }
  return ranges;
}

/// Adds the live bytes of each block to the cells that the block touches. Ranges and blocks are in address
/// order.
void FillMapCells(const SnapshotRecord::Device& device, const MapOps& ops, std::uint64_t cell_bytes,
                  std::vector<MapRange>& ranges) {
  for (MapRange& range : ranges) range.cells.resize((range.bytes + cell_bytes - 1) / cell_bytes);
  auto range = ranges.begin();
  for (const SnapshotRecord::Block& block : device.blocks) {
    if (block.state != v1::BlockList::STATE_LIVE) continue;
    while (range != ranges.end() && range->offset + range->bytes <= block.offset) ++range;
    if (range == ranges.end()) return;
    const std::size_t place = std::min(ops.place[block.op], kMapLetters);
    std::uint64_t at = std::max(block.offset, range->offset) - range->offset;
    const std::uint64_t end = std::min(block.offset + block.bytes, range->offset + range->bytes);
    while (range->offset + at < end) {
      const std::uint64_t next = std::min(end - range->offset, (at / cell_bytes + 1) * cell_bytes);
      MapCell& cell = range->cells[at / cell_bytes];
      cell.of_place.resize(kMapLetters + 1);
      cell.of_place[place] += next - at;
      at = next;
    }
  }
}

std::string MapCellText(const MapCell& cell, bool ascii) {
  if (!cell.of_place.empty()) {
    const auto most = std::max_element(cell.of_place.begin(), cell.of_place.end());
    return std::string(1, MapOps::Letter(static_cast<std::size_t>(most - cell.of_place.begin())));
  }
  return ascii ? "-" : "░";
}

/// Words, wrapped at `columns`, each line behind two spaces.
std::string WrappedWords(const std::vector<std::string>& words, std::size_t columns) {
  std::string text, line;
  for (const std::string& word : words) {
    if (!line.empty() && 2 + TextWidth(line) + 2 + TextWidth(word) > columns) {
      absl::StrAppend(&text, "  ", line, "\n");
      line.clear();
    }
    absl::StrAppend(&line, line.empty() ? "" : "  ", word);
  }
  return absl::StrCat(text, "  ", line, "\n");
}

std::string MapLegend(const SnapshotRecord::Device& device, const MapOps& ops, std::size_t columns,
                      bool ascii) {
  std::vector<std::string> words;
  std::uint64_t rest = 0;
  for (std::size_t i = 0; i < ops.order.size(); ++i) {
    const std::size_t op = ops.order[i];
    if (i >= kMapLetters) {
      rest += ops.bytes[op];
      continue;
    }
    const std::string name = device.ops[op].empty() ? "(no op)" : Printable(device.ops[op]).substr(0, 32);
    words.push_back(absl::StrCat(std::string(1, MapOps::Letter(i)), " ", name, " ",
                                 FormatBytes(Bytes(ops.bytes[op])), " in ", ops.blocks[op]));
  }
  if (rest > 0) words.push_back(absl::StrCat("+ further ops ", FormatBytes(Bytes(rest))));
  words.emplace_back(ascii ? "- not used" : "░ not used");
  words.emplace_back("| addresses without memory");
  return WrappedWords(words, columns);
}

std::string DeviceMapText(const SnapshotRecord::Device& device, std::size_t columns, bool ascii) {
  std::vector<MapRange> ranges = MapRangesOf(device);
  std::uint64_t mapped = 0;
  for (const MapRange& range : ranges) mapped += range.bytes;
  if (mapped == 0) return "  nothing is mapped\n";
  const MapOps ops(device);
  const std::uint64_t row_cells = columns - kMapMargin;
  std::uint64_t cell_bytes = (mapped + kMapRows * row_cells - 1) / (kMapRows * row_cells);
  cell_bytes = (cell_bytes + kSmallestMapCell - 1) / kSmallestMapCell * kSmallestMapCell;
  FillMapCells(device, ops, cell_bytes, ranges);
  std::string text;
  std::size_t column = row_cells;  // the first cell begins a row
  const auto add = [&](std::uint64_t offset, std::string_view cell) {
    if (column == row_cells) {
      absl::StrAppendFormat(&text, "%s  %10s  ", text.empty() ? "" : "\n", FormatBytes(Bytes(offset)));
      column = 0;
    }
    text.append(cell);
    ++column;
  };
  for (const MapRange& range : ranges) {
    if (&range != &ranges.front()) add(range.offset, "|");
    for (std::size_t i = 0; i < range.cells.size(); ++i) {
      add(range.offset + i * cell_bytes, MapCellText(range.cells[i], ascii));
    }
  }
  const v1::RegionStats& region = device.about.region();
  absl::StrAppendFormat(&text, "\n  each cell is %s\n", FormatBytes(Bytes(cell_bytes)));
  absl::StrAppend(&text, MapLegend(device, ops, columns, ascii));
  return text + WrappedWords({absl::StrCat("granted ", FormatBytes(Bytes(region.held_bytes()))),
                              absl::StrCat("used ", FormatBytes(Bytes(region.used_bytes()))),
                              absl::StrCat("largest free block ",
                                           FormatBytes(Bytes(region.largest_free_block_bytes()))),
                              absl::StrFormat("fragmentation %.0f%%", 100 * FragmentationOf(region))},
                             columns);
}

/// "device:GPU:0" of the name inside the program.
std::string_view MapDeviceName(std::string_view name) {
  const std::size_t at = name.rfind("device:");
  return at == std::string_view::npos ? name : name.substr(at + 7);
}

std::string NoMapText(const std::string& message) {
  return absl::StrCat("  no map: ", Printable(message.substr(0, message.find('\n'))), "\n");
}

}  // namespace

std::string FormatMemoryMaps(const SnapshotRecord& record, std::size_t columns, bool ascii) {
  columns = std::max(columns, kFewestMapColumns);
  std::string text;
  for (const SnapshotRecord::Session& session : record.sessions) {
    const std::string whose = absl::StrCat("pid ", session.about.pid());
    // A program that takes memory from the driver itself has charges, which stand above.
    if (session.devices.empty() && session.about.code() != 0) {
      absl::StrAppend(&text, "\nMemory map of ", whose, "\n", NoMapText(session.about.message()));
    }
    for (const SnapshotRecord::Device& device : session.devices) {
      absl::StrAppend(&text, "\nMemory map of ", Printable(std::string(MapDeviceName(device.about.name()))),
                      " in ", whose, "\n",
                      device.about.code() == 0 ? DeviceMapText(device, columns, ascii)
                                               : NoMapText(device.about.message()));
    }
  }
  return text;
}

}  // namespace lgpu::cli
