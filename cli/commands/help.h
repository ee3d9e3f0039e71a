#ifndef LGPU_CLI_COMMANDS_HELP_H_
#define LGPU_CLI_COMMANDS_HELP_H_

#include <memory>

#include "cli/commands/command.h"

namespace lgpu::cli {

/// `lgpu help [VERB]`: what --help prints; with --json the table of all flags.
std::unique_ptr<Command> MakeHelpCommand();

}  // namespace lgpu::cli

#endif  // LGPU_CLI_COMMANDS_HELP_H_
