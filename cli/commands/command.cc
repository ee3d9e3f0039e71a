#include "cli/commands/command.h"

#include <cstdio>

#include "proto/exit_codes.h"

namespace lgpu::cli {

void CommonOptions::Note(std::string_view line) const {
  if (!quiet) Error(line);
}

void CommonOptions::Error(std::string_view line) const {
  // One write a line: the command that `run` started writes to the same stderr.
  const std::string text = std::string(line) + "\n";
  std::fputs(text.c_str(), stderr);
}

int Command::ExitCode(const absl::Status& status) const { return ExitCodeOf(status.code()); }

}  // namespace lgpu::cli
