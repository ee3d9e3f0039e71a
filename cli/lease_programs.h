#ifndef LGPU_CLI_LEASE_PROGRAMS_H_
#define LGPU_CLI_LEASE_PROGRAMS_H_

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/process.h"
#include "cli/connection.h"

namespace lgpu::cli {

/// The programs that have a session of a lease. They are held by pidfds, so that a later process of the same
/// pid is never taken for one of them. One thread.
class LeasePrograms {
 public:
  /// `id`: of a lease, which may be ending; one that is gone has none. FAILED_PRECONDITION: the daemon's pids
  /// are those of another pid namespace.
  static absl::StatusOr<LeasePrograms> Find(Connection& connection, const std::string& id);

  struct Ended {
    std::vector<std::int64_t> terminated;  // by SIGTERM
    std::vector<std::int64_t> killed;      // by SIGKILL, after the grace
    std::vector<std::string> failures;     // of programs that may not be signalled, or do not end
  };
  /// SIGTERM to each, and SIGKILL to those that have not ended after `grace`.
  Ended End(std::chrono::milliseconds grace);

 private:
  LeasePrograms() = default;
  std::vector<Process> programs_;
};

}  // namespace lgpu::cli

#endif  // LGPU_CLI_LEASE_PROGRAMS_H_
