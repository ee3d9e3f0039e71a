#include "cli/child_process.h"

#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <map>

#include "absl/strings/str_cat.h"

namespace lgpu::cli {
namespace {

constexpr int kForwarded[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGALRM, SIGCONT, SIGWINCH};

std::vector<std::string> Environment(const std::vector<std::pair<std::string, std::string>>& variables) {
  std::map<std::string, std::string> merged;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string text = *entry;
    const std::size_t equals = text.find('=');
    if (equals != std::string::npos) merged[text.substr(0, equals)] = text.substr(equals + 1);
  }
  for (const auto& [name, value] : variables) merged[name] = value;
  std::vector<std::string> entries;
  for (const auto& [name, value] : merged) entries.push_back(name + "=" + value);
  return entries;
}

std::vector<char*> Pointers(std::vector<std::string>& strings) {
  std::vector<char*> pointers;
  for (std::string& string : strings) pointers.push_back(string.data());
  pointers.push_back(nullptr);
  return pointers;
}

bool CameFromTerminal(const signalfd_siginfo& info) {
  // Ctrl-C goes to the whole foreground group: the command has it already.
  return info.ssi_code == SI_KERNEL;
}

}  // namespace

ForwardedSignals::ForwardedSignals() {
  sigemptyset(&held_);
  for (const int number : kForwarded) sigaddset(&held_, number);
  sigaddset(&held_, SIGCHLD);
  pthread_sigmask(SIG_BLOCK, &held_, &before_);
  pipe_before_ = ::signal(SIGPIPE, SIG_IGN);
}

ForwardedSignals::~ForwardedSignals() {
  ::signal(SIGPIPE, pipe_before_);
  pthread_sigmask(SIG_SETMASK, &before_, nullptr);
}

std::pair<std::optional<ChildProcess>, SpawnFailure> ChildProcess::Spawn(
    const ForwardedSignals& signals, const std::vector<std::string>& command,
    const std::vector<std::pair<std::string, std::string>>& variables) {
  std::vector<std::string> arguments = command;
  std::vector<std::string> environment = Environment(variables);
  const std::vector<char*> argv = Pointers(arguments);
  const std::vector<char*> envp = Pointers(environment);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  posix_spawnattr_setsigmask(&attributes, &signals.before_);
  sigset_t defaults;
  sigemptyset(&defaults);
  if (signals.pipe_before_ == SIG_DFL) sigaddset(&defaults, SIGPIPE);
  posix_spawnattr_setsigdefault(&attributes, &defaults);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
  pid_t pid = -1;
  const int error = posix_spawnp(&pid, argv[0], nullptr, &attributes, argv.data(), envp.data());
  posix_spawnattr_destroy(&attributes);
  if (error != 0) {
    return {std::nullopt, {.error_number = error, .not_found = error == ENOENT || error == ENOTDIR}};
  }
  return {ChildProcess(pid), {}};
}

absl::StatusOr<int> ChildProcess::Wait(const ForwardedSignals& signals, int watched,
                                       const std::function<bool()>& on_readable) {
  const UniqueFd signal_fd(::signalfd(-1, &signals.held_, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!signal_fd) return absl::InternalError(absl::StrCat("signalfd: ", std::strerror(errno)));
  while (true) {
    int status = 0;
    const pid_t ended = ::waitpid(pid_, &status, WNOHANG);
    if (ended < 0 && errno != EINTR)
      return absl::InternalError(absl::StrCat("waitpid: ", std::strerror(errno)));
    if (ended == pid_) return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);

    pollfd polled[2] = {{signal_fd.get(), POLLIN, 0}, {watched, POLLIN, 0}};
    if (::poll(polled, 2, -1) < 0 && errno != EINTR) {
      return absl::InternalError(absl::StrCat("poll: ", std::strerror(errno)));
    }
    signalfd_siginfo info;
    while (::read(signal_fd.get(), &info, sizeof(info)) == static_cast<ssize_t>(sizeof(info))) {
      const int number = static_cast<int>(info.ssi_signo);
      if (number != SIGCHLD && !CameFromTerminal(info)) ::kill(pid_, number);
    }
    if (watched >= 0 && polled[1].revents != 0 && !on_readable()) watched = -1;
  }
}

}  // namespace lgpu::cli
