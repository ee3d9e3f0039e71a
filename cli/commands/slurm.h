#ifndef LGPU_CLI_COMMANDS_SLURM_H_
#define LGPU_CLI_COMMANDS_SLURM_H_

#include <memory>

#include "cli/commands/command.h"

namespace lgpu::cli {

std::unique_ptr<Command> MakeSlurmCommand();

}  // namespace lgpu::cli

#endif  // LGPU_CLI_COMMANDS_SLURM_H_
