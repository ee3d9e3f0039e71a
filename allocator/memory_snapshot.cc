#include "lgpu/memory_snapshot.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace lgpu {
namespace {

constexpr std::size_t kPagesPerLine = 64;
constexpr std::size_t kMostLines = 256;  // of the picture; more pages share a character
constexpr std::size_t kMostOwners = 10;

nlohmann::ordered_json StatsJson(const MemoryStats& stats) {
  return {{"limit", stats.limit.count()},
          {"requested", stats.requested.count()},
          {"used", stats.used.count()},
          {"peak_used", stats.peak_used.count()},
          {"held", stats.held.count()},
          {"idle", stats.idle.count()},
          {"cached", stats.cached.count()},
          {"fenced", stats.fenced.count()},
          {"largest_free_block", stats.largest_free_block.count()},
          {"fragmentation", stats.Fragmentation()},
          {"live_blocks", stats.live_blocks},
          {"num_allocs", stats.num_allocs},
          {"num_refusals", stats.num_refusals},
          {"cache_hits", stats.cache_hits},
          {"cache_flushes", stats.cache_flushes},
          {"source_round_trips", stats.source_round_trips},
          {"source_round_trips_ahead", stats.source_round_trips_ahead},
          {"remapped_chunks", stats.remapped_chunks},
          {"fences_recorded", stats.fences_recorded},
          {"fence_waits", stats.fence_waits},
          {"last_refusal", RefusalReasonName(stats.last_refusal)}};
}

// Bytes of blocks in every page of a mapping.
std::vector<std::uint64_t> Occupancy(const MemorySnapshot& snapshot, const MemorySnapshot::Mapping& mapping) {
  const std::uint64_t page = snapshot.granularity.count();
  std::vector<std::uint64_t> pages(mapping.bytes.count() / page);
  auto block = std::lower_bound(
      snapshot.blocks.begin(), snapshot.blocks.end(), mapping.offset,
      [](const BlockInfo& info, Bytes offset) { return info.offset + info.bytes <= offset; });
  for (; block != snapshot.blocks.end() && block->offset < mapping.offset + mapping.bytes; ++block) {
    std::uint64_t at = std::max(block->offset, mapping.offset).count() - mapping.offset.count();
    const std::uint64_t end = std::min(block->offset + block->bytes, mapping.offset + mapping.bytes).count() -
                              mapping.offset.count();
    while (at < end) {
      const std::uint64_t step = std::min(end, (at / page + 1) * page) - at;
      pages[at / page] += step;
      at += step;
    }
  }
  return pages;
}

char Shade(std::uint64_t occupied, std::uint64_t of) {
  if (occupied == 0) return '.';
  if (occupied == of) return '#';
  return static_cast<char>('1' + std::min<std::uint64_t>(occupied * 9 / of, 8));
}

void AppendPicture(std::string& text, const MemorySnapshot& snapshot) {
  std::size_t pages = 0;
  for (const MemorySnapshot::Mapping& mapping : snapshot.mappings) {
    pages += mapping.bytes / snapshot.granularity;
  }
  const std::size_t per_character =
      std::max<std::size_t>(1, (pages + kPagesPerLine * kMostLines - 1) / (kPagesPerLine * kMostLines));
  absl::StrAppend(&text, "mapped pages, ", FormatBytes(snapshot.granularity * per_character),
                  " a character (. empty, 1 to 9 tenths, # full):");
  for (const MemorySnapshot::Mapping& mapping : snapshot.mappings) {
    const std::vector<std::uint64_t> occupied = Occupancy(snapshot, mapping);
    for (std::size_t at = 0; at < occupied.size(); at += kPagesPerLine * per_character) {
      absl::StrAppendFormat(&text, "\n  %12s  ", FormatBytes(mapping.offset + snapshot.granularity * at));
      for (std::size_t first = at; first < std::min(at + kPagesPerLine * per_character, occupied.size());
           first += per_character) {
        const std::size_t end = std::min(first + per_character, occupied.size());
        std::uint64_t sum = 0;
        for (std::size_t page = first; page < end; ++page) sum += occupied[page];
        text.push_back(Shade(sum, (end - first) * snapshot.granularity.count()));
      }
    }
  }
}

}  // namespace

std::string_view BlockStateName(BlockState state) {
  switch (state) {
    case BlockState::kLive:
      return "live";
    case BlockState::kCached:
      return "cached";
    case BlockState::kFenced:
      return "fenced";
  }
  return "unknown";
}

std::string SnapshotJson(const MemorySnapshot& snapshot) {
  nlohmann::ordered_json json = {{"version", 1},
                                 {"device", snapshot.device},
                                 {"lease", snapshot.lease},
                                 {"reserved", snapshot.reserved.count()},
                                 {"granularity", snapshot.granularity.count()},
                                 {"stats", StatsJson(snapshot.stats)}};
  auto& mappings = json["mappings"] = nlohmann::ordered_json::array();
  for (const MemorySnapshot::Mapping& mapping : snapshot.mappings) {
    mappings.push_back({{"offset", mapping.offset.count()}, {"bytes", mapping.bytes.count()}});
  }
  auto& owners = json["owners"] = nlohmann::ordered_json::array();
  for (const MemoryOwner& owner : snapshot.owners) {
    owners.push_back({{"op", owner.op}, {"bytes", owner.bytes.count()}, {"blocks", owner.blocks}});
  }
  auto& blocks = json["blocks"] = nlohmann::ordered_json::array();
  for (const BlockInfo& block : snapshot.blocks) {
    blocks.push_back({{"offset", block.offset.count()},
                      {"bytes", block.bytes.count()},
                      {"requested", block.requested.count()},
                      {"op", block.op},
                      {"stream", block.stream},
                      {"age_seconds", static_cast<double>(block.age.count()) / 1000},
                      {"state", BlockStateName(block.state)}});
  }
  // Bytes of a name that are not UTF-8 are replaced.
  return json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

std::string SnapshotText(const MemorySnapshot& snapshot) {
  const MemoryStats& stats = snapshot.stats;
  std::string text = absl::StrFormat(
      "memory of %s\n  limit %s, held %s, used %s (requested %s, peak %s) in %d blocks\n"
      "  idle %s, cached %s, waiting for fences %s, largest free block %s, fragmentation %.2f\n",
      snapshot.device.empty() ? "a pool" : snapshot.device, FormatBytes(stats.limit), FormatBytes(stats.held),
      FormatBytes(stats.used), FormatBytes(stats.requested), FormatBytes(stats.peak_used), stats.live_blocks,
      FormatBytes(stats.idle), FormatBytes(stats.cached), FormatBytes(stats.fenced),
      FormatBytes(stats.largest_free_block), stats.Fragmentation());
  AppendPicture(text, snapshot);
  if (!snapshot.owners.empty()) absl::StrAppend(&text, "\nlargest owners:");
  for (std::size_t i = 0; i < std::min(kMostOwners, snapshot.owners.size()); ++i) {
    const MemoryOwner& owner = snapshot.owners[i];
    absl::StrAppendFormat(&text, "\n  %12s  %6d blocks  %s", FormatBytes(owner.bytes), owner.blocks,
                          owner.op.empty() ? "(not said)" : owner.op);
  }
  return text;
}

}  // namespace lgpu
