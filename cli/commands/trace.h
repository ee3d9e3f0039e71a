#ifndef LGPU_CLI_COMMANDS_TRACE_H_
#define LGPU_CLI_COMMANDS_TRACE_H_

#include <memory>

#include "cli/commands/command.h"

namespace lgpu::cli {

/// `lgpu trace LEASE`: the ops of a lease, its memory and its events, as a trace for Perfetto.
std::unique_ptr<Command> MakeTraceCommand();

}  // namespace lgpu::cli

#endif  // LGPU_CLI_COMMANDS_TRACE_H_
