#ifndef LGPU_DAEMON_SERVER_CONTROL_SERVICE_H_
#define LGPU_DAEMON_SERVER_CONTROL_SERVICE_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/mutex.h"
#include "daemon/leases/lease_table.h"
#include "daemon/server/diagnosis.h"
#include "daemon/server/event_log.h"
#include "daemon/server/stats.h"
#include "daemon/sessions/session_state.h"
#include "lgpu/v1/control.grpc.pb.h"

namespace lgpu::daemon {

/// ConnectionUsers remembers which user is behind which descriptor of a control connection. A number stays
/// its user's for ever, so that a call that is still running can never be taken for somebody else's when its
/// connection is closed and the number used again. A user gets a few numbers only, or one could take all.
/// Thread-safe.
class ConnectionUsers {
 public:
  explicit ConnectionUsers(std::size_t max_of_one_user) : max_of_one_user_(max_of_one_user) {}

  enum class Claimed { kYours, kAnothers, kTooMany };
  /// kAnothers: the number belongs to another user; kTooMany: to nobody, but this user has his share.
  Claimed Claim(int fd, std::uint32_t uid);
  std::vector<int> NumbersOf(std::uint32_t uid) const;
  /// The user of a `ServerContext::peer()`, which is "fd:N".
  std::optional<std::uint32_t> Find(const std::string& peer) const;

 private:
  const std::size_t max_of_one_user_;
  mutable Mutex mutex_;
  std::map<int, std::uint32_t> users_ ABSL_GUARDED_BY(mutex_);
  std::map<std::uint32_t, std::vector<int>> numbers_ ABSL_GUARDED_BY(mutex_);
};

/// StreamCounts bounds the open streams, which hold a thread each. Thread-safe.
class StreamCounts {
 public:
  static constexpr int kMax = 64;
  static constexpr int kMaxOfOneUser = 32;

  /// RESOURCE_EXHAUSTED when there are too many; else the stream is counted until Close.
  absl::Status Open(std::uint32_t uid);
  void Close(std::uint32_t uid);

 private:
  Mutex mutex_;
  int all_ ABSL_GUARDED_BY(mutex_) = 0;
  std::map<std::uint32_t, int> of_users_ ABSL_GUARDED_BY(mutex_);
};

/// The methods of lgpu.v1.Control: finds out who calls, and passes the call on. Thread-safe.
class ControlService final : public v1::Control::Service {
 public:
  struct Services {
    LeaseTable& leases;
    SessionDirectory& sessions;
    EventLog& events;
    const StatsReporter& stats;
    const Diagnostician& diagnostician;
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
  grpc::Status Diagnose(grpc::ServerContext* context, const v1::DiagnoseRequest* request,
                        v1::Diagnosis* response) override;

 private:
  absl::StatusOr<Caller> Identify(const grpc::ServerContext& context) const;
  void TellRefusal(const Caller& caller, const absl::Status& status);

  const Services services_;
  StreamCounts streams_;
};

}  // namespace lgpu::daemon

#endif  // LGPU_DAEMON_SERVER_CONTROL_SERVICE_H_
