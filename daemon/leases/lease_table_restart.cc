// A LeaseTable's records for the next daemon, and its start from an earlier daemon's records.

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "allocator/broker/session_restore.h"
#include "daemon/leases/lease_record.h"
#include "daemon/leases/lease_table.h"
#include "lgpu/status.h"

namespace lgpu::daemon {

void LeaseTable::NoteLease(const Lease& lease) {
  if (journal_ == nullptr) return;
  v1::JournalRecord record;
  *record.mutable_lease() = RecordOf(lease);
  journal_->Note(record);
}

void LeaseTable::NoteSession(const Lease& lease, const SessionState& session) {
  if (journal_ == nullptr) return;
  v1::JournalRecord record;
  v1::JournalSession& out = *record.mutable_session();
  out.set_id(session.id().value);
  out.set_lease_key(lease.key.value);
  out.set_token(session.identity().token);
  out.set_uid(session.uid());
  out.set_pid(session.process().pid);
  out.set_start_time(session.process().start_time);
  out.set_command(session.identity().command);
  for (const std::uint64_t page : session.pages()) out.add_page_inodes(page);
  journal_->Note(record);
}

void LeaseTable::NoteSessionGone(SessionId session) {
  if (journal_ == nullptr) return;
  v1::JournalRecord record;
  record.mutable_session_gone()->set_id(session.value);
  journal_->Note(record);
}

void LeaseTable::NoteLeaseGone(LeaseKey lease) {
  if (journal_ == nullptr) return;
  v1::JournalRecord record;
  record.mutable_lease_gone()->set_key(lease.value);
  journal_->Note(record);
}

absl::Status LeaseTable::RecordSession(const SessionState& session) {
  {
    MutexLock lock(mutex_);
    const auto found = leases_.find(session.lease());
    if (found == leases_.end()) return absl::FailedPreconditionError("the lease has ended");
    NoteSession(found->second, session);
  }
  return Commit();
}

absl::Status LeaseTable::Commit() { return journal_ == nullptr ? absl::OkStatus() : journal_->Commit(); }

absl::Status LeaseTable::Restore(const v1::JournalLease& record) {
  const std::vector<Broker::CardInfo> cards = broker_.Cards();
  Lease lease;
  lease.key = LeaseKey{record.key()};
  lease.id = record.id();
  lease.name = record.name();
  lease.owner = LookUpUser(record.owner_uid());
  lease.lasting = lease.saved = record.lasting();
  lease.created_at =
      std::chrono::system_clock::time_point(std::chrono::duration_cast<std::chrono::system_clock::duration>(
          std::chrono::nanoseconds(record.created_unix_ns())));
  lease.request_id = record.request_id();
  lease.has_directory = record.has_directory();
  if (record.has_management()) lease.management = FromRecord(record.management());
  if (record.has_ends()) lease.ends = FromRecord(record.ends());
  lease.preemptible = FromProto(record.preemptible());
  if (record.has_suspended()) lease.suspended = record.suspended();
  lease.idle_after = std::chrono::milliseconds(record.idle_after_ms());
  lease.was_resumed = record.was_resumed();
  lease.used_at = UseTimeNow();  // what was before is not known
  lease.sessions_ever = record.sessions_ever();
  lease.removed = lease.ending = record.removed();
  lease.ready = true;
  {
    MutexLock lock(mutex_);
    lease.placements = std::make_shared<PlacementLog>(policy_.placement_records);
  }
  absl::Status status;
  std::vector<LogicalId> made;
  for (const v1::JournalDevice& device : record.devices()) {
    const auto card = std::find_if(cards.begin(), cards.end(), [&](const Broker::CardInfo& info) {
      return info.card.device.uuid == device.card_uuid();
    });
    if (card == cards.end()) {
      status = absl::NotFoundError(absl::StrCat("GPU ", device.card_uuid(), " is not served here now"));
      break;
    }
    const LogicalId id{device.id()};
    const int index = static_cast<int>(lease.devices.size());
    status = broker_.restore().AddDevice(
        id, {.card = card->id,
             .limit = Bytes(device.limit_bytes()),
             .guarantee = record.has_suspended() ? Bytes() : Bytes(device.guarantee_bytes()),
             .preallocate = device.preallocate(),
             .lease = lease.key,
             .device_name = DeviceName(index),
             .lease_name = lease.name,
             .owner = lease.owner.name,
             .preemptible = lease.preemptible});
    if (!status.ok()) break;
    made.push_back(id);
    lease.devices.push_back({.id = id,
                             .index = index,
                             .card = card->card,
                             .preallocate = device.preallocate(),
                             .name = device.label(),
                             .limit = Bytes(device.limit_bytes()),
                             .guarantee = Bytes(device.guarantee_bytes())});
  }
  if (!status.ok()) {
    for (const LogicalId device : made) broker_.RemoveDevice(device);
    return status;
  }
  MutexLock lock(mutex_);
  last_key_ = std::max(last_key_, lease.key.value);
  NoteLease(lease);
  waiting_.erase(lease.id);
  leases_.insert_or_assign(lease.key, std::move(lease));
  return absl::OkStatus();
}

void LeaseTable::RestoreSession(SessionState& session) {
  MutexLock lock(mutex_);
  Lease& lease = leases_.at(session.lease());
  lease.live.insert(session.id());
  if (lease.removed) session.RequestEnd(WasRemoved(lease.name));
  events_.Absent(lease, session, broker_.Held(session.id()));
}

void LeaseTable::EndUnused() {
  std::vector<std::pair<std::optional<Lease>, std::vector<LogicalId>>> over;
  {
    MutexLock lock(mutex_);
    for (auto& [key, lease] : leases_) {
      if (!lease.live.empty() || (lease.lasting && !lease.removed)) continue;
      lease.ending = true;
      over.emplace_back();
      over.back().second = TakeIfOver(key, over.back().first);
    }
  }
  for (const auto& [lease, devices] : over) Finish(lease, devices);
}

void LeaseTable::SkipKeys(LeaseKey last) {
  MutexLock lock(mutex_);
  last_key_ = std::max(last_key_, last.value);
}

void LeaseTable::SessionBack(SessionState& session) {
  MutexLock lock(mutex_);
  const auto found = leases_.find(session.lease());
  if (found != leases_.end()) events_.Back(found->second, session, broker_.Held(session.id()));
}

void LeaseTable::MakeMissing() {
  std::vector<std::pair<LogicalId, Lease>> preallocated;
  {
    MutexLock lock(mutex_);
    for (const auto& [key, lease] : leases_) {
      for (const LeaseDevice& device : lease.devices) {
        if (device.preallocate && lease.ready && !lease.ending && !lease.resizing) {
          preallocated.emplace_back(device.id, lease);
        }
      }
    }
  }
  for (const auto& [device, lease] : preallocated) {
    const std::optional<Broker::DeviceInfo> before = broker_.Find(device);
    if (!before || before->missing.is_zero()) continue;
    if (const absl::Status made = broker_.MakeMissing(device); !made.ok()) {
      events_.LacksMemory(lease, before->missing, made);
    }
  }
}

}  // namespace lgpu::daemon
