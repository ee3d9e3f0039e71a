#include "base/spawn.h"

#include <fcntl.h>
#include <spawn.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"

namespace lgpu {
namespace {

std::vector<std::string> Merge(const SpawnOptions::Environment& changes) {
  std::vector<std::string> entries;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string text = *entry;
    if (changes.count(text.substr(0, text.find('='))) == 0) entries.push_back(text);
  }
  for (const auto& [name, value] : changes) {
    if (value) entries.push_back(absl::StrCat(name, "=", *value));
  }
  return entries;
}

std::vector<char*> Pointers(std::vector<std::string>& strings) {
  std::vector<char*> pointers;
  for (std::string& string : strings) pointers.push_back(string.data());
  pointers.push_back(nullptr);
  return pointers;
}

}  // namespace

absl::StatusOr<SpawnedProcess> SpawnedProcess::Start(const SpawnOptions& options) {
  std::vector<std::string> arguments = options.argv;
  std::vector<std::string> environment = Merge(options.environment);
  const std::vector<char*> argv = Pointers(arguments);
  const std::vector<char*> envp = Pointers(environment);
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  // Where both numbers are the same, posix_spawn clears the close-on-exec flag.
  for (const auto& [here, there] : options.descriptors) {
    ::posix_spawn_file_actions_adddup2(&actions, here, there);
  }
  posix_spawnattr_t attributes;
  ::posix_spawnattr_init(&attributes);
  short flags = 0;
  if (options.signal_mask != nullptr) {
    ::posix_spawnattr_setsigmask(&attributes, options.signal_mask);
    flags |= POSIX_SPAWN_SETSIGMASK;
  }
  if (options.default_signals != nullptr) {
    ::posix_spawnattr_setsigdefault(&attributes, options.default_signals);
    flags |= POSIX_SPAWN_SETSIGDEF;
  }
  ::posix_spawnattr_setflags(&attributes, flags);
  SpawnedProcess process;
  const int error = ::posix_spawnp(&process.pid_, argv[0], &actions, &attributes, argv.data(), envp.data());
  ::posix_spawnattr_destroy(&attributes);
  ::posix_spawn_file_actions_destroy(&actions);
  if (error == 0) return process;
  process.pid_ = -1;
  const bool is_absent = error == ENOENT || error == ENOTDIR;
  return absl::Status(is_absent ? absl::StatusCode::kNotFound : absl::StatusCode::kInternal,
                      std::strerror(error));
}

SpawnedProcess& SpawnedProcess::operator=(SpawnedProcess&& other) noexcept {
  if (this != &other) {
    Kill();
    pid_ = other.Release();
  }
  return *this;
}

void SpawnedProcess::Kill() {
  if (pid_ < 0) return;
  ::kill(pid_, SIGKILL);
  Wait();
}

std::optional<int> SpawnedProcess::Reap(int options) {
  if (pid_ < 0) return std::nullopt;
  int status = 0;
  pid_t ended = 0;
  do {
    ended = ::waitpid(pid_, &status, options);
  } while (ended < 0 && errno == EINTR);
  if (ended == 0) return std::nullopt;
  pid_ = -1;
  return ended < 0 ? -1 : ExitCodeOf(status);
}

absl::StatusOr<Pipe> Pipe::Make() {
  int fds[2];
  if (::pipe2(fds, O_CLOEXEC) != 0) return absl::InternalError(absl::StrCat("pipe: ", std::strerror(errno)));
  return Pipe{.read = UniqueFd(fds[0]), .write = UniqueFd(fds[1])};
}

int ExitCodeOf(int wait_status) {
  return WIFSIGNALED(wait_status) ? 128 + WTERMSIG(wait_status) : WEXITSTATUS(wait_status);
}

}  // namespace lgpu
