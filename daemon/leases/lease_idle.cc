#include "daemon/leases/lease_idle.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <memory>
#include <set>
#include <vector>

#include "absl/strings/str_cat.h"
#include "allocator/broker/giving_way.h"

namespace lgpu::daemon {

std::optional<UseTime> LastUse(const Lease& lease, const SessionDirectory& sessions) {
  UseTime last = lease.used_at;
  if (const auto op = lease.placements->last_at()) last = std::max(last, FromSystemTime(*op));
  std::set<SessionId> ids = lease.live;
  ids.insert(lease.draining.begin(), lease.draining.end());
  // A program may have several sessions. It tells when one of them does.
  std::set<std::int64_t> telling, silent;
  for (const SessionId id : ids) {
    const std::shared_ptr<SessionState> session = sessions.Find(id);
    if (session == nullptr) continue;
    const SessionUse use = session->use();
    if (use.last) last = std::max(last, *use.last);
    if (!use.is_known) silent.insert(session->process().pid);
    if (use.last) telling.insert(session->process().pid);
  }
  const bool all_tell = std::includes(telling.begin(), telling.end(), silent.begin(), silent.end());
  return all_tell ? std::optional(std::min(last, UseTimeNow())) : std::nullopt;
}

absl::StatusOr<std::chrono::milliseconds> ParseIdleAfter(std::uint64_t asked_ms) {
  constexpr std::uint64_t kLongestMs = std::uint64_t{10} * 365 * 24 * 3600 * 1000;
  const auto least_ms = static_cast<std::uint64_t>(std::chrono::milliseconds(GivingWay::kIdleAfter).count());
  if (asked_ms > kLongestMs) {
    return absl::InvalidArgumentError(
        absl::StrCat("an idle time of ", asked_ms,
                     " ms before the lease is asked to give way is more than ten ", "years; ask for less"));
  }
  if (asked_ms > 0 && asked_ms < least_ms) {
    return absl::InvalidArgumentError(absl::StrCat("an idle time of ", asked_ms,
                                                   " ms before the lease is asked to give way is too short; ",
                                                   "ask for ", least_ms, " ms or more"));
  }
  return std::chrono::milliseconds(asked_ms);
}

std::chrono::milliseconds LeastIdle(const Lease& lease) {
  return std::max<std::chrono::milliseconds>(lease.idle_after, GivingWay::kIdleAfter);
}

void TellLastUses(const LeaseTable& leases, const SessionDirectory& sessions, Broker& broker) {
  std::vector<Broker::LastUse> uses;
  const auto now = std::chrono::steady_clock::now();
  for (const Lease& lease : leases.Snapshot(Caller{})) {
    std::optional<Broker::TimePoint> at;
    if (const std::optional<UseTime> last = LastUse(lease, sessions)) at = now - (UseTimeNow() - *last);
    for (const LeaseDevice& device : lease.devices) {
      uses.push_back({.device = device.id, .at = at, .idle_after = lease.idle_after});
    }
  }
  broker.NoteLastUses(uses);
}

}  // namespace lgpu::daemon
