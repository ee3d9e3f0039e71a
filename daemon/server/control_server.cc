#include "daemon/server/control_server.h"

#include <fcntl.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/health_check_service_interface.h>
#include <grpcpp/resource_quota.h>
#include <grpcpp/server_posix.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <deque>
#include <iterator>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "base/mutex.h"
#include "base/thread.h"
#include "base/thread_room.h"
#include "lgpu/status.h"

namespace lgpu::daemon {
namespace {

constexpr std::chrono::milliseconds kShutdown{300};
// Threads for calls that may wait for memory, and for all other calls.
constexpr std::size_t kMaxWaitingCalls = 64;
constexpr std::size_t kMaxShortCalls = 8;
// gRPC gathers a request before lgpud sees it. A user's connections times the streams of each times this is
// the most memory of that. The largest request, a lease of 64 named devices, has less than 9 KiB.
constexpr int kMaxRequestBytes = 16 * 1024;
constexpr int kStreamsOfAConnection = 4;

// The memory that gRPC may use for the connections of one user; where it needs more, it ends calls and
// connections of that user.
constexpr std::size_t kMemoryOfAUser = std::size_t{64} << 20;
// How often at most the connections of all users are looked at one by one.
constexpr std::chrono::milliseconds kLookInterval{50};

std::size_t DescriptorLimit() {
  rlimit limit{};
  return ::getrlimit(RLIMIT_NOFILE, &limit) == 0 ? static_cast<std::size_t>(limit.rlim_cur) : 1024;
}

// Control connections of all users.
std::size_t MaxConnections() { return std::clamp<std::size_t>(DescriptorLimit() / 4, 16, 4096); }

// gRPC closes descriptors unseen, so those of control connections have numbers that nothing else in lgpud
// gets.
absl::StatusOr<UniqueFd> MoveUp(UniqueFd socket) {
  const auto least = static_cast<int>(std::min<std::size_t>(DescriptorLimit() / 2, 16'384));
  UniqueFd moved(::fcntl(socket.get(), F_DUPFD_CLOEXEC, least));
  if (moved) return moved;
  return absl::ResourceExhaustedError(
      absl::StrCat("lgpud has no file descriptor left for another control connection: ", std::strerror(errno),
                   "; raise the limit of open files"));
}

// gRPC's health service is switched on for the whole process, once.
void EnableHealthService() {
  static std::once_flag once;
  std::call_once(once, [] { grpc::EnableDefaultHealthCheckService(true); });
}

/// The gRPC server of one user, or of the directory of one lease, with memory of its own: a user's calls do
/// not affect other users' servers.
class UserServer {
 public:
  UserServer(const ControlService::Parts& parts, CallRoom& room, std::uint32_t uid,
             std::optional<LeaseKey> only)
      : service_(parts, room, uid, only) {}

  absl::Status Start() {
    grpc::ServerBuilder builder;
    builder.RegisterService(&service_);
    builder.SetMaxReceiveMessageSize(kMaxRequestBytes);
    grpc::ResourceQuota quota;
    builder.SetResourceQuota(quota.Resize(kMemoryOfAUser));
    // A client that does not acknowledge this is held by the memory alone.
    builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, kStreamsOfAConnection);
    // The buffers of a connection do not grow with the speed of its client.
    builder.AddChannelArgument(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, kMaxRequestBytes);
    builder.AddChannelArgument(GRPC_ARG_HTTP2_BDP_PROBE, 0);
    builder.AddChannelArgument(GRPC_ARG_TCP_MAX_READ_CHUNK_SIZE, kMaxRequestBytes);
    server_ = builder.BuildAndStart();
    if (server_ == nullptr) return absl::InternalError("gRPC could not start the control service");
    server_->GetHealthCheckService()->SetServingStatus(true);
    return absl::OkStatus();
  }

  void Serve(UniqueFd socket) {
    connections_.push_back({.fd = socket.get(), .inode = InodeOf(socket.get())});
    grpc::AddInsecureChannelFromFd(server_.get(), socket.Release());
  }

  /// How many connections have ended since this was last asked.
  std::size_t ForgetEnded() {
    return std::erase_if(connections_, [](const Connection& connection) {
      return InodeOf(connection.fd) != connection.inode;
    });
  }
  std::size_t connections() const { return connections_.size(); }

  /// Ends all calls; calls that are not over at `deadline` are cancelled.
  void Shutdown(gpr_timespec deadline) {
    server_->Shutdown(deadline);
    server_->Wait();
  }

 private:
  // gRPC closes the descriptor of a connection and does not tell. Then the number is free, or another file's.
  struct Connection {
    int fd = -1;
    std::uint64_t inode = 0;
  };
  static std::uint64_t InodeOf(int fd) {
    struct stat status = {};
    return ::fstat(fd, &status) == 0 ? status.st_ino : 0;
  }

  ControlService service_;
  std::unique_ptr<grpc::Server> server_;
  std::vector<Connection> connections_;
};

}  // namespace

class ControlServer::Impl {
 public:
  explicit Impl(const ControlService::Parts& parts) : parts_(parts) {}
  ~Impl() { Stop(); }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  absl::Status Start() {
    LGPU_ASSIGN_OR_RETURN(room_.waiting_calls, CallPool::Start("lgpud-waits", kMaxWaitingCalls));
    LGPU_ASSIGN_OR_RETURN(room_.short_calls, CallPool::Start("lgpud-calls", kMaxShortCalls));
    LGPU_ASSIGN_OR_RETURN(room_.pump, WatchPump::Start());
    LGPU_ASSIGN_OR_RETURN(ender_, Thread::Start("lgpud-ends", [this] { EndServers(); }));
    LGPU_RETURN_IF_ERROR(CheckThreadRoom("gRPC", kGrpcThreads));
    EnableHealthService();
    // The first server, so that a gRPC that does not start is seen now.
    MutexLock lock(mutex_);
    return ServerOf({::getuid(), std::nullopt}).status();
  }

