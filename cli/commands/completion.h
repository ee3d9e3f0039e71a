#ifndef LGPU_CLI_COMMANDS_COMPLETION_H_
#define LGPU_CLI_COMMANDS_COMPLETION_H_

#include <memory>

#include "cli/commands/command.h"

namespace lgpu::cli {

/// `lgpu completion SHELL`: the script that a shell completes by.
std::unique_ptr<Command> MakeCompletionCommand();

}  // namespace lgpu::cli

#endif  // LGPU_CLI_COMMANDS_COMPLETION_H_
