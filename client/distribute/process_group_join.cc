// How the processes of a strategy find each other: process 0 listens, the others connect, and each process
// checks the user of its peer.

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/interrupt.h"
#include "client/distribute/process_group.h"
#include "kernels/text.h"
#include "lgpu/status.h"

namespace lgpu::internal {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::chrono::milliseconds kRetry{10};
// For the first message of a process that has connected.
constexpr std::chrono::seconds kHelloPatience{5};

absl::StatusOr<sockaddr_un> AddressOf(const std::string& path) {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  if (path.empty() || path.size() >= sizeof(address.sun_path)) {
    return absl::InvalidArgumentError(Cat("MirroredProcesses::meeting is a path of 1 to ",
                                          sizeof(address.sun_path) - 1, " bytes, and not \"", path, "\""));
  }
  std::memcpy(address.sun_path, path.data(), path.size());
  return address;
}

/// 0, or errno.
int TryConnect(int socket, const sockaddr_un& address) {
  const auto* const to = reinterpret_cast<const sockaddr*>(&address);
  return ::connect(socket, to, sizeof(address)) == 0 ? 0 : errno;
}

absl::StatusOr<UniqueFd> NewSocket() {
  UniqueFd socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  if (!socket) return absl::ResourceExhaustedError(Cat("socket: ", std::strerror(errno)));
  return socket;
}

/// The path of a listening socket; it is removed with its owner.
class Listener {
 public:
  static absl::StatusOr<std::unique_ptr<Listener>> Open(const std::string& path, int backlog) {
    LGPU_ASSIGN_OR_RETURN(const sockaddr_un address, AddressOf(path));
    LGPU_ASSIGN_OR_RETURN(UniqueFd socket, NewSocket());
    const auto bind = [&] {
      return ::bind(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0 ? 0
                                                                                                     : errno;
    };
    int error = bind();
    if (error == EADDRINUSE) {
      LGPU_ASSIGN_OR_RETURN(const UniqueFd probe, NewSocket());
      if (TryConnect(probe.get(), address) != ECONNREFUSED) {
        return absl::AlreadyExistsError(Cat("rank 0 is taken: another process listens at ", path,
                                            "; each process has a rank of its own"));
      }
      struct stat there = {};
      if (::lstat(path.c_str(), &there) == 0 && !S_ISSOCK(there.st_mode)) {
        return absl::FailedPreconditionError(
            Cat("process 0 cannot listen at ", path,
                ": it is no socket; MirroredProcesses::meeting is the path of "
                "a socket, which is made there"));
      }
      ::unlink(path.c_str());  // of a process that died
      error = bind();
    }
    if (error != 0 || ::chmod(path.c_str(), 0600) != 0 || ::listen(socket.get(), backlog) != 0) {
      const std::string why = std::strerror(error != 0 ? error : errno);
      return absl::FailedPreconditionError(
          Cat("process 0 cannot listen at ", path, ": ", why,
              "; MirroredProcesses::meeting is a path in a folder that you may write"));
    }
    return std::make_unique<Listener>(std::move(socket), path);
  }
  Listener(UniqueFd socket, std::string path) : socket_(std::move(socket)), path_(std::move(path)) {}
  ~Listener() { ::unlink(path_.c_str()); }
  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;

  /// The next process; none: no process connected by the deadline.
  UniqueFd Accept(Clock::time_point deadline) const {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now());
    pollfd polled = {.fd = socket_.get(), .events = POLLIN, .revents = 0};
    if (left.count() <= 0 || ::poll(&polled, 1, static_cast<int>(left.count()) + 1) <= 0) return UniqueFd();
    return UniqueFd(::accept4(socket_.get(), nullptr, nullptr, SOCK_CLOEXEC));
  }

 private:
  const UniqueFd socket_;
  const std::string path_;
};

/// Who is at the other end. PERMISSION_DENIED: another user.
absl::StatusOr<std::int64_t> PidOfPeer(int socket) {
  LGPU_ASSIGN_OR_RETURN(const PeerCredentials peer,
                        static_cast<absl::StatusOr<PeerCredentials>>(GetPeerCredentials(socket)));
  if (peer.uid == ::geteuid()) return peer.pid;
  return absl::PermissionDeniedError(Cat("the process at the meeting (pid ", peer.pid, ") is of user ",
                                         peer.uid, "; the processes of a strategy are of one user"));
}

}  // namespace

absl::StatusOr<std::unique_ptr<ProcessGroup>> ProcessGroup::Join(const MirroredProcesses& options,
                                                                 const Member& member) {
  constexpr int kMost = 1024;
  if (options.count < 1 || options.count > kMost || options.rank < 0 || options.rank >= options.count ||
      options.timeout.count() <= 0) {
    return absl::InvalidArgumentError(Cat("MirroredProcesses has rank ", options.rank, " of ", options.count,
                                          " processes and a timeout of ", options.timeout.count(),
                                          " ms; ranks are 0 to count - 1, there are at most ", kMost,
                                          " processes, and the timeout is above 0"));
  }
  std::unique_ptr<ProcessGroup> group(new ProcessGroup(options));
  LGPU_RETURN_IF_ERROR(options.rank == 0 ? group->Gather(member) : group->Connect(member));
  return group;
}

