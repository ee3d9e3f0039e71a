#include "cli/isolation.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
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

// `lgpu __isolated REPORT_FD FOLDER [LIBRARY:FILE ...] -- COMMAND ...`. A failure is written to REPORT_FD: an
// exit code of `lgpu run`, a blank and the text. The descriptor closes when the command begins.
constexpr char kEnd[] = "--";

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

int Fail(int report, int code, const std::string& why) {
  const std::string text = absl::StrCat(code, " ", why);
  std::size_t done = 0;
  while (done < text.size()) {
    const ssize_t wrote = ::write(report, text.data() + done, text.size() - done);
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote <= 0) break;
    done += static_cast<std::size_t>(wrote);
  }
  return code;
}

absl::Status StatusOf(const std::string& report) {
  int code = 0;
  const auto [end, error] = std::from_chars(report.data(), report.data() + report.size(), code);
  if (error != std::errc() || end == report.data() + report.size())
    return absl::InternalError(absl::StrCat("lgpu ", kIsolatedVerb, " said: ", report));
  const std::string why(end + 1, report.data() + report.size());
  if (code == kExitCommandNotFound) return absl::NotFoundError(why);
  if (code == kExitNotExecutable) return absl::InternalError(why);
  return absl::FailedPreconditionError(why);
}

}  // namespace

absl::StatusOr<SpawnedProcess> SpawnIsolated(SpawnOptions options, const Isolation& isolation) {
  LGPU_ASSIGN_OR_RETURN(Pipe report, Pipe::Make());
  std::vector<std::string> words = {"/proc/self/exe", kIsolatedVerb, absl::StrCat(report.write.get()),
                                    isolation.folder};
  for (const Isolation::Covered& covered : isolation.covered)
    words.push_back(absl::StrCat(covered.soname, ":", covered.file));
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
  if (said.empty()) return process;
  (void)process->Wait();
  return StatusOf(said);
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
  Isolation isolation{.folder = words[1], .covered = {}};
  for (auto word = words.begin() + 2; word != end; ++word) {
    const std::size_t colon = word->find(':');
    if (colon == std::string::npos) continue;
    isolation.covered.push_back({.soname = word->substr(0, colon), .file = word->substr(colon + 1)});
  }
  if (const absl::Status entered = EnterDriverNamespace(isolation); !entered.ok())
    return Fail(report, kExitRunFailed,
                absl::StrCat("cannot isolate the command: ", std::string(entered.message())));
  char** const command = argv + 2 + (end - words.begin()) + 1;
  ::execvp(command[0], command);
  const int cause = errno;
  return Fail(report, cause == ENOENT || cause == ENOTDIR ? kExitCommandNotFound : kExitNotExecutable,
              std::strerror(cause));
}

}  // namespace lgpu::cli
