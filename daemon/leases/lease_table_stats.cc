// Statistics, placements and counts of leases, for their users, their sessions and operators.

#include <utility>

#include "allocator/broker/card_observer.h"
#include "daemon/leases/lease_table.h"
#include "lgpu/status.h"

namespace lgpu::daemon {

void LeaseTable::DrainPlacements(SessionState& session) {
  std::shared_ptr<PlacementLog> log;
  int devices = 0;
  {
    MutexLock lock(mutex_);
    const auto found = leases_.find(session.lease());
    if (found == leases_.end()) return;
    log = found->second.placements;
    devices = static_cast<int>(found->second.devices.size());
  }
  session.placements().Drain(*log, devices);
}

absl::StatusOr<LeaseTable::Placements> LeaseTable::FindPlacements(const Caller& caller,
                                                                  const std::string& text) {
  Placements placements;
  std::set<SessionId> sessions;
  {
    MutexLock lock(mutex_);
    LGPU_ASSIGN_OR_RETURN(const LeaseKey key, FindKey(caller, text));
    const Lease& lease = leases_.at(key);
    placements = {.id = lease.id, .name = lease.name, .log = lease.placements};
    sessions = lease.live;
    sessions.insert(lease.draining.begin(), lease.draining.end());
  }
  for (const SessionId id : sessions) {
    if (const std::shared_ptr<SessionState> session = sessions_.Find(id); session != nullptr) {
      DrainPlacements(*session);
    }
  }
  return placements;
}

std::vector<LogicalId> LeaseTable::DeviceIds(LeaseKey key) const {
  std::vector<LogicalId> ids;
  MutexLock lock(mutex_);
  const auto found = leases_.find(key);
  if (found != leases_.end()) {
    for (const LeaseDevice& device : found->second.devices) ids.push_back(device.id);
  }
  return ids;
}

void LeaseTable::WriteStats(SessionState& session) const {
  std::vector<SessionState::DeviceFigures> devices;
  for (const LogicalId id : DeviceIds(session.lease())) {
    const std::optional<Broker::DeviceInfo> info = broker_.Find(id);
    if (!info) continue;
    devices.push_back({.id = id,
                       .info = *info,
                       .unused_by_others = broker_.observer().UnusedByOthers(session.id(), info->card)});
  }
  if (!devices.empty()) session.WriteStats(devices);
}

std::vector<Lease> LeaseTable::Snapshot(const Caller& caller) const {
  std::vector<Lease> leases;
  MutexLock lock(mutex_);
  for (const auto& [key, lease] : leases_) {
    if (lease.ready && caller.may_see(key, lease.owner.uid)) leases.push_back(lease);
  }
  return leases;
}

PlacementLog::Counts LeaseTable::placement_counts() const {
  MutexLock lock(mutex_);
  PlacementLog::Counts sum = past_placements_;
  for (const auto& [key, lease] : leases_) {
    const PlacementLog::Counts counts = lease.placements->counts();
    sum.records += counts.records;
    sum.dropped += counts.dropped;
  }
  return sum;
}

OpCounts LeaseTable::op_counts() const {
  MutexLock lock(mutex_);
  OpCounts sum = past_ops_;
  for (const auto& [key, lease] : leases_) lease.placements->AddTo(sum);
  return sum;
}

std::uint64_t LeaseTable::lost_sessions() const {
  MutexLock lock(mutex_);
  return lost_sessions_;
}

LeaseTable::EndCounts LeaseTable::end_counts() const {
  MutexLock lock(mutex_);
  return ended_;
}

std::size_t LeaseTable::size() const {
  MutexLock lock(mutex_);
  return leases_.size();
}

std::pair<std::string, std::string> LeaseTable::Names(LeaseKey key) const {
  MutexLock lock(mutex_);
  const auto found = leases_.find(key);
  return found == leases_.end() ? std::pair<std::string, std::string>()
                                : std::pair(found->second.id, found->second.name);
}

}  // namespace lgpu::daemon
