#include "daemon/snapshots/block_pages.h"

#include <initializer_list>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/utf8.h"
#include "lgpu/status.h"

namespace lgpu::daemon {
namespace {

constexpr std::uint64_t kMostGranularity = std::uint64_t{1} << 30;
constexpr std::uint32_t kMostStream = std::numeric_limits<std::uint16_t>::max();
constexpr std::size_t kMostMessageBytes = 512;

template <typename... Parts>
absl::Status Impossible(const Parts&... parts) {
  return absl::DataLossError(
      absl::StrCat("the program's answer contradicts itself or the protocol: ", parts...));
}

constexpr std::size_t kRoomOfAName = 8;

absl::Status NoRoom() {
  return absl::ResourceExhaustedError(
      "the snapshots that your programs have asked for and not read yet have too many blocks together\n"
      "try: one device at a time, or again later");
}

/// As the program answered; never OK, and no code that the daemon uses for its own findings.
absl::Status ErrorOf(const wire::SnapshotPage& page) {
  const bool is_known =
      page.code > 0 && page.code <= 16 && page.code != static_cast<int>(absl::StatusCode::kDataLoss);
  return absl::Status(
      is_known ? static_cast<absl::StatusCode>(page.code) : absl::StatusCode::kUnknown,
      absl::StrCat("the program answered: ", AsUtf8(page.message.substr(0, kMostMessageBytes))));
}

bool IsKnown(wire::BlockList::State state) {
  return state >= wire::BlockList::State::kLive && state <= wire::BlockList::State::kFenced;
}

/// Moves `end` over a gap and `bytes` behind it. False: that is empty, or beyond `most`.
bool Advance(std::uint64_t gap, std::uint64_t bytes, std::uint64_t most, std::uint64_t& end) {
  if (bytes == 0 || gap > most - end || bytes > most - end - gap) return false;
  end += gap + bytes;
  return true;
}

}  // namespace

absl::Status BlockPages::Add(const wire::SnapshotPage& page) {
  if (page.code != 0) return ErrorOf(page);
  if (!has_begun_) LGPU_RETURN_IF_ERROR(Begin(page));
  const bool says_nothing = (!page.mappings || page.mappings->bytes.empty()) &&
                            (!page.blocks || page.blocks->bytes.empty()) &&
                            (!page.map || (page.map->used.empty() && page.map->op_bytes.empty()));
  if (page.more && says_nothing) return Impossible("page ", page.page, " is empty and not the last");
  LGPU_RETURN_IF_ERROR(AddNames(page));
  if (most_cells_ > 0) return AddMap(page);
  if (page.mappings) LGPU_RETURN_IF_ERROR(AddMappings(*page.mappings));
  return page.blocks ? AddBlocks(*page.blocks) : absl::OkStatus();
}

absl::Status BlockPages::Begin(const wire::SnapshotPage& page) {
  has_begun_ = true;
  const wire::RegionStats region = page.region.value_or(wire::RegionStats{});
  const std::uint64_t granularity = region.granularity_bytes;
  if (granularity == 0 || (granularity & (granularity - 1)) != 0 || granularity > kMostGranularity) {
    return Impossible("its region has pages of ", granularity, " bytes");
  }
  if (region.base_address > kMostBytes || region.reserved_bytes > kMostBytes - region.base_address) {
    return Impossible("its region has ", region.reserved_bytes, " bytes from address ", region.base_address);
  }
  for (const std::uint64_t bytes :
       {region.limit_bytes, region.requested_bytes, region.used_bytes, region.peak_used_bytes,
        region.held_bytes, region.workspace_bytes, region.idle_bytes, region.cached_bytes,
        region.fenced_bytes, region.largest_free_block_bytes}) {
    if (bytes > kMostBytes) return Impossible("a size of ", bytes, " bytes is told of its region");
  }
  blocks_.region = region;
  blocks_.taken_at = std::chrono::system_clock::now();
  return absl::OkStatus();
}

absl::Status BlockPages::AddNames(const wire::SnapshotPage& page) {
  if (page.op_names.size() > kMostNames - blocks_.ops.size()) {
    return Impossible("it names more than ", kMostNames, " ops");
  }
  if (!take_room_(page.op_names.size() * kRoomOfAName)) return NoRoom();
  for (const std::string& name : page.op_names) {
    if (name.size() > kMostNameBytes) return Impossible("an op has a name of ", name.size(), " bytes");
    blocks_.ops.push_back(AsUtf8(name));
  }
  return absl::OkStatus();
}

absl::Status BlockPages::AddMappings(const wire::MappingList& list) {
  if (list.gap.size() != list.bytes.size()) {
    return Impossible("of its mappings ", list.gap.size(), " have a place and ", list.bytes.size(),
                      " a size");
  }
  if (list.bytes.empty()) return absl::OkStatus();
  if (!blocks_.blocks.empty()) return Impossible("a mapping comes after the first block");
  if (list.start != mapped_end_) {
    return Impossible("its mappings go on at ", list.start, ", and the last one ended at ", mapped_end_);
  }
  if (list.bytes.size() > kMostMappings - blocks_.mappings.size()) {
    return Impossible("it has more than ", kMostMappings, " mappings");
  }
  if (!take_room_(list.bytes.size())) return NoRoom();
  const std::uint64_t granularity = blocks_.region.granularity_bytes;
  for (std::size_t i = 0; i < list.bytes.size(); ++i) {
    const std::uint64_t bytes = list.bytes[i];
    if (!Advance(list.gap[i], bytes, blocks_.region.reserved_bytes, mapped_end_) ||
        bytes % granularity != 0 || mapped_end_ % granularity != 0) {
      return Impossible("a mapping of ", bytes, " bytes, ", list.gap[i],
                        " bytes behind the one before it, does not lie in its region of ",
                        blocks_.region.reserved_bytes, " bytes, or not on its pages");
    }
    if (list.gap[i] == 0 && !blocks_.mappings.empty()) {
      blocks_.mappings.back().bytes += bytes;
    } else {
      blocks_.mappings.push_back({.offset = mapped_end_ - bytes, .bytes = bytes});
    }
  }
  return absl::OkStatus();
}

bool BlockPages::LiesInMapping(const ToldBlock& block) {
  while (mapping_ < blocks_.mappings.size() &&
         blocks_.mappings[mapping_].offset + blocks_.mappings[mapping_].bytes <= block.offset) {
    ++mapping_;
  }
  return mapping_ < blocks_.mappings.size() && blocks_.mappings[mapping_].offset <= block.offset &&
         block.end() <= blocks_.mappings[mapping_].offset + blocks_.mappings[mapping_].bytes;
}

absl::Status BlockPages::AddBlocks(const wire::BlockList& list) {
  const std::size_t count = list.bytes.size();
  for (const std::size_t size : {list.gap.size(), list.padding.size(), list.op.size(), list.stream.size(),
                                 list.age_ms.size(), list.state.size()}) {
    if (size != count) return Impossible("its lists of blocks have ", size, " and ", count, " entries");
  }
  if (count == 0) return absl::OkStatus();
  if (list.start != block_end_) {
    return Impossible("its blocks go on at ", list.start, ", and the last one ended at ", block_end_);
  }
  if (!take_room_(count)) return NoRoom();
  for (std::size_t i = 0; i < count; ++i) {
    const std::uint64_t bytes = list.bytes[i];
    if (!Advance(list.gap[i], bytes, blocks_.region.reserved_bytes, block_end_)) {
      return Impossible("a block of ", bytes, " bytes, ", list.gap[i],
                        " bytes behind the one before it, does not lie in its region of ",
                        blocks_.region.reserved_bytes, " bytes");
    }
    if (list.padding[i] >= bytes || list.op[i] >= blocks_.ops.size() || list.stream[i] > kMostStream ||
        !IsKnown(list.state[i])) {
      return Impossible("a block of ", bytes, " bytes has padding ", list.padding[i], ", op ", list.op[i],
                        " of ", blocks_.ops.size() - 1, ", stream ", list.stream[i], ", state ",
                        static_cast<int>(list.state[i]));
    }
    const ToldBlock block{.offset = block_end_ - bytes,
                          .bytes = bytes,
                          .padding = list.padding[i],
                          .age_ms = list.age_ms[i],
                          .op = list.op[i],
                          .stream = static_cast<std::uint16_t>(list.stream[i]),
                          .state = static_cast<std::uint8_t>(list.state[i])};
    if (!LiesInMapping(block)) {
      return Impossible("a block of ", bytes, " bytes at ", block.offset, " does not lie in mapped memory");
    }
    blocks_.blocks.push_back(block);
  }
  return absl::OkStatus();
}

absl::Status BlockPages::AddMap(const wire::SnapshotPage& page) {
  if (!page.map) {
    return absl::FailedPreconditionError(
        "the program's liblgpu sends its blocks without a map of them\ntry: start it again with the liblgpu "
        "of this "
        "lgpud, or lgpu inspect");
  }
  const wire::BlockMap& told = *page.map;
  ToldMap& map = blocks_.map;
  if (page.page == 0) LGPU_RETURN_IF_ERROR(BeginMap(told));
  if (told.op_bytes.size() != page.op_names.size()) {
    return Impossible("of its ops ", page.op_names.size(), " have a name and ", told.op_bytes.size(),
                      " a size");
  }
  for (const std::uint64_t bytes : told.op_bytes) {
    if (bytes > map.held_bytes) return Impossible("an op has ", bytes, " bytes of ", map.held_bytes);
    map.op_bytes.push_back(bytes);
  }
  return AddCells(told);
}

absl::Status BlockPages::BeginMap(const wire::BlockMap& told) {
  if (told.held_bytes > blocks_.region.reserved_bytes || told.cell_bytes > kMostBytes) {
    return Impossible("a map of ", told.held_bytes, " bytes in cells of ", told.cell_bytes,
                      " is told of its region of ", blocks_.region.reserved_bytes, " bytes");
  }
  blocks_.map.held_bytes = told.held_bytes;
  blocks_.map.cell_bytes = told.cell_bytes;
  return absl::OkStatus();
}

absl::Status BlockPages::AddCells(const wire::BlockMap& told) {
  ToldMap& map = blocks_.map;
  const std::size_t count = told.used.size();
  for (const std::size_t size : {told.op.size(), told.blocks.size(), told.gaps.size()}) {
    if (size != count) return Impossible("its lists of cells have ", size, " and ", count, " entries");
  }
  if (count > most_cells_ - map.cells.size()) {
    return Impossible("its map has more than ", most_cells_, " cells");
  }
  if (!take_room_(count)) return NoRoom();
  for (std::size_t i = 0; i < count; ++i) {
    const std::uint64_t used = told.used[i];
    if (used > map.cell_bytes || used > map.held_bytes - map_used_ || told.op[i] >= blocks_.ops.size() ||
        (used == 0) != (told.op[i] == 0) || told.blocks[i] > used) {
      return Impossible("a cell of ", map.cell_bytes, " bytes has ", used, " used by op ", told.op[i], " of ",
                        blocks_.ops.size() - 1, ", and ", told.blocks[i], " blocks");
    }
    map_used_ += used;
    map.cells.push_back({.used = used, .op = told.op[i], .blocks = told.blocks[i], .gaps = told.gaps[i]});
  }
  return absl::OkStatus();
}

}  // namespace lgpu::daemon
