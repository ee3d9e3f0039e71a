#include "allocator/broker/card_use.h"

#include <algorithm>

namespace lgpu {
namespace {

Bytes GrantedTo(std::int64_t pid, const ChunkUse& chunks) {
  const auto found = chunks.granted.find(pid);
  return found == chunks.granted.end() ? Bytes() : found->second;
}

// Were the chunks not part of the report, the processes had more than there is besides chunks.
bool CountsChunks(const CardReport& report, const ChunkUse& chunks) {
  Bytes reported;
  for (const DeviceMemory::ProcessMemory& process : report.processes) reported += process.used;
  return reported > SaturatingSub(SaturatingSub(chunks.total, report.free), chunks.existing);
}

}  // namespace

std::map<std::int64_t, Bytes> BesideChunks(const CardReport& report, const ChunkUse& chunks) {
  const bool counts = CountsChunks(report, chunks);
  std::map<std::int64_t, Bytes> beside;
  for (const DeviceMemory::ProcessMemory& process : report.processes) {
    beside[process.pid] += process.used;  // a process may be listed for each of its contexts
  }
  if (!counts) return beside;
  for (auto& [pid, bytes] : beside) bytes = SaturatingSub(bytes, GrantedTo(pid, chunks));
  return beside;
}

CardReport WithoutCharges(CardReport report, std::map<std::int64_t, Bytes> charged) {
  for (DeviceMemory::ProcessMemory& process : report.processes) {
    const auto found = charged.find(process.pid);
    if (found == charged.end()) continue;
    const Bytes part = std::min(process.used, found->second);
    process.used -= part;
    found->second -= part;
    report.free += part;
  }
  return report;
}

}  // namespace lgpu
