#ifndef LGPU_CLI_LEASE_NAMES_H_
#define LGPU_CLI_LEASE_NAMES_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "lgpu/v1/stats.pb.h"

namespace lgpu::cli {

/// The lease that `text` means for the user `uid`, by the rules of lgpud: an id, a name of their own, then
/// OWNER/NAME or the name of another user's lease. Null: none. INVALID_ARGUMENT: several, naming them.
absl::StatusOr<const v1::LeaseStats*> FindLease(const v1::StatsSnapshot& snapshot, const std::string& text,
                                                std::uint32_t uid);

}  // namespace lgpu::cli

#endif  // LGPU_CLI_LEASE_NAMES_H_
