#ifndef LGPU_CLI_COMMANDS_PLACEMENTS_H_
#define LGPU_CLI_COMMANDS_PLACEMENTS_H_

#include <memory>

#include "cli/commands/command.h"

namespace lgpu::cli {

/// `lgpu placements LEASE`: where every op of a lease ran.
std::unique_ptr<Command> MakePlacementsCommand();

}  // namespace lgpu::cli

#endif  // LGPU_CLI_COMMANDS_PLACEMENTS_H_
