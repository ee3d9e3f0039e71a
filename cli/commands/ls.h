#ifndef LGPU_CLI_COMMANDS_LS_H_
#define LGPU_CLI_COMMANDS_LS_H_

#include <memory>

#include "cli/commands/command.h"

namespace lgpu::cli {

/// `lgpu ls`: the cards and the leases with their logical devices, as the daemon knows them now.
std::unique_ptr<Command> MakeLsCommand();

}  // namespace lgpu::cli

#endif  // LGPU_CLI_COMMANDS_LS_H_
