#ifndef LGPU_DAEMON_LEASES_MANAGEMENT_H_
#define LGPU_DAEMON_LEASES_MANAGEMENT_H_

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "lgpu/v1/journal.pb.h"
#include "lgpu/v1/stats.pb.h"

namespace lgpu::daemon {

/// Management is root's terms for a lease that root made for a user (a managed lease). Its owner attaches;
/// root alone resizes and removes it. A plain record of the LeaseTable's.
struct Management {
  /// Monotonic clock: time since the start of the machine, suspended or not.
  using BootTime = std::chrono::nanoseconds;

  std::vector<std::pair<std::string, std::string>> labels;
  std::optional<BootTime> ends_at;
  std::string cgroup;          // a folder of cgroup v2; empty: none
  bool was_populated = false;  // the cgroup has had processes
  /// CPU time of the cgroup when the lease was made: 0 for one that was not there; none where it does not
  /// tell.
  std::optional<std::uint64_t> cgroup_cpu_usec;
  std::string boot_id;  // of the machine, when it was made; of one that ends by itself

  bool ends_by_itself() const { return ends_at.has_value() || !cgroup.empty(); }
};

/// By CLOCK_BOOTTIME.
Management::BootTime BootTimeNow();

/// A request's terms, from `now` on. INVALID_ARGUMENT for impossible labels, times or folders.
absl::StatusOr<Management> ParseManagement(const v1::Management& request, Management::BootTime now);
v1::Management ToProto(const Management& management, Management::BootTime now);

/// As the journal has it.
v1::JournalManagement RecordOf(const Management& management);
Management FromRecord(const v1::JournalManagement& record);
/// The lease was to end by itself, and the machine was started again since then.
bool IsOfAnotherBoot(const v1::JournalManagement& record, const std::string& boot_id);

/// Whether processes are in the cgroup or below. NOT_FOUND: there is no such cgroup; else why it cannot be
/// told.
absl::StatusOr<bool> IsPopulated(const std::string& cgroup);
/// Whether processes have been in the lease's cgroup since it was made: they are there now, or the cgroup has
/// used CPU time meanwhile. False where that cannot be told.
bool HasBeenPopulated(const Management& management);

}  // namespace lgpu::daemon

#endif  // LGPU_DAEMON_LEASES_MANAGEMENT_H_
