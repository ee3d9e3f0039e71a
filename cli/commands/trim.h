#ifndef LGPU_CLI_COMMANDS_TRIM_H_
#define LGPU_CLI_COMMANDS_TRIM_H_

#include <memory>

#include "cli/commands/command.h"

namespace lgpu::cli {

/// `lgpu trim [LEASE...]`: programs give back what lies idle in them.
std::unique_ptr<Command> MakeTrimCommand();

}  // namespace lgpu::cli

#endif  // LGPU_CLI_COMMANDS_TRIM_H_
