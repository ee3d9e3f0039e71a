#ifndef LGPU_CLI_COMMANDS_VERSION_H_
#define LGPU_CLI_COMMANDS_VERSION_H_

#include <memory>

#include "cli/commands/command.h"

namespace lgpu::cli {

/// `lgpu version`: of this program, and of the daemon if one answers.
std::unique_ptr<Command> MakeVersionCommand();

}  // namespace lgpu::cli

#endif  // LGPU_CLI_COMMANDS_VERSION_H_
