#ifndef LGPU_CLI_IDLE_AFTER_FLAG_H_
#define LGPU_CLI_IDLE_AFTER_FLAG_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"

namespace CLI {
class App;
}

namespace lgpu::cli {

/// The flag --idle-after: for how long a lease is idle before it may be asked to give way.
struct IdleAfterFlag {
  std::string text;  // empty: not given

  void AddTo(CLI::App& verb);
  /// In milliseconds; 0: not given. INVALID_ARGUMENT: no duration, or less than a second.
  absl::StatusOr<std::uint64_t> Milliseconds() const;
};

}  // namespace lgpu::cli

#endif  // LGPU_CLI_IDLE_AFTER_FLAG_H_
