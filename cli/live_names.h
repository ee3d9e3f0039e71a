#ifndef LGPU_CLI_LIVE_NAMES_H_
#define LGPU_CLI_LIVE_NAMES_H_

#include "cli/commands/command.h"
#include "cli/completion.h"

namespace lgpu::cli {

/// Asks the daemon of `options`, which outlives the names, in no time: a shell waits for the answer.
LiveNames LiveNamesOfDaemon(const CommonOptions& options);

}  // namespace lgpu::cli

#endif  // LGPU_CLI_LIVE_NAMES_H_
