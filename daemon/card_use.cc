#include "daemon/card_use.h"

namespace lgpu::daemon {
namespace {

Bytes GrantedTo(std::int64_t pid, const ChunkUse& chunks) {
  const auto found = chunks.granted.find(pid);
  return found == chunks.granted.end() ? Bytes() : found->second;
}

bool CountsChunks(const CardReport& report, const ChunkUse& chunks) {
  Bytes reported;
  Bytes granted;  // to processes that the report names
  for (const DeviceBackend::ProcessMemory& process : report.processes) {
    const Bytes its = GrantedTo(process.pid, chunks);
    if (process.used < its) return false;
    reported += process.used;
    granted += its;
  }
  const Bytes used = SaturatingSub(chunks.total, report.free);
  return !granted.is_zero() && used + granted / 2 < reported + chunks.held;
}

}  // namespace

std::map<std::int64_t, Bytes> BesideChunks(const CardReport& report, const ChunkUse& chunks) {
  const bool counts = CountsChunks(report, chunks);
  std::map<std::int64_t, Bytes> beside;
  for (const DeviceBackend::ProcessMemory& process : report.processes) {
    beside[process.pid] = counts ? SaturatingSub(process.used, GrantedTo(process.pid, chunks)) : process.used;
  }
  return beside;
}

}  // namespace lgpu::daemon
