#ifndef LGPU_CLI_COMMANDS_ENV_H_
#define LGPU_CLI_COMMANDS_ENV_H_

#include <memory>

#include "cli/commands/command.h"

namespace lgpu::cli {

/// `lgpu env LEASE`: the variables that put a shell's or a service's programs into a lasting lease.
std::unique_ptr<Command> MakeEnvCommand();

}  // namespace lgpu::cli

#endif  // LGPU_CLI_COMMANDS_ENV_H_
