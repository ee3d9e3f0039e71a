// What a LeaseTable keeps in the file of its lasting leases, and the leases that wait there.

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "daemon/leases/lease_record.h"
#include "daemon/leases/lease_table.h"
#include "lgpu/status.h"

namespace lgpu::daemon {

absl::Status LeaseTable::SaveLasting() {
  if (journal_ == nullptr || !store_.is_kept()) return absl::OkStatus();
  MutexLock file_lock(file_mutex_);
  std::vector<v1::JournalLease> lasting;
  std::vector<LeaseKey> saved_now;
  {
    MutexLock lock(mutex_);
    for (const auto& [key, lease] : leases_) {
      if (lease.lasting && lease.ready && !lease.ending) {
        lasting.push_back(RecordOf(lease));
        // No program is there after a restart of the machine.
        lasting.back().clear_suspended();
        lasting.back().clear_was_resumed();
        saved_now.push_back(key);
      }
    }
    for (const auto& [id, kept] : waiting_) {
      if (kept.record.lasting()) lasting.push_back(kept.record);
    }
  }
  const absl::Status saved = store_.Write(lasting);
  MutexLock lock(mutex_);
  file_is_behind_ = !saved.ok();
  if (!saved.ok()) return saved;
  for (const LeaseKey key : saved_now) {
    if (const auto found = leases_.find(key); found != leases_.end()) found->second.saved = true;
  }
  for (const LeaseKey key : std::exchange(in_file_still_, {})) NoteLeaseGone(key);
  return saved;
}

void LeaseTable::TendFile() {
  {
    MutexLock lock(mutex_);
    if (!file_is_behind_) return;
  }
  SaveLasting().IgnoreError();  // callers that needed the write already have its error
}

absl::Status LeaseTable::KeepOrRemove(LeaseKey key, absl::Status saved) {
  if (saved.ok()) return saved;
  std::string name;
  std::optional<Lease> taken;
  std::vector<LogicalId> devices;
  std::set<SessionId> live;
  {
    MutexLock lock(mutex_);
    const auto found = leases_.find(key);
    if (found == leases_.end()) return saved;
    // Another call wrote it down: the same request that came again, say, and was answered that it is kept.
    if (found->second.saved) return absl::OkStatus();
    found->second.ending = true;
    found->second.removed = true;
    name = found->second.name;
    live = found->second.live;
    NoteLease(found->second);
    devices = TakeIfOver(key, taken);
  }
  EndSessions(live, absl::FailedPreconditionError(
                        absl::StrCat("lease ", name, " could not be kept: ", std::string(saved.message()))));
  Finish(taken, devices);
  Commit().IgnoreError();
  return saved;
}

void LeaseTable::KeepWaiting(const v1::JournalLease& lease, bool in_use) {
  MutexLock lock(mutex_);
  waiting_.insert_or_assign(lease.id(), Kept{.record = lease, .in_use = in_use});
}

absl::StatusOr<std::string> LeaseTable::FindWaiting(const Caller& caller, const std::string& text) const {
  std::vector<std::string> named;
  for (const auto& [id, kept] : waiting_) {
    const bool is_own =
        kept.record.owner_uid() == caller.uid || (kept.record.has_management() && caller.is_root());
    if (id == text && (is_own || caller.is_root())) return id;
    if (kept.record.name() == text && is_own) named.push_back(id);
  }
  // A name means a lease in the table, also one that is ending, before a waiting lease.
  const bool is_name_here = std::any_of(leases_.begin(), leases_.end(), [&](const auto& entry) {
    return entry.second.owner.uid == caller.uid && entry.second.name == text;
  });
  if (named.empty() || is_name_here) return absl::NotFoundError("no such lease waits");
  if (named.size() > 1) {
    return absl::InvalidArgumentError(absl::StrCat("leases ", absl::StrJoin(named, " and "),
                                                   " are all named ", text,
                                                   " and wait for a later start; name one by its id"));
  }
  return named.front();
}

absl::Status LeaseTable::RemoveWaiting(const Caller& caller, const std::string& text) {
  Kept kept;
  {
    MutexLock lock(mutex_);
    LGPU_ASSIGN_OR_RETURN(const std::string id, FindWaiting(caller, text));
    if (waiting_.at(id).record.has_management() && !caller.is_root()) {
      return absl::PermissionDeniedError(
          absl::StrCat("lease ", waiting_.at(id).record.name(), " is managed: only root removes it"));
    }
    kept = TakeWaiting(id);
  }
  return GiveUp(kept);
}

absl::StatusOr<std::string> LeaseTable::RemoveWaitingRequest(const Caller& caller,
                                                             const std::string& request_id) {
  std::vector<Kept> found;
  {
    MutexLock lock(mutex_);
    std::vector<std::string> ids;
    for (const auto& [id, kept] : waiting_) {
      const bool is_near =
          kept.record.has_management() ? caller.is_root() : kept.record.owner_uid() == caller.uid;
      if (is_near && kept.record.request_id() == request_id) ids.push_back(id);
    }
    for (const std::string& id : ids) found.push_back(TakeWaiting(id));
  }
  if (found.empty()) return absl::NotFoundError("no lease of this request waits");
  absl::Status status;
  for (const Kept& kept : found) status.Update(GiveUp(kept));
  LGPU_RETURN_IF_ERROR(status);
  return found.front().record.id();
}

LeaseTable::Kept LeaseTable::TakeWaiting(const std::string& id) {
  Kept kept = std::move(waiting_.extract(id).mapped());
  v1::JournalRecord record;
  *record.mutable_lease() = kept.record;
  record.mutable_lease()->set_removed(true);
  if (journal_ != nullptr) journal_->Note(record);
  return kept;
}

absl::Status LeaseTable::GiveUp(const Kept& kept) {
  sessions_.RemoveWaiting(LeaseKey{kept.record.key()});
  // As for a lease in the table.
  Commit().IgnoreError();
  const bool is_forgotten = SaveLasting().ok();
  if (!kept.in_use) {
    MutexLock lock(mutex_);
    if (is_forgotten) {
      NoteLeaseGone(LeaseKey{kept.record.key()});
    } else {
      in_file_still_.push_back(LeaseKey{kept.record.key()});
    }
  }
  return Removed(kept.record.name(), Commit());
}

}  // namespace lgpu::daemon
