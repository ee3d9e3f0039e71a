#ifndef LGPU_DAEMON_LEASES_LEASE_FILE_H_
#define LGPU_DAEMON_LEASES_LEASE_FILE_H_

#include <string>
#include <string_view>
#include <vector>

#include "lgpu/v1/journal.pb.h"

// The file of lasting leases as bytes: pure, no file and no clock. It has the format of a journal without a
// boot id (daemon/recovery/journal_format.h), and each of its records is a lease. lgpud replaces the file
// whole.

namespace lgpu::daemon {

struct ParsedLeaseFile {
  /// The leases of all records that can be read, by their keys.
  std::vector<v1::JournalLease> leases;
  /// Each damage, with its place and what is known of its lease. None: the file is whole.
  std::vector<std::string> damages;
};
/// Any bytes are fine. A damaged record costs its own lease alone. Behind a damaged length the next record is
/// found by its checksums. Nothing is read of a file of a later version.
ParsedLeaseFile ParseLeaseFile(std::string_view bytes);

}  // namespace lgpu::daemon

#endif  // LGPU_DAEMON_LEASES_LEASE_FILE_H_
