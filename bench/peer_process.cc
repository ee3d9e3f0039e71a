#include "bench/peer_process.h"

#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include <array>
#include <cstring>
#include <vector>

namespace lgpu::bench {
namespace {

struct Pair {
  UniqueFd ours, theirs;
};

absl::StatusOr<Pair> MakePair(int type) {
  std::array<int, 2> ends;
  if (::socketpair(AF_UNIX, type | SOCK_CLOEXEC, 0, ends.data()) != 0) {
    return absl::InternalError(std::string("socketpair: ") + std::strerror(errno));
  }
  return Pair{UniqueFd(ends[0]), UniqueFd(ends[1])};
}

void Pin(int cpu) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(static_cast<std::size_t>(cpu), &set);
  (void)::sched_setaffinity(0, sizeof(set), &set);
}

}  // namespace

absl::StatusOr<std::unique_ptr<PeerProcess>> PeerProcess::Start(const std::string& name, Cores cores) {
  absl::StatusOr<Pair> session = MakePair(SOCK_SEQPACKET);
  absl::StatusOr<Pair> control = MakePair(SOCK_STREAM);
  if (!session.ok() || !control.ok()) return session.ok() ? control.status() : session.status();
  std::unique_ptr<PeerProcess> peer(new PeerProcess);
  (void)::sched_getaffinity(0, sizeof(peer->before_), &peer->before_);
  std::vector<int> cpus;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(static_cast<std::size_t>(cpu), &peer->before_)) cpus.push_back(cpu);
  }
  if (cores == Cores::kTwo && cpus.size() < 2) {
    return absl::FailedPreconditionError("this needs two CPUs");
  }
  // The peer inherits where this thread runs.
  if (cores != Cores::kAny) Pin(cpus[cores == Cores::kTwo ? 1 : 0]);

  std::string program = "/proc/self/exe";
  std::string flag = "--peer=" + name;
  char* arguments[] = {program.data(), flag.data(), nullptr};
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_adddup2(&actions, session->theirs.get(), kSessionFd);
  ::posix_spawn_file_actions_adddup2(&actions, control->theirs.get(), kControlFd);
  const int error = ::posix_spawn(&peer->pid_, program.c_str(), &actions, nullptr, arguments, environ);
  ::posix_spawn_file_actions_destroy(&actions);
  if (cores != Cores::kAny) Pin(cpus[0]);
  if (error != 0) {
    peer->pid_ = -1;
    return absl::InternalError(std::string("posix_spawn: ") + std::strerror(error));
  }
  peer->session_ = std::move(session->ours);
  peer->control_ = std::move(control->ours);
  return peer;
}

PeerProcess::~PeerProcess() {
  session_.Reset();
  control_.Reset();
  if (pid_ > 0) ::waitpid(pid_, nullptr, 0);
  (void)::sched_setaffinity(0, sizeof(before_), &before_);
}

}  // namespace lgpu::bench
