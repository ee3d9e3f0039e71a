#include "cli/commands/command.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "base/exit_codes.h"
#include "base/unique_fd.h"
#include "cli/errors.h"
#include "proto/messages_json.h"

namespace lgpu::cli {

void CommonOptions::Note(std::string_view line) const {
  if (!quiet) Error(line);
}

void CommonOptions::Error(std::string_view line) const {
  // One write a line: the command that `run` started writes to the same stderr.
  const std::string text = std::string(line) + "\n";
  std::fputs(text.c_str(), stderr);
}

void CommonOptions::Report(const absl::Status& status, int exit_code) const {
  const std::string line = JsonLine(ErrorToJson(status, exit_code));
  const std::string text = json || json_errors ? line : FormatError(status, err);
  std::fputs(text.c_str(), stderr);
  if (error_file.empty()) return;
  // O_NONBLOCK: a pipe without a reader must not keep the command from ending.
  const UniqueFd file(
      ::open(error_file.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NONBLOCK, 0666));
  if (!file || ::write(file.get(), line.data(), line.size()) != static_cast<ssize_t>(line.size())) {
    Note(absl::StrCat("lgpu: note: cannot write LGPU_ERROR_FILE ", Printable(error_file), ": ",
                      std::strerror(errno)));
  }
}

int Command::ExitCode(const absl::Status& status) const { return ExitCodeOf(status.code()); }

}  // namespace lgpu::cli
