#ifndef LGPU_CLI_COMMANDS_EVENTS_H_
#define LGPU_CLI_COMMANDS_EVENTS_H_

#include <memory>

#include "cli/commands/command.h"

namespace lgpu::cli {

/// `lgpu events`: what happened in the daemon.
std::unique_ptr<Command> MakeEventsCommand();

}  // namespace lgpu::cli

#endif  // LGPU_CLI_COMMANDS_EVENTS_H_
