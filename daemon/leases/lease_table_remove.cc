// Removes leases of a LeaseTable: by name, by request, or because their caller was not told of them.

#include <algorithm>
#include <chrono>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/utf8.h"
#include "daemon/leases/lease_table.h"
#include "lgpu/status.h"

namespace lgpu::daemon {

void LeaseTable::EndSessions(const std::set<SessionId>& sessions, const absl::Status& why) {
  for (const SessionId id : sessions) {
    std::shared_ptr<SessionState> session = sessions_.Find(id);
    while (session != nullptr) {
      session->RequestEnd(why);
      // A session that comes back has another state, which copies the old one's request to end only once.
      std::shared_ptr<SessionState> now = sessions_.Find(id);
      if (now == session) break;
      session = std::move(now);
    }
  }
}

absl::Status LeaseTable::Remove(const Caller& caller, const std::string& text, TimePoint deadline) {
  const auto find = [&]() -> absl::StatusOr<LeaseKey> {
    MutexLock lock(mutex_);
    LGPU_ASSIGN_OR_RETURN(const LeaseKey key, FindKey(caller, text));
    LGPU_RETURN_IF_ERROR(CheckMayChange(caller, leases_.at(key)));
    return key;
  };
  const absl::StatusOr<LeaseKey> found = find();
  if (absl::IsNotFound(found.status()) && !caller.only) {
    const absl::Status waiting = RemoveWaiting(caller, text);
    return absl::IsNotFound(waiting) ? found.status() : waiting;
  }
  LGPU_RETURN_IF_ERROR(found.status());
  return RemoveKey(*found, absl::OkStatus(), deadline);
}

absl::Status LeaseTable::RemoveKey(LeaseKey key, const absl::Status& why, TimePoint deadline) {
  Removal removal;
  {
    MutexLock lock(mutex_);
    const auto found = leases_.find(key);
    if (found == leases_.end() || found->second.ending) return absl::NotFoundError("the lease has ended");
    removal = BeginRemoval(found->second);
  }
  return FinishRemoval(removal, why, deadline);
}

LeaseTable::Removal LeaseTable::BeginRemoval(Lease& lease) {
  lease.ending = true;
  lease.removed = true;
  Removal removal{.key = lease.key, .name = lease.name, .lasting = lease.lasting, .live = lease.live};
  NoteLease(lease);
  removal.devices = TakeIfOver(lease.key, removal.taken);
  return removal;
}

absl::Status LeaseTable::FinishRemoval(const Removal& removal, const absl::Status& why, TimePoint deadline) {
  EndSessions(removal.live, why.ok() ? WasRemoved(removal.name) : why);
  Finish(removal.taken, removal.devices);
  // The removal must survive the death of this daemon. The journal is first: the next daemon believes it
  // before the file, which is written again when the sessions have ended.
  Commit().IgnoreError();
  if (!removal.taken && removal.lasting) SaveLasting().IgnoreError();
  {
    MutexLock lock(mutex_);
    while (!closed_ && leases_.contains(removal.key) && changed_.WaitUntil(mutex_, deadline)) {
    }
  }
  return Removed(removal.name, Commit());
}

void LeaseTable::TakeBack(const v1::Lease& made) {
  Removal removal;
  {
    MutexLock lock(mutex_);
    const auto found = std::find_if(leases_.begin(), leases_.end(),
                                    [&](const auto& entry) { return entry.second.id == made.id(); });
    if (found == leases_.end() || found->second.ending || found->second.is_repeated) return;
    removal = BeginRemoval(found->second);
  }
  FinishRemoval(removal, absl::OkStatus(), std::chrono::steady_clock::now()).IgnoreError();
}

absl::Status LeaseTable::Removed(const std::string& name, const absl::Status& noted) {
  if (noted.ok()) return noted;
  return absl::UnavailableError(absl::StrCat(
      "lease ", name, " is removed, but would be back if lgpud died now: ", std::string(noted.message())));
}

absl::StatusOr<LeaseKey> LeaseTable::AwaitRequested(const Caller& caller, const std::string& request_id,
                                                    TimePoint deadline) {
  while (true) {
    const Lease* lease =
        caller.is_root() ? FindRequested(caller.uid, /*is_managed=*/true, request_id) : nullptr;
    if (lease == nullptr) lease = FindRequested(caller.uid, /*is_managed=*/false, request_id);
    if (lease == nullptr) {
      return absl::NotFoundError(absl::StrCat("you have no lease made by request \"",
                                              AsUtf8(request_id.substr(0, kMaxRequestIdBytes)), "\""));
    }
    if (lease->ready) return lease->key;
    const std::string name = lease->name;  // the lease may be gone after the wait
    if (!changed_.WaitUntil(mutex_, deadline) || closed_) {
      return absl::UnavailableError(
          absl::StrCat("lease ", name, " of this request is being made; try again when it exists"));
    }
  }
}

absl::StatusOr<std::string> LeaseTable::RemoveRequested(const Caller& caller, const std::string& request_id,
                                                        TimePoint deadline) {
  if (caller.only) return absl::PermissionDeniedError("no lease can be changed from a lease's own directory");
  const absl::StatusOr<std::string> waited = RemoveWaitingRequest(caller, request_id);
  Removal removal;
  std::string id;
  {
    MutexLock lock(mutex_);
    const absl::StatusOr<LeaseKey> key = AwaitRequested(caller, request_id, deadline);
    // A lease that waited is the request's too.
    if (absl::IsNotFound(key.status()) && !absl::IsNotFound(waited.status())) return waited;
    LGPU_RETURN_IF_ERROR(key.status());
    Lease& lease = leases_.at(*key);
    id = lease.id;
    if (lease.ending) return id;
    removal = BeginRemoval(lease);
  }
  LGPU_RETURN_IF_ERROR(FinishRemoval(removal, absl::OkStatus(), deadline));
  return id;
}

}  // namespace lgpu::daemon
