// The account of suspended leases, with the journal in step with the broker.

#include <utility>

#include "absl/strings/str_cat.h"
#include "allocator/broker/lease_suspensions.h"
#include "daemon/leases/lease_table.h"
#include "lgpu/status.h"

namespace lgpu::daemon {

absl::StatusOr<LeaseKey> LeaseTable::KeyToSuspend(const Caller& caller, const std::string& text) const {
  LGPU_ASSIGN_OR_RETURN(const LeaseKey key, FindKey(caller, text));
  const Lease& lease = leases_.at(key);
  LGPU_RETURN_IF_ERROR(CheckMayChange(caller, lease));
  LGPU_RETURN_IF_ERROR(CheckMayBegin(lease));
  return key;
}

absl::Status LeaseTable::CheckMayBegin(const Lease& lease) {
  if (lease.ending || !lease.ready) return absl::FailedPreconditionError("the lease is ending, or new");
  if (lease.resizing) return absl::UnavailableError("another call resizes the lease; try again later");
  return absl::OkStatus();
}

absl::StatusOr<Lease> LeaseTable::FindToSuspend(const Caller& caller, const std::string& text) const {
  MutexLock lock(mutex_);
  LGPU_ASSIGN_OR_RETURN(const LeaseKey key, KeyToSuspend(caller, text));
  return leases_.at(key);
}

absl::StatusOr<Lease> LeaseTable::BeginSuspension(const Caller& caller, const std::string& text) {
  MutexLock lock(mutex_);
  LGPU_ASSIGN_OR_RETURN(const LeaseKey key, KeyToSuspend(caller, text));
  LGPU_RETURN_IF_ERROR(broker_.suspensions().Begin(key));
  return leases_.at(key);
}

absl::StatusOr<Lease> LeaseTable::BeginOwnSuspension(const Caller& caller, const std::string& text) {
  MutexLock lock(mutex_);
  LGPU_ASSIGN_OR_RETURN(const LeaseKey key, KeyToSuspend(caller, text));
  const Lease& lease = leases_.at(key);
  if (caller.session == nullptr || !lease.live.contains(caller.session->id())) {
    return absl::FailedPreconditionError("only a session of the lease can say that it has suspended itself");
  }
  LGPU_RETURN_IF_ERROR(broker_.suspensions().BeginOwn(key, caller.session->id()));
  return lease;
}

absl::Status LeaseTable::BeginOrderedSuspension(LeaseKey key, SessionId session,
                                                const std::map<LogicalId, Bytes>& needs,
                                                const std::map<LogicalId, Bytes>& held_before) {
  MutexLock lock(mutex_);
  const auto found = leases_.find(key);
  if (found == leases_.end() || !found->second.live.contains(session)) {
    return absl::NotFoundError("the program has ended");
  }
  LGPU_RETURN_IF_ERROR(CheckMayBegin(found->second));
  return broker_.suspensions().BeginOwn(key, session, needs, held_before);
}

v1::JournalSuspended LeaseTable::SuspendedRecord(LeaseKey key) const {
  v1::JournalSuspended record;
  for (const LeaseSuspensions::Charge& charge : broker_.suspensions().Charges(key)) {
    v1::JournalCharged& out = *record.add_charges();
    out.set_session_id(charge.session.value);
    out.set_device_id(charge.device.value);
    out.set_bytes(charge.bytes.count());
  }
  for (const LeaseSuspensions::Overhead& overhead : broker_.suspensions().Overheads(key)) {
    v1::JournalOverhead& out = *record.add_overheads();
    out.set_card_uuid(overhead.card_uuid);
    out.set_pid(overhead.pid);
    out.set_bytes(overhead.bytes.count());
  }
  return record;
}

LeaseTable::Parking LeaseTable::ParkingOf(const v1::JournalSuspended& record) {
  Parking parking;
  for (const v1::JournalMover& mover : record.movers()) {
    parking.movers[mover.pid()] = SessionId{mover.session_id()};
  }
  if (record.preempted_at_boottime_ns() != 0) {
    parking.preempted_at = UseTime(record.preempted_at_boottime_ns());
  }
  parking.own_session = SessionId{record.own_session_id()};
  parking.own_bytes = Bytes(record.own_bytes());
  parking.is_by_order = record.own_by_order();
  return parking;
}

Bytes LeaseTable::Park(LeaseKey key, const Parking& parking) {
  Bytes parked;
  {
    MutexLock lock(mutex_);
    const auto found = leases_.find(key);
    if (found == leases_.end() || !broker_.suspensions().Find(key)) return Bytes();
    v1::JournalSuspended& record = found->second.suspended.emplace(SuspendedRecord(key));
    for (const auto& [pid, session] : parking.movers) {
      v1::JournalMover& mover = *record.add_movers();
      mover.set_pid(pid);
      mover.set_session_id(session.value);
    }
    record.set_preempted_at_boottime_ns(parking.preempted_at.value_or(UseTime(0)).count());
    record.set_own_session_id(parking.own_session.value);
    record.set_own_bytes(parking.own_bytes.count());
    record.set_own_by_order(parking.is_by_order);
    // Before the memory is anybody's: a grant of it is behind this record in the journal.
    NoteLease(found->second);
    parked = broker_.suspensions().Park(key, parking.preempted_at.has_value()) + parking.own_bytes;
  }
  Commit().IgnoreError();  // a grant commits it too
  return parked;
}

absl::StatusOr<Lease> LeaseTable::FindSuspended(const Caller& caller, const std::string& text,
                                                bool own) const {
  MutexLock lock(mutex_);
  LGPU_ASSIGN_OR_RETURN(const LeaseKey key, FindKey(caller, text));
  const Lease& lease = leases_.at(key);
  LGPU_RETURN_IF_ERROR(CheckMayChange(caller, lease));
  if (!lease.suspended) {
    return absl::FailedPreconditionError(absl::StrCat("lease ", lease.name, " is not suspended"));
  }
  const bool is_by_order = lease.suspended->own_by_order();
  const SessionId itself{is_by_order ? 0 : lease.suspended->own_session_id()};
  if (own && (!itself || caller.session == nullptr || caller.session->id() != itself)) {
    return absl::FailedPreconditionError("the session has not suspended the lease");
  }
  if (!own && itself) {
    return absl::FailedPreconditionError(
        absl::StrCat("the program of lease ", lease.name,
                     " has suspended itself, and resumes itself\ntry: its own call, Resume"));
  }
  if (!lease.suspended->failed().empty()) {
    return absl::FailedPreconditionError(absl::StrCat(
        "the programs of lease ", lease.name, " cannot be resumed any more: ", lease.suspended->failed(),
        "\ntry: lgpu rm --kill ", lease.name));
  }
  return lease;
}

absl::Status LeaseTable::TakeBack(LeaseKey key, std::span<const WaiterId> rooms) {
  Parking parking;
  {
    MutexLock lock(mutex_);
    const auto found = leases_.find(key);
    if (found == leases_.end()) return absl::NotFoundError("the lease has ended");
    LGPU_RETURN_IF_ERROR(broker_.suspensions().TakeBack(key, rooms));
    if (const auto record = std::exchange(found->second.suspended, std::nullopt)) {
      parking = ParkingOf(*record);
    }
    const auto suspension = broker_.suspensions().Find(key);
    found->second.was_resumed |= suspension && suspension->has_programs && !parking.own_session;
    NoteLease(found->second);
  }
  const absl::Status kept = Commit();
  if (!kept.ok()) Park(key, parking);  // the next lgpud would give the memory to others
  return kept;
}

std::vector<Lease> LeaseTable::Preempted() const {
  std::vector<Lease> leases;
  MutexLock lock(mutex_);
  for (const auto& [key, lease] : leases_) {
    if (WhenPreempted(lease) && lease.suspended->failed().empty()) leases.push_back(lease);
  }
  return leases;
}

bool LeaseTable::HasSuspendedPrograms(const Lease& lease) const {
  const auto suspension = broker_.suspensions().Find(lease.key);
  if (!suspension || (lease.suspended && !lease.suspended->failed().empty())) return false;
  return !suspension->is_parked || suspension->has_programs;  // or they are on the way
}

std::vector<LeaseKey> LeaseTable::EmptySuspensions() const {
  std::vector<LeaseKey> keys;
  MutexLock lock(mutex_);
  for (const auto& [key, lease] : leases_) {
    if (!lease.suspended || lease.ending || !lease.ready) continue;
    // Where none was left in host memory a program is in a state that no driver names.
    if (!lease.suspended->failed().empty() && lease.suspended->charges().empty()) continue;
    const auto suspension = broker_.suspensions().Find(key);
    const bool is_empty = suspension && suspension->had_programs && !suspension->has_programs;
    if (is_empty && suspension->is_parked) keys.push_back(key);
  }
  return keys;
}

void LeaseTable::NoteResumed(LeaseKey key) {
  MutexLock lock(mutex_);
  const auto found = leases_.find(key);
  if (found == leases_.end() || std::exchange(found->second.was_resumed, true)) return;
  NoteLease(found->second);
}

void LeaseTable::FailSuspension(LeaseKey key, const std::string& why, const std::set<std::int64_t>& left) {
  {
    MutexLock lock(mutex_);
    const auto found = leases_.find(key);
    if (found == leases_.end()) return;
    // Of a suspension of an earlier lgpud's the account knows nothing. Where it cannot begin, the programs
    // keep their charges, and the journal says the same.
    if (!broker_.suspensions().BeginAnyway(key).ok()) return;
    broker_.suspensions().MoveOnly(key, left);
    found->second.suspended = SuspendedRecord(key);
    found->second.suspended->set_failed(why);
    NoteLease(found->second);  // before the memory is anybody's, as in Park
    broker_.suspensions().Fail(key);
  }
  Commit().IgnoreError();  // as in Park
}

void LeaseTable::RestoreSuspensions() {
  MutexLock lock(mutex_);
  for (const auto& [key, lease] : leases_) {
    if (!lease.suspended) continue;
    LeaseSuspensions::Earlier earlier{.charges = {},
                                      .has_failed = !lease.suspended->failed().empty(),
                                      .is_own = lease.suspended->own_session_id() != 0,
                                      .keeps_room = lease.suspended->preempted_at_boottime_ns() != 0};
    for (const LeaseDevice& device : lease.devices) earlier.guarantees[device.id] = device.guarantee;
    for (const v1::JournalCharged& charge : lease.suspended->charges()) {
      earlier.charges.push_back({.session = SessionId{charge.session_id()},
                                 .device = LogicalId{charge.device_id()},
                                 .bytes = Bytes(charge.bytes())});
    }
    for (const v1::JournalOverhead& overhead : lease.suspended->overheads()) {
      earlier.overheads.push_back(
          {.card_uuid = overhead.card_uuid(), .pid = overhead.pid(), .bytes = Bytes(overhead.bytes())});
    }
    broker_.suspensions().Restore(key, earlier);
  }
}

}  // namespace lgpu::daemon
