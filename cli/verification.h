#ifndef LGPU_CLI_VERIFICATION_H_
#define LGPU_CLI_VERIFICATION_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "cli/commands/command.h"
#include "cli/connection.h"
#include "nlohmann/json.hpp"

namespace lgpu::cli {

/// The result for one logical device.
struct DeviceVerdict {
  std::string device;
  std::uint64_t total_bytes = 0;        // the limit, as the program sees it
  std::uint64_t allocatable_bytes = 0;  // the bytes that it got before the refusal
  std::uint64_t blocks = 0;
  std::string refused_because = {};  // "limit"
  std::string enforced_by = {};
  std::uint64_t chunk_bytes = 0;  // the unit of grants; held memory may reach the limit rounded up to it
  std::uint64_t daemon_limit_bytes = 0;
  std::uint64_t daemon_held_bytes = 0;
  std::uint64_t daemon_used_bytes = 0;
  std::vector<std::string> problems = {};  // none: the limit holds
};

struct Verification {
  std::string lease;
  std::vector<DeviceVerdict> devices = {};
  bool holds() const;
};

/// Fills every logical device of the lease with a program of the library until it is refused, and compares
/// its figures with the daemon's; then asks the daemon itself, past the library, for one chunk more.
/// Everything is given back. Other programs of the lease may run; they get no memory meanwhile.
absl::StatusOr<Verification> VerifyLease(Connection& connection, const std::string& lease,
                                         const CommonOptions& options);

std::string FormatVerification(const Verification& verification, const Style& style);
/// "lgpu.verification/v1"
nlohmann::json ToJson(const Verification& verification);

}  // namespace lgpu::cli

#endif  // LGPU_CLI_VERIFICATION_H_
