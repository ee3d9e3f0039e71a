#ifndef LGPU_BASE_PROCESS_H_
#define LGPU_BASE_PROCESS_H_

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "base/unique_fd.h"

namespace lgpu {

/// A Process is another process that cannot be confused with a later one of the same pid: a pidfd and the
/// start time. It owns the pidfd. A process in a pid namespace that the daemon cannot see has pid 0 and no
/// pidfd; only its socket tells that it is gone.
struct Process {
  std::int64_t pid = 0;
  std::uint64_t start_time = 0;  // clock ticks after boot, field 22 of /proc/PID/stat
  UniqueFd pidfd;                // readable when the process is gone

  bool IsGone() const;
};

/// Takes hold of a peer. NOT_FOUND when it is gone already, or when its pid belongs to another process by
/// now.
absl::StatusOr<Process> HoldProcess(std::int64_t pid);

/// Field 22 of /proc/PID/stat.
absl::StatusOr<std::uint64_t> ProcessStartTime(std::int64_t pid);

/// The inodes of the files that a process maps and whose paths have `name` in them; nothing: it may not be
/// looked at. The time is that of the process's number of mappings.
std::optional<std::set<std::uint64_t>> MappedFiles(std::int64_t pid, std::string_view name);

/// The user that a process runs as; nothing: it is gone.
std::optional<std::uint32_t> ProcessOwner(std::int64_t pid);

/// The parent of a process; 0: it is gone.
std::int64_t ParentProcess(std::int64_t pid);

/// The name of a process, for people; empty when unknown.
std::string ProcessCommand(std::int64_t pid);

}  // namespace lgpu

#endif  // LGPU_BASE_PROCESS_H_
