#ifndef LGPU_CLI_COMMANDS_INSPECT_H_
#define LGPU_CLI_COMMANDS_INSPECT_H_

#include <memory>

#include "cli/commands/command.h"

namespace lgpu::cli {

/// `lgpu inspect LEASE|GPU`: everything about one of them.
std::unique_ptr<Command> MakeInspectCommand();

}  // namespace lgpu::cli

#endif  // LGPU_CLI_COMMANDS_INSPECT_H_
