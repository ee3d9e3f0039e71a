#ifndef LGPU_CLI_COMMANDS_COMMANDS_H_
#define LGPU_CLI_COMMANDS_COMMANDS_H_

#include <memory>

#include "cli/commands/command.h"
#include "cli/verb_pages.h"
#include "cli/verbs.h"

namespace lgpu::cli {

// The verbs of lgpu. Each is in the .cc file of its name: what it does, and its page.
#define LGPU_DECLARE_VERB(name, Word, group)      \
  std::unique_ptr<Command> Make##Word##Command(); \
  VerbPage Word##Page();
LGPU_VERBS(LGPU_DECLARE_VERB)
#undef LGPU_DECLARE_VERB

}  // namespace lgpu::cli

#endif  // LGPU_CLI_COMMANDS_COMMANDS_H_
