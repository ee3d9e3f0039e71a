#ifndef LGPU_CLI_COMMANDS_DOCTOR_H_
#define LGPU_CLI_COMMANDS_DOCTOR_H_

#include <memory>

#include "cli/commands/command.h"

namespace lgpu::cli {

/// `lgpu doctor`: is everything as it should be?
std::unique_ptr<Command> MakeDoctorCommand();

}  // namespace lgpu::cli

#endif  // LGPU_CLI_COMMANDS_DOCTOR_H_
