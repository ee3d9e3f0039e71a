#ifndef LGPU_CLI_REPEAT_H_
#define LGPU_CLI_REPEAT_H_

#include <functional>
#include <string>

#include "absl/status/status.h"

namespace CLI {
class App;
}

namespace lgpu::cli {

/// The flags -i and --count of a verb that shows the present state.
struct RepeatFlags {
  std::string interval;
  int count = 0;  // 0: for ever
  void AddTo(CLI::App& verb);
  /// Calls `once`; with --interval again and again, until --count is reached or it fails.
  absl::Status Run(const std::function<absl::Status()>& once) const;
};

}  // namespace lgpu::cli

#endif  // LGPU_CLI_REPEAT_H_
