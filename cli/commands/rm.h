#ifndef LGPU_CLI_COMMANDS_RM_H_
#define LGPU_CLI_COMMANDS_RM_H_

#include <memory>

#include "cli/commands/command.h"

namespace lgpu::cli {

/// `lgpu rm LEASE`: ends a lease; its sessions are told and lose their rights.
std::unique_ptr<Command> MakeRmCommand();

}  // namespace lgpu::cli

#endif  // LGPU_CLI_COMMANDS_RM_H_