  absl::Status Serve(UniqueFd socket, const PeerCredentials& peer, std::optional<LeaseKey> only) {
    const int flags = ::fcntl(socket.get(), F_GETFL);
    if (flags < 0 || ::fcntl(socket.get(), F_SETFL, flags | O_NONBLOCK) < 0) {
      return absl::InternalError(absl::StrCat("fcntl on a control connection: ", std::strerror(errno)));
    }
    // No server must go away meanwhile; handing over does not wait for anything.
    MutexLock lock(mutex_);
    if (stopped_) return absl::UnavailableError("the daemon is stopping");
    // Under the lock: a lease that ends after this look finds its server in EndLease.
    if (only && !parts_.leases.IsOpen(*only)) return absl::NotFoundError("the lease has ended");
    LGPU_ASSIGN_OR_RETURN(UserServer* const server, ServerOf({peer.uid, only}));
    if (!connections_.TryTake(peer.uid)) {
      ForgetEnded();
      if (!connections_.TryTake(peer.uid)) {
        return absl::ResourceExhaustedError(
            absl::StrCat("this user has ", server->connections(),
                         " control connections to lgpud, which is their share; close some"));
      }
    }
    absl::StatusOr<UniqueFd> moved = MoveUp(std::move(socket));
    if (!moved.ok()) {
      connections_.GiveBack(peer.uid);
      return moved.status();
    }
    server->Serve(*std::move(moved));
    return absl::OkStatus();
  }

  void EndLease(LeaseKey lease) {
    {
      MutexLock lock(mutex_);
      for (auto entry = servers_.begin(); entry != servers_.end();) {
        const auto next = std::next(entry);
        if (entry->first.second == lease) {
          connections_.GiveBack(entry->first.first, entry->second->connections());
          ended_.push_back(std::move(entry->second));
          servers_.erase(entry);
        }
        entry = next;
      }
    }
    changed_.NotifyAll();
  }

  void Stop() {
    Servers servers;
    {
      MutexLock lock(mutex_);
      stopped_ = true;
      servers.swap(servers_);
    }
    changed_.NotifyAll();
    if (room_.pump != nullptr) room_.pump->Wake();  // for the last events
    const gpr_timespec deadline =
        gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC),
                     gpr_time_from_millis(std::chrono::milliseconds(kShutdown).count(), GPR_TIMESPAN));
    for (auto& [of, server] : servers) server->Shutdown(deadline);
    ender_.Join();
    shut_down_.merge(servers);
  }

 private:
  using Servers = std::map<std::pair<std::uint32_t, std::optional<LeaseKey>>, std::unique_ptr<UserServer>>;

  absl::StatusOr<UserServer*> ServerOf(const Servers::key_type& of) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (const auto found = servers_.find(of); found != servers_.end()) return found->second.get();
    auto made = std::make_unique<UserServer>(parts_, room_, of.first, of.second);
    LGPU_RETURN_IF_ERROR(made->Start());
    return servers_.emplace(of, std::move(made)).first->second.get();
  }

  /// The body of `ender_`: gRPC ends a server only when its last call has ended, and a call may wait.
  void EndServers() {
    while (true) {
      std::unique_ptr<UserServer> server;
      {
        MutexLock lock(mutex_);
        while (ended_.empty() && !stopped_) changed_.Wait(mutex_);
        if (ended_.empty()) return;
        server = std::move(ended_.front());
        ended_.pop_front();
      }
      server->Shutdown(gpr_now(GPR_CLOCK_MONOTONIC));
    }
  }

  /// For all users: ended connections of one user must not make another user's share smaller.
  void ForgetEnded() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const auto now = std::chrono::steady_clock::now();
    if (now < next_look_) return;
    next_look_ = now + kLookInterval;
    for (auto& [of, server] : servers_) connections_.GiveBack(of.first, server->ForgetEnded());
  }

  const ControlService::Parts parts_;
  /// Destroyed after the threads of `room_` have ended, whose calls used them.
  Servers shut_down_;
  CallRoom room_;
  UserShares connections_{MaxConnections()};
  Mutex mutex_;
  Servers servers_ ABSL_GUARDED_BY(mutex_);
  std::deque<std::unique_ptr<UserServer>> ended_ ABSL_GUARDED_BY(mutex_);  // of leases; to be shut down
  CondVar changed_;                                                        // `ended_` or `stopped_`
  std::chrono::steady_clock::time_point next_look_ ABSL_GUARDED_BY(mutex_);
  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;
  Thread ender_;
};

ControlServer::ControlServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
ControlServer::~ControlServer() { Stop(); }

absl::StatusOr<std::unique_ptr<ControlServer>> ControlServer::Start(const ControlService::Parts& parts) {
  auto impl = std::make_unique<Impl>(parts);
  LGPU_RETURN_IF_ERROR(impl->Start());
  return std::unique_ptr<ControlServer>(new ControlServer(std::move(impl)));
}

absl::Status ControlServer::Serve(UniqueFd socket, const PeerCredentials& peer,
                                  std::optional<LeaseKey> only) {
  return impl_->Serve(std::move(socket), peer, only);
}

void ControlServer::EndLease(LeaseKey lease) { impl_->EndLease(lease); }

void ControlServer::Stop() { impl_->Stop(); }

}  // namespace lgpu::daemon
