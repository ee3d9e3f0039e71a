// Leases that end by themselves, by time, by cgroup or when they are idle; and the directories of leases.

#include <spdlog/spdlog.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "daemon/leases/lease_table.h"
#include "lgpu/status.h"

namespace lgpu::daemon {
namespace {

// Each directory takes two of lgpud's descriptors.
constexpr std::ptrdiff_t kMostDirectoriesOfAUser = 64;

// Empty: it goes on. Told to its programs.
std::string WhyOver(const Management& management, Management::BootTime now) {
  if (management.ends_at && now >= *management.ends_at) return "its time to live has passed";
  if (management.cgroup.empty() || !management.was_populated) return "";
  const absl::StatusOr<bool> populated = IsPopulated(management.cgroup);
  const bool is_over = populated.ok() ? !*populated : absl::IsNotFound(populated.status());
  return is_over ? absl::StrCat("the processes of cgroup ", management.cgroup, " have ended") : "";
}

std::string WhyOverByTerms(const Lease& lease) {
  if (!lease.ready || lease.ending) return "";
  const bool has_programs = !lease.live.empty() || !lease.draining.empty();
  return WhyOver(lease.ends, has_programs, lease.used_at, BootTimeNow());
}

}  // namespace

void LeaseTable::EndOverdue() {
  struct Managed {
    LeaseKey key;
    std::string name;
    Management management;
  };
  EndByTerms();
  std::vector<Managed> managed;
  {
    MutexLock lock(mutex_);
    for (const auto& [key, lease] : leases_) {
      if (!lease.ready || lease.ending || !lease.management || !lease.management->ends_by_itself()) continue;
      managed.push_back({.key = key, .name = lease.name, .management = *lease.management});
    }
  }
  const Management::BootTime now = BootTimeNow();
  for (Managed& each : managed) {
    Management& management = each.management;
    if (!management.cgroup.empty() && !management.was_populated && HasBeenPopulated(management)) {
      management.was_populated = true;
      NotePopulated(each.key);
    }
    const std::string why = WhyOver(management, now);
    if (why.empty()) continue;
    spdlog::info("lease {} ends: {}", each.name, why);
    RemoveKey(each.key, absl::FailedPreconditionError(absl::StrCat("lease ", each.name, " has ended: ", why)),
              std::chrono::steady_clock::now())
        .IgnoreError();
  }
}

void LeaseTable::EndByTerms() {
  std::vector<LeaseKey> keys;
  {
    MutexLock lock(mutex_);
    for (const auto& [key, lease] : leases_) {
      if (!WhyOverByTerms(lease).empty() && !HasSuspendedPrograms(lease)) keys.push_back(key);
    }
  }
  for (const LeaseKey key : keys) {
    Removal removal;
    std::string why;
    {
      // Asked again: a program may have attached, and then the lease is not idle.
      MutexLock lock(mutex_);
      const auto found = leases_.find(key);
      if (found == leases_.end()) continue;
      why = WhyOverByTerms(found->second);
      if (why.empty() || HasSuspendedPrograms(found->second)) continue;
      events_.EndsByItself(found->second, why);
      removal = BeginRemoval(found->second);
    }
    const absl::Status told =
        absl::FailedPreconditionError(absl::StrCat("lease ", removal.name, " has ended: ", why));
    FinishRemoval(removal, told, std::chrono::steady_clock::now()).IgnoreError();
  }
}

void LeaseTable::NotePopulated(LeaseKey key) {
  {
    MutexLock lock(mutex_);
    const auto found = leases_.find(key);
    if (found == leases_.end()) return;
    found->second.management->was_populated = true;
    NoteLease(found->second);
  }
  // Where this cannot be written, the next daemon looks again.
  Commit().IgnoreError();
  SaveLasting().IgnoreError();
}

absl::StatusOr<LeaseTable::WithDirectory> LeaseTable::OpenDirectory(const Caller& caller,
                                                                    const std::string& text) {
  WithDirectory result;
  bool lasting = false;
  {
    MutexLock lock(mutex_);
    LGPU_ASSIGN_OR_RETURN(const LeaseKey key, FindKey(caller, text));
    if (caller.only) {
      return absl::PermissionDeniedError(
          "a program that reaches lgpud through a lease's own directory cannot ask for such a directory");
    }
    Lease& lease = leases_.at(key);
    const auto with_directories =
        std::count_if(leases_.begin(), leases_.end(), [uid = lease.owner.uid](const auto& entry) {
          return entry.second.has_directory && entry.second.owner.uid == uid;
        });
    if (!caller.is_root() && !lease.has_directory && with_directories >= kMostDirectoriesOfAUser) {
      return absl::ResourceExhaustedError(
          absl::StrCat("you have ", with_directories,
                       " leases for containers already, as many as a user "
                       "may have\ntry: lgpu rm for leases whose containers have ended"));
    }
    lease.has_directory = true;
    lasting = lease.lasting;
    NoteLease(lease);
    result = {.key = key, .id = lease.id, .owner = lease.owner.uid};
  }
  LGPU_RETURN_IF_ERROR(Commit());
  if (lasting) LGPU_RETURN_IF_ERROR(SaveLasting());
  return result;
}

std::vector<LeaseTable::WithDirectory> LeaseTable::LeasesWithDirectories() const {
  std::vector<WithDirectory> found;
  MutexLock lock(mutex_);
  for (const auto& [key, lease] : leases_) {
    if (lease.ready && !lease.ending && lease.has_directory) {
      found.push_back({.key = key, .id = lease.id, .owner = lease.owner.uid});
    }
  }
  return found;
}

std::set<std::string> LeaseTable::KeptDirectories() const {
  std::set<std::string> ids;
  MutexLock lock(mutex_);
  for (const auto& [key, lease] : leases_) {
    if (lease.ready && !lease.ending && lease.has_directory) ids.insert(lease.id);
  }
  for (const auto& [id, kept] : waiting_) {
    if (kept.record.has_directory()) ids.insert(id);
  }
  return ids;
}

bool LeaseTable::IsOpen(LeaseKey key) const {
  MutexLock lock(mutex_);
  const auto found = leases_.find(key);
  return found != leases_.end() && !found->second.ending;
}

}  // namespace lgpu::daemon
