// The file of a LeaseTable's leases that last.

#include <fcntl.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <optional>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "allocator/unique_fd.h"
#include "daemon/journal_io.h"
#include "daemon/lease_record.h"
#include "daemon/lease_table.h"
#include "lgpu/status.h"

namespace lgpu::daemon {
namespace {

constexpr char kFile[] = "leases";

}  // namespace

absl::Status LeaseTable::SaveLasting() {
  if (journal_ == nullptr || state_directory_.empty()) {
    return absl::OkStatus();
  }
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
    for (const v1::JournalLease& lease : kept_in_file_) {
      *record.mutable_lease() = lease;
      AppendJournalRecord(record, bytes);
    }
  }
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
                   "), where leases are kept that last; make room there and try again"));
}

void LeaseTable::TendFile() {
  {
    MutexLock lock(mutex_);
    if (!file_is_behind_) return;
  }
  SaveLasting().IgnoreError();  // whom it mattered to knows
}

absl::Status LeaseTable::KeepOrRemove(LeaseKey key, absl::Status saved) {
  if (saved.ok()) {
    return saved;
  }
  std::string name;
  std::optional<Lease> taken;
  std::vector<LogicalId> devices;
  std::set<SessionId> live;
  {
    MutexLock lock(mutex_);
    const auto found = leases_.find(key);
    if (found == leases_.end()) {
      return saved;
    }
    // Another call wrote it down: the same request that came again, say, and was answered that it is kept.
    if (found->second.saved) {
      return absl::OkStatus();
    }
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
    return found;
  }
  const ParsedJournal parsed = ParseJournal(*bytes, "");
  // It is replaced whole, never appended to: a file that ends early is damaged too.
  found.is_whole = parsed.condition == ParsedJournal::Condition::kWhole;
  if (!found.is_whole) {
    KeepDamaged(path);
    spdlog::error("{} is damaged ({}) and is kept as {}.damaged; leases in it that last are lost but for {}",
                  path, parsed.detail.empty() ? "it ends early" : parsed.detail, path,
                  parsed.state.leases().size());
  }
  for (const auto& [key, lease] : parsed.state.leases()) {
    found.leases.push_back(lease);
  }
  return found;
}

void LeaseTable::KeepInFile(const v1::JournalLease& lease) {
  MutexLock lock(mutex_);
  kept_in_file_.push_back(lease);
  kept_in_file_.back().set_waiting(true);
}

absl::Status LeaseTable::RemoveWaiting(const Caller& caller, const std::string& text) {
  v1::JournalRecord record;
  {
    MutexLock lock(mutex_);
    const auto is_meant = [&](const v1::JournalLease& lease) {
      const bool is_own = lease.owner_uid() == caller.uid;
      return (lease.id() == text && (is_own || caller.is_root())) || (lease.name() == text && is_own);
    };
    const auto found = std::find_if(kept_in_file_.begin(), kept_in_file_.end(), is_meant);
    if (found == kept_in_file_.end()) {
      return absl::NotFoundError("no such lease waits");
    }
    *record.mutable_lease() = *found;
    record.mutable_lease()->set_removed(true);
    if (journal_ != nullptr) journal_->Note(record);
    in_file_still_.push_back(LeaseKey{found->key()});
    kept_in_file_.erase(found);
  }
  // As for one that is there.
  const absl::Status noted = Commit();
  SaveLasting().IgnoreError();
  return noted;
}

}  // namespace lgpu::daemon
