#include "bench/peer_process.h"

#include <sys/socket.h>

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
  if (cores == Cores::kTwo && cpus.size() < 2) return absl::FailedPreconditionError("this needs two CPUs");
  // The peer inherits this thread's cores.
  if (cores != Cores::kAny) Pin(cpus[cores == Cores::kTwo ? 1 : 0]);

  absl::StatusOr<SpawnedProcess> process = SpawnedProcess::Start(
      {.argv = {"/proc/self/exe", "--peer=" + name},
       .descriptors = {{session->theirs.get(), kSessionFd}, {control->theirs.get(), kControlFd}}});
  if (cores != Cores::kAny) Pin(cpus[0]);
  if (!process.ok()) return absl::InternalError("posix_spawn: " + std::string(process.status().message()));
  peer->process_ = *std::move(process);
  peer->session_ = std::move(session->ours);
  peer->control_ = std::move(control->ours);
  return peer;
}

PeerProcess::~PeerProcess() {
  session_.Reset();
  control_.Reset();
  process_.Wait();
  (void)::sched_setaffinity(0, sizeof(before_), &before_);
}

}  // namespace lgpu::bench
