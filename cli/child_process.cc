#include "cli/child_process.h"

#include <poll.h>
#include <signal.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "base/unique_fd.h"
#include "lgpu/status.h"

namespace lgpu::cli {
namespace {

constexpr int kForwarded[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGALRM, SIGCONT, SIGWINCH};

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

absl::StatusOr<ChildProcess> ChildProcess::Spawn(const ForwardedSignals& signals,
                                                 const std::vector<std::string>& command,
                                                 const SpawnOptions::Environment& variables,
                                                 const std::optional<Isolation>& isolation) {
  sigset_t defaults;
  sigemptyset(&defaults);
  if (signals.pipe_before_ == SIG_DFL) sigaddset(&defaults, SIGPIPE);
  const SpawnOptions options{.argv = command,
                             .environment = variables,
                             .signal_mask = &signals.before_,
                             .default_signals = &defaults};
  LGPU_ASSIGN_OR_RETURN(SpawnedProcess process,
                        isolation ? SpawnIsolated(options, *isolation) : SpawnedProcess::Start(options));
  return ChildProcess(process.Release());
}

absl::StatusOr<int> ChildProcess::Wait(const ForwardedSignals& signals, int watched,
                                       const std::function<bool()>& on_readable) {
  const UniqueFd signal_fd(::signalfd(-1, &signals.held_, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!signal_fd) return absl::InternalError(absl::StrCat("signalfd: ", std::strerror(errno)));
  while (true) {
    int status = 0;
    const pid_t ended = ::waitpid(pid_, &status, WNOHANG);
    if (ended < 0 && errno != EINTR) {
      return absl::InternalError(absl::StrCat("waitpid: ", std::strerror(errno)));
    }
    if (ended == pid_) return ExitCodeOf(status);

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
