// The file of a LeaseTable's lasting leases.

#include <fcntl.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <optional>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/unique_fd.h"
#include "daemon/leases/lease_file.h"
#include "daemon/leases/lease_record.h"
#include "daemon/leases/lease_table.h"
#include "daemon/recovery/journal_io.h"
#include "lgpu/status.h"

namespace lgpu::daemon {
namespace {

constexpr char kFile[] = "leases";

}  // namespace

absl::Status LeaseTable::SaveLasting() {
  if (journal_ == nullptr || state_directory_.empty()) return absl::OkStatus();
  MutexLock file_lock(file_mutex_);
  std::string bytes = EncodeJournalHeader("");
  v1::JournalRecord record;
  std::vector<LeaseKey> saved_now;
  {
    MutexLock lock(mutex_);
    for (const auto& [key, lease] : leases_) {
      if (lease.lasting && lease.ready && !lease.ending) {
        *record.mutable_lease() = RecordOf(lease);
        AppendJournalRecord(record, bytes);
        saved_now.push_back(key);
      }
    }
    for (const auto& [id, kept] : waiting_) {
      if (!kept.record.lasting()) continue;
      *record.mutable_lease() = kept.record;
      AppendJournalRecord(record, bytes);
    }
  }
  SetJournalLength(bytes);
  std::error_code error;
  std::filesystem::create_directories(state_directory_, error);
  const UniqueFd directory(::open(state_directory_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  absl::Status saved = directory ? ReplaceFile(directory.get(), kFile, bytes, /*sync=*/true)
                                 : absl::ErrnoToStatus(errno, "cannot open it");
  MutexLock lock(mutex_);
  file_is_behind_ = !saved.ok();
  if (saved.ok()) {
    for (const LeaseKey key : saved_now) {
      if (const auto found = leases_.find(key); found != leases_.end()) found->second.saved = true;
    }
    for (const LeaseKey key : std::exchange(in_file_still_, {})) NoteLeaseGone(key);
    return saved;
  }
  return absl::UnavailableError(
      absl::StrCat("lgpud cannot write ", state_directory_, "/", kFile, " (", std::string(saved.message()),
                   "), which keeps the lasting leases; make room there and try again"));
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

absl::StatusOr<LeaseTable::Lasting> LeaseTable::ReadLasting(const std::string& state_directory) {
  const std::string path = absl::StrCat(state_directory, "/", kFile);
  Lasting found;
  LGPU_ASSIGN_OR_RETURN(const std::optional<std::string> bytes, ReadFile(path));
  if (!bytes) {
    found.is_whole = false;  // whether there were leases is not known
    return found;
  }
  const ParsedLeaseFile parsed = ParseLeaseFile(*bytes);
  found.is_whole = parsed.damages.empty();
  if (!found.is_whole) {
    KeepDamaged(path);
    for (const std::string& damage : parsed.damages) spdlog::error("{}: {}", path, damage);
    spdlog::error("{} is damaged and is kept as {}.damaged; {} of its lasting leases can be read", path, path,
                  parsed.leases.size());
  }
  LGPU_ASSIGN_OR_RETURN(const std::string boot_id, ReadBootId());
  for (const v1::JournalLease& lease : parsed.leases) {
    if (!IsOfAnotherBoot(lease.management(), boot_id)) found.leases.push_back(lease);
  }
  return found;
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
