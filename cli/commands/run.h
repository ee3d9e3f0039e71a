#ifndef LGPU_CLI_COMMANDS_RUN_H_
#define LGPU_CLI_COMMANDS_RUN_H_

#include <memory>

#include "cli/commands/command.h"

namespace lgpu::cli {

/// `lgpu run -m SIZE -- CMD`: a command inside a lease that lives as long as it (and its children).
std::unique_ptr<Command> MakeRunCommand();

}  // namespace lgpu::cli

#endif  // LGPU_CLI_COMMANDS_RUN_H_
