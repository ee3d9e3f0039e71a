#ifndef LGPU_DAEMON_LEASES_LEASE_STORE_H_
#define LGPU_DAEMON_LEASES_LEASE_STORE_H_

#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "lgpu/v1/journal.pb.h"

namespace lgpu::daemon {

/// A LeaseStore is the file of lasting leases (daemon/leases/lease_file.h) in a daemon's state directory.
/// Read may run at any time; one Write at a time.
class LeaseStore {
 public:
  /// Empty: there is no file, and nothing is kept.
  explicit LeaseStore(std::string directory) : directory_(std::move(directory)) {}

  bool is_kept() const { return !directory_.empty(); }

  struct Found {
    std::vector<v1::JournalLease> leases;
    bool is_whole = true;  // else the file may have had more
  };
  /// The leases that an earlier daemon wrote, but for those that end with the boot in which they were made. A
  /// damaged file is kept beside it, and the daemon's log tells each damage.
  absl::StatusOr<Found> Read() const;
  /// Replaces the file. UNAVAILABLE: it could not be written; the earlier one is as it was.
  absl::Status Write(const std::vector<v1::JournalLease>& leases) const;

 private:
  const std::string directory_;
};

}  // namespace lgpu::daemon

#endif  // LGPU_DAEMON_LEASES_LEASE_STORE_H_
