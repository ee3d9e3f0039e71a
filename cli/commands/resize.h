#ifndef LGPU_CLI_COMMANDS_RESIZE_H_
#define LGPU_CLI_COMMANDS_RESIZE_H_

#include <memory>

#include "cli/commands/command.h"

namespace lgpu::cli {

/// `lgpu resize LEASE`: new limits while its programs run.
std::unique_ptr<Command> MakeResizeCommand();

}  // namespace lgpu::cli

#endif  // LGPU_CLI_COMMANDS_RESIZE_H_
