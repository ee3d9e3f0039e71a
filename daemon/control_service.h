#ifndef LGPU_DAEMON_CONTROL_SERVICE_H_
#define LGPU_DAEMON_CONTROL_SERVICE_H_

#include <atomic>
#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "allocator/mutex.h"
#include "daemon/event_log.h"
#include "daemon/lease_table.h"
#include "daemon/session_state.h"
#include "daemon/stats.h"
#include "lgpu/v1/control.grpc.pb.h"

namespace lgpu::daemon {

/// ConnectionUsers remembers which user is behind which descriptor of a control connection. A number stays
/// its user's for ever, so that a call that is still running can never be taken for somebody else's when its
/// connection is closed and the number used again. Thread-safe.
class ConnectionUsers {
 public:
  /// False: the number belongs to another user.
  bool Claim(int fd, std::uint32_t uid);
  /// The user of a `ServerContext::peer()`, which is "fd:N".
  std::optional<std::uint32_t> Find(const std::string& peer) const;

 private:
  mutable Mutex mutex_;
  std::map<int, std::uint32_t> users_ ABSL_GUARDED_BY(mutex_);
};

/// The methods of lgpu.v1.Control: finds out who calls, and passes the call on. Thread-safe.
class ControlService final : public v1::Control::Service {
 public:
  /// Streams hold a thread each.
  static constexpr int kMaxStreams = 64;

  struct Services {
    LeaseTable& leases;
    SessionDirectory& sessions;
    EventLog& events;
    const StatsReporter& stats;
    const ConnectionUsers& users;
    bool simulated = false;
  };
  /// All outlive the service.
  explicit ControlService(const Services& services) : services_(services) {}

  grpc::Status GetVersion(grpc::ServerContext* context, const v1::GetVersionRequest* request,
                          v1::GetVersionResponse* response) override;
  grpc::Status ListPhysicalDevices(grpc::ServerContext* context,
                                   const v1::ListPhysicalDevicesRequest* request,
                                   v1::ListPhysicalDevicesResponse* response) override;
  grpc::Status CreateLease(grpc::ServerContext* context, const v1::CreateLeaseRequest* request,
                           v1::Lease* response) override;
  grpc::Status AttachLease(grpc::ServerContext* context, const v1::AttachLeaseRequest* request,
                           v1::Lease* response) override;
  grpc::Status GetLease(grpc::ServerContext* context, const v1::GetLeaseRequest* request,
                        v1::Lease* response) override;
  grpc::Status ListLeases(grpc::ServerContext* context, const v1::ListLeasesRequest* request,
                          v1::ListLeasesResponse* response) override;
  grpc::Status ResizeLease(grpc::ServerContext* context, const v1::ResizeLeaseRequest* request,
                           v1::Lease* response) override;
  grpc::Status RemoveLease(grpc::ServerContext* context, const v1::RemoveLeaseRequest* request,
                           v1::RemoveLeaseResponse* response) override;
  grpc::Status GetStats(grpc::ServerContext* context, const v1::GetStatsRequest* request,
                        v1::StatsSnapshot* response) override;
  grpc::Status GetPlacements(grpc::ServerContext* context, const v1::GetPlacementsRequest* request,
                             v1::PlacementReport* response) override;
  grpc::Status WatchPlacements(grpc::ServerContext* context, const v1::GetPlacementsRequest* request,
                               grpc::ServerWriter<v1::PlacementRecord>* writer) override;
  grpc::Status WatchEvents(grpc::ServerContext* context, const v1::WatchEventsRequest* request,
                           grpc::ServerWriter<v1::Event>* writer) override;

 private:
  absl::StatusOr<Caller> Identify(const grpc::ServerContext& context) const;
  void TellRefusal(const Caller& caller, const absl::Status& status);

  const Services services_;
  std::atomic<int> streams_ = 0;
};

}  // namespace lgpu::daemon

#endif  // LGPU_DAEMON_CONTROL_SERVICE_H_
