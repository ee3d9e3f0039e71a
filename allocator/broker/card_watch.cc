#include "allocator/broker/card_watch.h"

#include <algorithm>

namespace lgpu {

std::optional<CardReport> CardReport::Take(DeviceMemory& backend, int device) {
  const std::optional<Bytes> free = backend.FreeMemory(device);
  if (!free) return std::nullopt;
  return CardReport{*free, backend.ProcessesOn(device)};
}

std::int64_t CardWatch::Outside(const CardReport& report, Bytes chunks) {
  return -static_cast<std::int64_t>(report.free.count()) - static_cast<std::int64_t>(chunks.count());
}

CardWatch::CardWatch(const CardReport& report, Bytes chunks, Bytes coming)
    : outside_(Outside(report, chunks) - static_cast<std::int64_t>(coming.count())) {
  // A process may be listed for each of its contexts.
  for (const DeviceMemory::ProcessMemory& process : report.processes) processes_[process.pid] += process.used;
}

Bytes CardWatch::Back(const CardReport& report, Bytes chunks, Bytes coming,
                      const std::set<std::int64_t>& suspects) const {
  std::int64_t still_there = Outside(report, chunks) - outside_;
  std::map<std::int64_t, Bytes> now;
  for (const DeviceMemory::ProcessMemory& process : report.processes) now[process.pid] += process.used;
  const auto count_change = [&](std::int64_t pid, Bytes before, Bytes after) {
    if (suspects.count(pid) != 0) return;
    still_there -= static_cast<std::int64_t>(after.count()) - static_cast<std::int64_t>(before.count());
  };
  for (const auto& [pid, used] : now) {
    const auto before = processes_.find(pid);
    count_change(pid, before == processes_.end() ? Bytes() : before->second, used);
  }
  for (const auto& [pid, used] : processes_) {
    if (now.count(pid) == 0) count_change(pid, used, Bytes());
  }
  const auto most = static_cast<std::int64_t>(coming.count());
  return Bytes(static_cast<std::uint64_t>(most - std::clamp<std::int64_t>(still_there, 0, most)));
}

Bytes CardWatch::Risen(const CardReport& before, const CardReport& after, Bytes amount) {
  return std::min(SaturatingSub(after.free, before.free), amount);
}

}  // namespace lgpu