absl::Status ProcessGroup::Gather(const Member& member) {
  if (options_.count == 1) return absl::OkStatus();
  LGPU_ASSIGN_OR_RETURN(const std::unique_ptr<Listener> listener,
                        Listener::Open(options_.meeting, options_.count));
  const Clock::time_point deadline = Clock::now() + options_.timeout;
  while (static_cast<int>(peers_.size()) + 1 < options_.count) {
    UniqueFd socket = listener->Accept(Interrupt::NextQuestion(deadline));
    if (socket) {
      Admit(std::move(socket), member).IgnoreError();  // which the other one is told
      continue;
    }
    if (Interrupt::Happened()) return BreakInterrupted();
    if (Clock::now() < deadline) continue;
    std::string missing;
    for (int rank = 1; rank < options_.count; ++rank) {
      const bool is_here =
          std::any_of(peers_.begin(), peers_.end(), [&](const Peer& p) { return p.rank == rank; });
      if (!is_here) missing += Cat(missing.empty() ? "" : ", ", rank);
    }
    return Break(absl::DeadlineExceededError(
        Cat("of ", options_.count, " processes rank ", missing, " did not come to ", options_.meeting,
            " within ", options_.timeout.count(), " ms (MirroredProcesses::timeout)")));
  }
  std::sort(peers_.begin(), peers_.end(), [](const Peer& a, const Peer& b) { return a.rank < b.rank; });
  for (Peer& peer : peers_) {
    if (!Send(peer, {.kind = Kind::kProceed}).ok()) {
      return Break(absl::UnavailableError(Cat(Name(peer), " ended at the meeting")));
    }
  }
  return absl::OkStatus();
}

absl::Status ProcessGroup::Admit(UniqueFd socket, const Member& member) {
  LGPU_ASSIGN_OR_RETURN(const std::int64_t pid, PidOfPeer(socket.get()));
  Peer peer{.pid = pid, .channel = wire::Channel(std::move(socket))};
  LGPU_ASSIGN_OR_RETURN(const Message hello, Receive(peer, Clock::now() + kHelloPatience));
  peer.rank = static_cast<int>(hello.value & 0xffff);
  const int count = static_cast<int>((hello.value >> 16) & 0xffff);
  const int replicas = static_cast<int>(hello.value >> 32);
  absl::Status refused;
  const auto same =
      std::find_if(peers_.begin(), peers_.end(), [&](const Peer& p) { return p.rank == peer.rank; });
  if (hello.kind != Kind::kHello || count != options_.count || peer.rank < 1 || peer.rank >= count) {
    refused = absl::InvalidArgumentError(Cat("this is rank ", peer.rank, " of ", count,
                                             " processes, and process 0 is one of ", options_.count));
  } else if (same != peers_.end()) {
    refused = absl::AlreadyExistsError(
        Cat("rank ", peer.rank, " is taken by pid ", same->pid, "; each process has a rank of its own"));
  } else if (replicas != member.replicas) {
    refused = absl::InvalidArgumentError(Cat("this process has ", replicas, " replicas, and process 0 has ",
                                             member.replicas, "; all processes have equally many"));
  } else if (hello.text != member.lease) {
    refused =
        absl::InvalidArgumentError(Cat("this process is in lease \"", hello.text, "\", and process 0 in \"",
                                       member.lease, "\"; start all with one LGPU_LEASE"));
  }
  if (!refused.ok()) {
    Message answer = Failure(refused);
    answer.kind = Kind::kBroken;
    static_cast<void>(peer.channel.SendLast(Encode(answer), Clock::now() + kHelloPatience));
    return refused;
  }
  peers_.push_back(std::move(peer));
  return absl::OkStatus();
}

absl::Status ProcessGroup::Connect(const Member& member) {
  LGPU_ASSIGN_OR_RETURN(const sockaddr_un address, AddressOf(options_.meeting));
  const Clock::time_point deadline = Clock::now() + options_.timeout;
  UniqueFd socket;
  for (;;) {
    LGPU_ASSIGN_OR_RETURN(socket, NewSocket());
    const int error = TryConnect(socket.get(), address);
    if (error == 0) break;
    // Process 0 may not have started yet, or its path may be of one that died.
    if (error != ENOENT && error != ECONNREFUSED && error != EAGAIN && error != EINTR) {
      return absl::FailedPreconditionError(
          Cat("the meeting ", options_.meeting, " cannot be reached: ", std::strerror(error)));
    }
    if (Clock::now() >= deadline) {
      return absl::DeadlineExceededError(Cat("process 0 did not come to ", options_.meeting, " within ",
                                             options_.timeout.count(), " ms (MirroredProcesses::timeout)"));
    }
    if (!Interrupt::SleepUntil(Clock::now() + kRetry)) return Interrupt::Error();
  }
  LGPU_ASSIGN_OR_RETURN(const std::int64_t pid, PidOfPeer(socket.get()));
  peers_.push_back({.pid = pid, .channel = wire::Channel(std::move(socket))});
  const std::uint64_t numbers = static_cast<std::uint64_t>(options_.rank) |
                                static_cast<std::uint64_t>(options_.count) << 16 |
                                static_cast<std::uint64_t>(member.replicas) << 32;
  return FollowRound({.kind = Kind::kHello, .value = numbers, .text = member.lease});
}

}  // namespace lgpu::internal
