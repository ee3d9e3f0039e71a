#ifndef LGPU_CLI_COMMANDS_TOP_H_
#define LGPU_CLI_COMMANDS_TOP_H_

#include <memory>

#include "cli/commands/command.h"

namespace lgpu::cli {

/// `lgpu top`: what `ls` shows, live on the whole terminal.
std::unique_ptr<Command> MakeTopCommand();

}  // namespace lgpu::cli

#endif  // LGPU_CLI_COMMANDS_TOP_H_
