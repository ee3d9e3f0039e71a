#ifndef LGPU_CLI_HELPER_PROCESS_H_
#define LGPU_CLI_HELPER_PROCESS_H_

#include <sys/types.h>

#include <chrono>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/unique_fd.h"
#include "nlohmann/json.hpp"

namespace lgpu::cli {

/// A HelperProcess is a running lgpu-selftest: the command itself does not load the library (its kernels'
/// threads would take the signals that `lgpu run` passes on). It answers in lines of JSON and is killed with
/// its owner. One thread.
class HelperProcess {
 public:
  using Variables = std::vector<std::pair<std::string, std::string>>;
  /// Starts the helper that lies beside this program, or where it is installed. Variables with an empty
  /// value are taken away. NOT_FOUND names both places.
  static absl::StatusOr<HelperProcess> Start(const std::vector<std::string>& arguments,
                                             const Variables& variables);
  ~HelperProcess();
  HelperProcess(HelperProcess&& other) noexcept;
  HelperProcess& operator=(HelperProcess&&) = delete;

  /// The next line. DEADLINE_EXCEEDED; INTERNAL when it ended or wrote no JSON, with what it said on stderr.
  absl::StatusOr<nlohmann::json> Read(std::chrono::milliseconds patience);
  /// Lets it go on.
  absl::Status Continue();
  pid_t pid() const { return pid_; }

 private:
  HelperProcess(pid_t pid, UniqueFd in, UniqueFd out) : pid_(pid), in_(std::move(in)), out_(std::move(out)) {}

  pid_t pid_;
  UniqueFd in_;   // its stdin
  UniqueFd out_;  // its stdout
  std::string buffer_;
};

}  // namespace lgpu::cli

#endif  // LGPU_CLI_HELPER_PROCESS_H_
