#include "cli/isolation.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/exit_codes.h"
#include "cli/driver_namespace.h"
#include "lgpu/status.h"

namespace lgpu::cli {
namespace {

// `lgpu __isolated REPORT_FD FOLDER [cover=LIBRARY:FILE | set=NAME=VALUE | unset=NAME ...] -- COMMAND ...`.
// The helper writes kStarted to REPORT_FD when its own code runs. A failure follows: an exit code of `lgpu
// run`, a blank and the text. The descriptor closes when the command begins.
constexpr char kEnd[] = "--";
constexpr char kStarted = '+';
constexpr char kCover[] = "cover=";
constexpr char kSet[] = "set=";
constexpr char kUnset[] = "unset=";

/// Whether the loader reads the variable. The helper is lgpu itself: the libraries that the command's
/// variables name are for the command.
bool IsOfLoader(std::string_view name) { return name.starts_with("LD_") || name == "GLIBC_TUNABLES"; }

bool TakePrefix(std::string_view& text, std::string_view prefix) {
  if (!text.starts_with(prefix)) return false;
  text.remove_prefix(prefix.size());
  return true;
}

std::string ReadToEnd(int fd) {
  std::string text;
  char piece[4096];
  while (true) {
    const ssize_t got = ::read(fd, piece, sizeof(piece));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return text;
    text.append(piece, static_cast<std::size_t>(got));
  }
}

void Write(int fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t wrote = ::write(fd, text.data(), text.size());
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote <= 0) return;
    text.remove_prefix(static_cast<std::size_t>(wrote));
  }
}

int Fail(int report, int code, const std::string& why) {
  Write(report, absl::StrCat(code, " ", why));
  return code;
}

absl::Status StatusOf(const std::string& report) {
  int code = 0;
  const auto [end, error] = std::from_chars(report.data(), report.data() + report.size(), code);
  if (error != std::errc() || end == report.data() + report.size()) {
    return absl::InternalError(absl::StrCat("lgpu ", kIsolatedVerb, " said: ", report));
  }
  const std::string why(end + 1, report.data() + report.size());
  if (code == kExitCommandNotFound) return absl::NotFoundError(why);
  if (code == kExitNotExecutable) return absl::InternalError(why);
  return absl::FailedPreconditionError(why);
}

/// "NAME=VALUE" sets a variable of this process, "NAME" takes it away.
absl::Status SetVariable(std::string_view word) {
  const std::string text(word);
  const std::size_t equals = text.find('=');
  const int failed = equals == std::string::npos ? ::unsetenv(text.c_str())
                                                 : ::setenv(text.substr(0, equals).c_str(),
                                                            text.c_str() + equals + 1, /*overwrite=*/1);
  if (failed == 0) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat("variable ", text, ": ", std::strerror(errno)));
}

}  // namespace

absl::StatusOr<SpawnedProcess> SpawnIsolated(SpawnOptions options, const Isolation& isolation) {
  LGPU_ASSIGN_OR_RETURN(Pipe report, Pipe::Make());
  std::vector<std::string> words = {"/proc/self/exe", kIsolatedVerb, absl::StrCat(report.write.get()),
                                    isolation.folder};
  for (const Isolation::Covered& covered : isolation.covered) {
    words.push_back(absl::StrCat(kCover, covered.soname, ":", covered.file));
  }
  for (const auto& [name, value] : options.environment) {
    if (IsOfLoader(name)) {
      words.push_back(value ? absl::StrCat(kSet, name, "=", *value) : absl::StrCat(kUnset, name));
    }
  }
  std::erase_if(options.environment, [](const auto& variable) { return IsOfLoader(variable.first); });
  words.emplace_back(kEnd);
  words.insert(words.end(), options.argv.begin(), options.argv.end());
  options.argv = std::move(words);
  options.descriptors.emplace_back(report.write.get(), report.write.get());
  absl::StatusOr<SpawnedProcess> process = SpawnedProcess::Start(options);
  if (!process.ok()) {
    return absl::FailedPreconditionError(
        absl::StrCat("cannot isolate the command: lgpu cannot start itself: ", process.status().message()));
  }
  report.write.Reset();
  const std::string said = ReadToEnd(report.read.get());
  if (said == std::string_view(&kStarted, 1)) return process;
  const int code = process->Wait();
  if (said.empty()) {
    return absl::FailedPreconditionError(
        absl::StrCat("cannot isolate the command: lgpu was started again for it and ended with ", code,
                     " before it began\ntry: the line above, which is the loader's or the system's; or `lgpu "
                     "run` without --isolate"));
  }
  return StatusOf(said.substr(1));
}

int BecomeIsolated(int argc, char** argv) {
  const std::vector<std::string> words(argv + 2, argv + argc);
  const auto end = std::find(words.begin(), words.end(), kEnd);
  int report = -1;
  if (end == words.end() || end + 1 == words.end() || end - words.begin() < 2 ||
      std::from_chars(words[0].data(), words[0].data() + words[0].size(), report).ec != std::errc() ||
      ::fcntl(report, F_SETFD, FD_CLOEXEC) != 0) {
    return Fail(STDERR_FILENO, kExitUsage, "lgpu __isolated is a part of `lgpu run --isolate`\n");
  }
  Write(report, std::string_view(&kStarted, 1));
  Isolation isolation{.folder = words[1], .covered = {}};
  absl::Status ready;
  for (auto word = words.begin() + 2; word != end; ++word) {
    std::string_view rest = *word;
    if (TakePrefix(rest, kCover)) {
      const std::size_t colon = rest.find(':');
      isolation.covered.push_back(
          {.soname = std::string(rest.substr(0, colon)), .file = std::string(rest.substr(colon + 1))});
    } else if (TakePrefix(rest, kSet) || TakePrefix(rest, kUnset)) {
      ready.Update(SetVariable(rest));
    }
  }
  if (ready.ok()) ready = EnterDriverNamespace(isolation);
  if (!ready.ok()) {
    return Fail(report, kExitRunFailed,
                absl::StrCat("cannot isolate the command: ", std::string(ready.message())));
  }
  char** const command = argv + 2 + (end - words.begin()) + 1;
  ::execvp(command[0], command);
  const int cause = errno;
  return Fail(report, cause == ENOENT || cause == ENOTDIR ? kExitCommandNotFound : kExitNotExecutable,
              std::strerror(cause));
}

}  // namespace lgpu::cli
