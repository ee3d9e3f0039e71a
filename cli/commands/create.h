#ifndef LGPU_CLI_COMMANDS_CREATE_H_
#define LGPU_CLI_COMMANDS_CREATE_H_

#include <memory>

#include "cli/commands/command.h"

namespace lgpu::cli {

/// `lgpu create`: a lease that lasts until `lgpu rm`, owned by the user that makes it.
std::unique_ptr<Command> MakeCreateCommand();

}  // namespace lgpu::cli

#endif  // LGPU_CLI_COMMANDS_CREATE_H_
