// How a LeaseTable ends managed leases by itself.

#include <spdlog/spdlog.h>

#include <chrono>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "daemon/leases/lease_table.h"
#include "lgpu/status.h"

namespace lgpu::daemon {
namespace {

// Empty: it goes on. Told to its programs.
std::string WhyOver(const Management& management, Management::BootTime now) {
  if (management.ends_at && now >= *management.ends_at) return "its time is over";
  if (management.cgroup.empty() || !management.was_populated) return "";
  const absl::StatusOr<bool> populated = IsPopulated(management.cgroup);
  const bool is_over = populated.ok() ? !*populated : absl::IsNotFound(populated.status());
  return is_over ? absl::StrCat("the processes of cgroup ", management.cgroup, " have ended") : "";
}

}  // namespace

void LeaseTable::EndOverdue() {
  struct Managed {
    LeaseKey key;
    std::string name;
    Management management;
  };
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
    if (!management.cgroup.empty() && !management.was_populated) {
      const absl::StatusOr<bool> populated = IsPopulated(management.cgroup);
      if (populated.ok() && *populated) {
        management.was_populated = true;
        NotePopulated(each.key);
      }
    }
    const std::string why = WhyOver(management, now);
    if (why.empty()) continue;
    spdlog::info("lease {} ends: {}", each.name, why);
    RemoveKey(each.key, absl::FailedPreconditionError(absl::StrCat("lease ", each.name, " has ended: ", why)),
              std::chrono::steady_clock::now())
        .IgnoreError();
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
  // Not kept: the next daemon looks again, as this one did.
  Commit().IgnoreError();
  SaveLasting().IgnoreError();
}

}  // namespace lgpu::daemon
