#ifndef LGPU_CLI_COMMANDS_EXPLAIN_H_
#define LGPU_CLI_COMMANDS_EXPLAIN_H_

#include <memory>

#include "cli/commands/command.h"

namespace lgpu::cli {

/// `lgpu explain OP`: where an op would run, and why.
std::unique_ptr<Command> MakeExplainCommand();

}  // namespace lgpu::cli

#endif  // LGPU_CLI_COMMANDS_EXPLAIN_H_
