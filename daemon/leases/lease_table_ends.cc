#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/leases/lease_table.h"

namespace lgpu::daemon {

void LeaseTable::SessionLost(SessionState& session) {
  session.NoteLoss();
  std::optional<Lease> taken;
  std::vector<LogicalId> devices;
  {
    MutexLock lock(mutex_);
    if (!session.ended_by_itself()) ++lost_sessions_;
    const auto found = leases_.find(session.lease());
    if (found == leases_.end()) return;
    Lease& lease = found->second;
    lease.live.erase(session.id());
    lease.draining.insert(session.id());
    if (lease.live.empty() && !lease.lasting) lease.ending = true;
    // SessionGone tells the end of one that ended by itself, as that of any program that closes.
    if (!session.ended_by_itself()) events_.Lost(lease, session, broker_.Held(session.id()));
    devices = TakeIfOver(found->first, taken);
  }
  Finish(taken, devices);
}

void LeaseTable::SessionGone(SessionState& session) {
  std::optional<Lease> taken;
  std::vector<LogicalId> devices;
  {
    MutexLock lock(mutex_);
    const auto found = leases_.find(session.lease());
    if (found == leases_.end()) return;
    Lease& lease = found->second;
    const bool was_lost = lease.draining.erase(session.id()) > 0 && !session.ended_by_itself();
    lease.live.erase(session.id());
    lease.used_at = UseTimeNow();
    NoteSessionGone(session.id());
    events_.Gone(lease, session, was_lost);
    if (lease.live.empty() && !lease.lasting) lease.ending = true;
    devices = TakeIfOver(found->first, taken);
  }
  Finish(taken, devices);
}

std::vector<LogicalId> LeaseTable::TakeIfOver(LeaseKey key, std::optional<Lease>& taken) {
  const auto found = leases_.find(key);
  Lease& lease = found->second;
  if (!lease.ready || !lease.ending || lease.taken || lease.resizing || !lease.live.empty()) return {};
  if (lease.draining.empty()) {
    // The lease stays in the table, hidden, until its devices are gone: calls that wait for its end look
    // there.
    lease.taken = true;
    taken = lease;
  }
  std::vector<LogicalId> ids;
  for (const LeaseDevice& device : lease.devices) ids.push_back(device.id);
  return ids;
}

void LeaseTable::Finish(const std::optional<Lease>& lease, const std::vector<LogicalId>& devices) {
  for (const LogicalId device : devices) broker_.RemoveDevice(device);
  if (!lease) return;
  lease->placements->Close();
  const PlacementLog::Counts counts = lease->placements->counts();
  const bool is_forgotten = !lease->lasting || SaveLasting().ok();
  {
    MutexLock lock(mutex_);
    past_placements_.records += counts.records;
    past_placements_.dropped += counts.dropped;
    lease->placements->AddTo(past_ops_);
    const auto left = leases_.find(lease->key);
    if (is_forgotten || !left->second.saved) {
      NoteLeaseGone(lease->key);
    } else {
      // While the file has the lease, the journal keeps its removal: else the next daemon would restore it.
      left->second.removed = true;
      NoteLease(left->second);
      in_file_still_.push_back(lease->key);
    }
    ++(left->second.removed ? ended_.by_request : ended_.by_exit);
    leases_.erase(left);
  }
  Commit().IgnoreError();
  changed_.NotifyAll();
  events_.Ended(*lease);
}

void LeaseTable::Close() {
  std::vector<std::shared_ptr<PlacementLog>> logs;
  {
    MutexLock lock(mutex_);
    closed_ = true;
    for (const auto& [key, lease] : leases_) logs.push_back(lease.placements);
  }
  changed_.NotifyAll();
  for (const std::shared_ptr<PlacementLog>& log : logs) log->Close();
}

}  // namespace lgpu::daemon
