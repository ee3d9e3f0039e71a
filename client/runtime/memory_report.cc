#include "client/runtime/memory_report.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <map>

#include "absl/strings/cord.h"
#include "absl/strings/str_format.h"
#include "kernels/text.h"

namespace lgpu::internal {

namespace {

constexpr std::size_t kMostOwners = 5;
constexpr std::size_t kMostNameBytes = 28;  // of an op, so that its line fits 80 columns

using Row = std::vector<std::string>;

/// Rows as a table: the first column to the left, the others to the right.
std::string Lines(const std::vector<Row>& rows) {
  std::vector<std::size_t> widths;
  for (const Row& row : rows) {
    widths.resize(std::max(widths.size(), row.size()));
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string text;
  for (const Row& row : rows) {
    for (std::size_t i = 0; i < row.size(); ++i) {
      const std::string blanks(widths[i] - row[i].size(), ' ');
      text += i == 0 ? row[i] + (row.size() > 1 ? blanks : "") : "  " + blanks + row[i];
    }
    text += "\n";
  }
  return text;
}

std::string ShortOp(std::string_view op) {
  if (op.empty()) return "others";
  if (op.size() <= kMostNameBytes) return std::string(op);
  std::size_t end = kMostNameBytes - 3;
  while (end > 0 && (static_cast<unsigned char>(op[end]) & 0xc0) == 0x80) --end;  // not inside a character
  return Cat(op.substr(0, end), "...");
}

std::string LocalName(std::string_view full) { return std::string(full.substr(full.find("/device:"))); }

}  // namespace

absl::Status PrefixedStatus(const absl::Status& status, std::string_view prefix) {
  const absl::string_view text = status.message();
  absl::Status prefixed(status.code(), Cat(prefix, std::string_view(text.data(), text.size())));
  status.ForEachPayload(
      [&prefixed](absl::string_view url, const absl::Cord& payload) { prefixed.SetPayload(url, payload); });
  return prefixed;
}

AllocatorStats AllocatorStatsOf(const Device& gpu) {
  const MemoryStats stats = gpu.memory().stats();
  return {.num_allocs = gpu.memory().allocations(),
          .bytes_in_use = stats.used,
          .peak_bytes_in_use = stats.peak_used,
          .largest_alloc_size = gpu.memory().largest_allocation(),
          .bytes_limit = stats.limit,
          .pool_bytes = stats.held,
          .largest_free_block_bytes = stats.largest_free_block,
          .fragmentation = stats.Fragmentation()};
}

std::string MemoryTables(const std::vector<DeviceMemory>& devices,
                         const PlacementRecorder::CopyRoutes& routes) {
  // Two tables: all columns side by side need more than 80.
  std::vector<Row> sizes = {{"device", "limit", "used", "peak", "held", "largest free"}};
  std::vector<Row> counts = {{"device", "blocks", "allocations", "refused", "fragmentation"}};
  std::string owners;
  std::string workspaces;
  for (const DeviceMemory& device : devices) {
    const MemoryStats& stats = device.stats;
    const std::string name = LocalName(device.name);
    sizes.push_back({name, FormatBytes(stats.limit), FormatBytes(stats.used), FormatBytes(stats.peak_used),
                     FormatBytes(stats.held), FormatBytes(stats.largest_free_block)});
    counts.push_back({name, Cat(stats.live_blocks), Cat(stats.num_allocs), Cat(stats.num_refusals),
                      absl::StrFormat("%d%%", static_cast<int>(std::max(stats.Fragmentation(), 0.0) * 100))});
    if (!stats.workspace.is_zero()) workspaces += Cat(name, "  ", FormatBytes(stats.workspace), "\n");
    for (const Refusal::Owner& owner : device.owners) {
      owners += Cat(name, "  ", ShortOp(owner.op), "  ", FormatBytes(owner.bytes), " in ", owner.blocks,
                    owner.blocks == 1 ? " block" : " blocks", "\n");
    }
  }
  std::string text = devices.empty() ? std::string("no GPU\n") : Lines(sizes) + Lines(counts);
  if (!workspaces.empty()) text += Cat("workspaces of libraries (held, not used):\n", workspaces);
  if (!owners.empty()) text += Cat("largest owners:\n", owners);
  std::vector<Row> copies = {{"copied", "copies", "bytes"}};
  for (const auto& [route, count] : routes) {
    copies.push_back({Cat(LocalName(route.first), " -> ", LocalName(route.second)), Cat(count.first),
                      FormatBytes(Bytes(count.second))});
  }
  return copies.size() == 1 ? text : text + Lines(copies);
}

std::string MemorySummaryOf(const std::vector<std::unique_ptr<Device>>& devices,
                            const PlacementRecorder& recorder) {
  std::vector<DeviceMemory> gpus;
  std::map<std::uint16_t, std::string> names;
  for (const auto& device : devices) {
    names[device->record_id()] = device->name();
    if (!device->is_gpu()) continue;
    gpus.push_back({.name = device->name(),
                    .stats = device->memory().stats(),
                    .owners = device->memory().LargestOwners(kMostOwners)});
  }
  PlacementRecorder::CopyRoutes routes;
  for (const auto& [route, count] : recorder.recorded_copies()) {
    routes[{names[route.first], names[route.second]}] = count;
  }
  return MemoryTables(gpus, routes);
}

}  // namespace lgpu::internal

namespace lgpu {

std::string AllocatorStats::DebugString() const {
  const auto line = [](const char* label, std::uint64_t value) {
    return absl::StrFormat("%-18s%20d\n", label, value);
  };
  return line("Limit:", bytes_limit.count()) + line("InUse:", bytes_in_use.count()) +
         line("MaxInUse:", peak_bytes_in_use.count()) + line("NumAllocs:", num_allocs) +
         line("MaxAllocSize:", largest_alloc_size.count()) + line("Reserved:", pool_bytes.count()) +
         absl::StrFormat("%-18s%20s\n", "PeakReserved:", "-") +
         line("LargestFreeBlock:", largest_free_block_bytes.count());
}

}  // namespace lgpu
