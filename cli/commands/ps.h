#ifndef LGPU_CLI_COMMANDS_PS_H_
#define LGPU_CLI_COMMANDS_PS_H_

#include <memory>

#include "cli/commands/command.h"

namespace lgpu::cli {

/// `lgpu ps`: the processes that are attached to leases.
std::unique_ptr<Command> MakePsCommand();

}  // namespace lgpu::cli

#endif  // LGPU_CLI_COMMANDS_PS_H_
