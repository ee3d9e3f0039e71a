#ifndef LGPU_CLI_COMMANDS_SNAPSHOT_H_
#define LGPU_CLI_COMMANDS_SNAPSHOT_H_

#include <memory>

#include "cli/commands/command.h"

namespace lgpu::cli {

/// `lgpu snapshot LEASE`: every block of a lease's programs, for other tools.
std::unique_ptr<Command> MakeSnapshotCommand();

}  // namespace lgpu::cli

#endif  // LGPU_CLI_COMMANDS_SNAPSHOT_H_
