#ifndef LGPU_DAEMON_LEASES_LEASE_ENDS_H_
#define LGPU_DAEMON_LEASES_LEASE_ENDS_H_

#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "daemon/leases/management.h"
#include "lgpu/v1/control.pb.h"
#include "lgpu/v1/journal.pb.h"

namespace lgpu::daemon {

/// LeaseEnds says when a lasting lease ends by itself, as its owner asked for. A plain record of the
/// LeaseTable's.
struct LeaseEnds {
  using BootTime = Management::BootTime;

  std::optional<BootTime> at;  // its programs are ended then, too
  BootTime when_idle{0};       // without a program for so long; 0: no such end
  std::string boot_id;         // of the machine, when it was made; of one that ends at a time

  bool any() const { return at.has_value() || when_idle.count() > 0; }
};

/// A request's ends, from `now` on. INVALID_ARGUMENT: more than ten years.
absl::StatusOr<LeaseEnds> ParseLeaseEnds(const v1::LeaseEnds& request, LeaseEnds::BootTime now);
v1::LeaseEnds ToProto(const LeaseEnds& ends, LeaseEnds::BootTime now);

/// As the journal and the file of lasting leases have it.
v1::JournalEnds RecordOf(const LeaseEnds& ends);
LeaseEnds FromRecord(const v1::JournalEnds& record);
/// The lease was to end at a time, and the machine was started again since it was made.
bool IsOfAnotherBoot(const v1::JournalEnds& record, const std::string& boot_id);

/// Why a lease of these ends is over; empty: it goes on. `used_at`: when it last had a program, or was made.
std::string WhyOver(const LeaseEnds& ends, bool has_programs, LeaseEnds::BootTime used_at,
                    LeaseEnds::BootTime now);

}  // namespace lgpu::daemon

#endif  // LGPU_DAEMON_LEASES_LEASE_ENDS_H_
