#include "daemon/server/control_server.h"

#include <fcntl.h>
#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/health_check_service_interface.h>
#include <grpcpp/resource_quota.h>
#include <grpcpp/server_posix.h>
#include <sys/resource.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <mutex>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "base/mutex.h"
#include "base/thread_room.h"
#include "lgpu/status.h"

namespace lgpu::daemon {
namespace {

// Streams have a thread each; the rest are short calls.
constexpr int kMaxThreads = StreamCounts::kMax + 64;
constexpr std::chrono::milliseconds kShutdown{300};

std::size_t DescriptorLimit() {
  rlimit limit{};
  return ::getrlimit(RLIMIT_NOFILE, &limit) == 0 ? static_cast<std::size_t>(limit.rlim_cur) : 1024;
}

// Control connections get numbers from here up, where nothing else is: a user's numbers are free when his
// connections are closed.
int FirstNumber() { return static_cast<int>(std::min<std::size_t>(DescriptorLimit() / 2, 16'384)); }

// Control connections that one user may have.
std::size_t MaxOfOneUser() { return std::clamp<std::size_t>(DescriptorLimit() / 16, 8, 1024); }

// Health and reflection are switched on for the whole process, once.
void EnablePlugins() {
  static std::once_flag once;
  std::call_once(once, [] {
    grpc::EnableDefaultHealthCheckService(true);
    grpc::reflection::InitProtoReflectionServerBuilderPlugin();
  });
}

}  // namespace

class ControlServer::Impl {
 public:
  Impl(LeaseTable& leases, SessionDirectory& sessions, EventLog& events, const StatsReporter& stats,
       const Diagnostician& diagnostician, bool simulated)
      : users_(MaxOfOneUser()),
        service_({.leases = leases,
                  .sessions = sessions,
                  .events = events,
                  .stats = stats,
                  .diagnostician = diagnostician,
                  .users = users_,
                  .simulated = simulated}) {}

  absl::Status Start() {
    LGPU_RETURN_IF_ERROR(CheckThreadRoom());
    EnablePlugins();
    grpc::ServerBuilder builder;
    builder.RegisterService(&service_);
    builder.SetSyncServerOption(grpc::ServerBuilder::NUM_CQS, 1);
    builder.SetSyncServerOption(grpc::ServerBuilder::MIN_POLLERS, 1);
    builder.SetSyncServerOption(grpc::ServerBuilder::MAX_POLLERS, 4);
    grpc::ResourceQuota quota("lgpud");
    quota.SetMaxThreads(kMaxThreads);
    builder.SetResourceQuota(quota);
    MutexLock lock(mutex_);
    server_ = builder.BuildAndStart();
    if (server_ == nullptr) {
      return absl::InternalError("gRPC could not start the control service");
    }
    server_->GetHealthCheckService()->SetServingStatus(true);
    return absl::OkStatus();
  }

  absl::Status Serve(UniqueFd socket, const PeerCredentials& peer) {
    LGPU_RETURN_IF_ERROR(Claim(socket, peer.uid));
    const int flags = ::fcntl(socket.get(), F_GETFL);
    if (flags < 0 || ::fcntl(socket.get(), F_SETFL, flags | O_NONBLOCK) < 0) {
      return absl::InternalError(absl::StrCat("fcntl on a control connection: ", std::strerror(errno)));
    }
    // The server must not go away meanwhile; handing over does not wait for anything.
    MutexLock lock(mutex_);
    if (server_ == nullptr) {
      return absl::UnavailableError("the daemon is stopping");
    }
    grpc::AddInsecureChannelFromFd(server_.get(), socket.Release());
    return absl::OkStatus();
  }

  void Stop() {
    std::unique_ptr<grpc::Server> server;
    {
      MutexLock lock(mutex_);
      server = std::move(server_);
    }
    if (server != nullptr) {
      server->Shutdown(
          gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC),
                       gpr_time_from_millis(std::chrono::milliseconds(kShutdown).count(), GPR_TIMESPAN)));
      server->Wait();
    }
  }

 private:
  // Moves the socket to a number that is this user's, or nobody's yet.
  absl::Status Claim(UniqueFd& socket, std::uint32_t uid) {
    LGPU_RETURN_IF_ERROR(Move(socket, first_number_));
    while (true) {
      switch (users_.Claim(socket.get(), uid)) {
        case ConnectionUsers::Claimed::kYours:
          return absl::OkStatus();
        case ConnectionUsers::Claimed::kAnothers:
          LGPU_RETURN_IF_ERROR(Move(socket, socket.get() + 1));
          break;
        case ConnectionUsers::Claimed::kTooMany:
          return MoveToOneOf(users_.NumbersOf(uid), socket);
      }
    }
  }

  static absl::Status Move(UniqueFd& socket, int least) {
    UniqueFd moved(::fcntl(socket.get(), F_DUPFD_CLOEXEC, least));
    if (!moved) {
      return absl::ResourceExhaustedError(
          absl::StrCat("no descriptor left for a control connection: ", std::strerror(errno),
                       "; raise the daemon's open file limit"));
    }
    socket = std::move(moved);
    return absl::OkStatus();
  }

  static absl::Status MoveToOneOf(const std::vector<int>& numbers, UniqueFd& socket) {
    for (const int number : numbers) {
      UniqueFd moved(::fcntl(socket.get(), F_DUPFD_CLOEXEC, number));
      if (moved.get() == number) {
        socket = std::move(moved);
        return absl::OkStatus();
      }
    }
    return absl::ResourceExhaustedError(
        absl::StrCat("this user has ", numbers.size(), " control connections open already; close some"));
  }

  const int first_number_ = FirstNumber();
  ConnectionUsers users_;
  ControlService service_;
  Mutex mutex_;
  std::unique_ptr<grpc::Server> server_ ABSL_GUARDED_BY(mutex_);
};

ControlServer::ControlServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
ControlServer::~ControlServer() { Stop(); }

absl::StatusOr<std::unique_ptr<ControlServer>> ControlServer::Start(
    LeaseTable& leases, SessionDirectory& sessions, EventLog& events, const StatsReporter& stats,
    const Diagnostician& diagnostician, bool simulated) {
  auto impl = std::make_unique<Impl>(leases, sessions, events, stats, diagnostician, simulated);
  LGPU_RETURN_IF_ERROR(impl->Start());
  return std::unique_ptr<ControlServer>(new ControlServer(std::move(impl)));
}

absl::Status ControlServer::Serve(UniqueFd socket, const PeerCredentials& peer) {
  return impl_->Serve(std::move(socket), peer);
}

void ControlServer::Stop() { impl_->Stop(); }

}  // namespace lgpu::daemon
