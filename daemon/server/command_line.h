#ifndef LGPU_DAEMON_SERVER_COMMAND_LINE_H_
#define LGPU_DAEMON_SERVER_COMMAND_LINE_H_

#include <optional>
#include <string>

#include "daemon/server/config.h"

namespace lgpu::daemon {

/// The parsed arguments of lgpud.
struct CommandLine {
  Flags flags;
  bool check_config = false;
  bool print_config = false;
  bool check_gpus = false;

  // --help, --version or a wrong flag: the program prints `message` and exits with this code.
  std::optional<int> exit_code;
  std::string message;
};

CommandLine ParseCommandLine(int argc, const char* const* argv);

}  // namespace lgpu::daemon

#endif  // LGPU_DAEMON_SERVER_COMMAND_LINE_H_
