#ifndef LGPU_CLI_DRIVER_VERIFICATION_H_
#define LGPU_CLI_DRIVER_VERIFICATION_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "cli/commands/command.h"
#include "cli/connection.h"
#include "nlohmann/json.hpp"

namespace lgpu::cli {

/// The result of one kind of call on one GPU.
struct DriverAttempt {
  std::string way;                 // "cuMemAlloc"
  std::uint64_t taken_bytes = 0;   // the most that the program had at once
  std::uint64_t allocations = 0;   // the number of pieces
  std::uint64_t driver_bytes = 0;  // what the driver's own free memory fell by
  int refused = 0;                 // the driver's result that ended it; 0: none, the limit was passed
  std::uint64_t daemon_bytes = 0;  // held of the GPU's logical devices meanwhile, as the daemon counts
  /// The driver has no such call, or not on this GPU.
  bool is_absent() const { return allocations == 0 && refused != 0 && refused != 2; }
};

/// The result for one GPU of the lease.
struct DriverVerdict {
  std::string card_uuid;
  std::uint64_t limit_bytes = 0;  // of the lease's logical devices there
  std::vector<DriverAttempt> attempts = {};
  std::uint64_t most_bytes() const;
  /// None: the limit holds.
  std::vector<std::string> problems() const;
};

struct DriverVerification {
  std::string lease;
  std::vector<DriverVerdict> cards = {};
  bool holds() const;
};

/// Runs a program in the lease that knows of the CUDA driver alone and tries to take more than the limit by
/// every kind of call. Everything is given back. FAILED_PRECONDITION: the lease has no real GPU, or a program
/// of this environment would find no driver, or no shim.
absl::StatusOr<DriverVerification> VerifyDriver(Connection& connection, const std::string& lease,
                                                const CommonOptions& options);

std::string FormatDriverVerification(const DriverVerification& verification, const Style& style);
/// "lgpu.driver_verification/v1"
nlohmann::json ToJson(const DriverVerification& verification);

}  // namespace lgpu::cli

#endif  // LGPU_CLI_DRIVER_VERIFICATION_H_
