#ifndef LGPU_CLI_COMMANDS_VERIFY_H_
#define LGPU_CLI_COMMANDS_VERIFY_H_

#include <memory>

#include "cli/commands/command.h"

namespace lgpu::cli {

/// `lgpu verify`: does the limit of a lease hold?
std::unique_ptr<Command> MakeVerifyCommand();

}  // namespace lgpu::cli

#endif  // LGPU_CLI_COMMANDS_VERIFY_H_
