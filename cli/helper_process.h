#ifndef LGPU_CLI_HELPER_PROCESS_H_
#define LGPU_CLI_HELPER_PROCESS_H_

#include <sys/types.h>

#include <chrono>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/spawn.h"
#include "base/unique_fd.h"
#include "nlohmann/json.hpp"

namespace lgpu::cli {

/// A HelperProcess is a running lgpu-selftest: the command itself does not load the library (its kernels'
/// threads would take the signals that `lgpu run` passes on). It answers in lines of JSON and is killed with
/// its owner. One thread.
class HelperProcess {
 public:
  /// Starts the helper that lies beside this program, or where it is installed, with this process's
  /// variables, changed by `variables`. NOT_FOUND names both places.
  static absl::StatusOr<HelperProcess> Start(const std::vector<std::string>& arguments,
                                             const SpawnOptions::Environment& variables);
  ~HelperProcess();
  HelperProcess(HelperProcess&& other) noexcept = default;
  HelperProcess& operator=(HelperProcess&&) = delete;

  /// The next line. DEADLINE_EXCEEDED; INTERNAL when it ended or wrote no JSON, with its stderr.
  absl::StatusOr<nlohmann::json> Read(std::chrono::milliseconds patience);
  /// Lets it go on.
  absl::Status Continue();
  pid_t pid() const { return process_.pid(); }

 private:
  HelperProcess(SpawnedProcess process, UniqueFd in, UniqueFd out)
      : process_(std::move(process)), in_(std::move(in)), out_(std::move(out)) {}

  SpawnedProcess process_;
  UniqueFd in_;   // its stdin
  UniqueFd out_;  // its stdout
  std::string buffer_;
};

}  // namespace lgpu::cli

#endif  // LGPU_CLI_HELPER_PROCESS_H_
