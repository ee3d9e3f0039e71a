#ifndef LGPU_DAEMON_SERVER_CONTROL_SERVICE_H_
#define LGPU_DAEMON_SERVER_CONTROL_SERVICE_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/leases/lease_suspender.h"
#include "daemon/leases/lease_table.h"
#include "daemon/server/call_pool.h"
#include "daemon/server/diagnosis.h"
#include "daemon/server/event_log.h"
#include "daemon/server/known_users.h"
#include "daemon/server/stats.h"
#include "daemon/server/user_shares.h"
#include "daemon/server/watch_pump.h"
#include "daemon/sessions/session_state.h"
#include "daemon/snapshots/memory_snapshots.h"
#include "lgpu/v1/control.grpc.pb.h"

namespace lgpu::daemon {

/// A CallRoom is shared by all users' calls: threads, and the places of calls, streams and unread answers.
struct CallRoom {
  KnownUsers users;  // the pools' calls use it
  /// For calls that may wait for memory, and for all other calls.
  std::unique_ptr<CallPool> waiting_calls;
  std::unique_ptr<CallPool> short_calls;
  std::unique_ptr<WatchPump> pump;
  UserShares calls{4096};
  UserShares streams{256};
  UserShares lease_waits{1024};
  UserShares unread_bytes{std::size_t{64} << 20};
};

/// The methods of lgpu.v1.Control for one user. A call holds no thread of gRPC: it runs on a CallPool, and
/// counts against its user from its arrival until its answer has left the daemon. A user with too many such
/// calls, or too many bytes that they do not read, is asked to try again (UNAVAILABLE with the metadata
/// `lgpu-retry-after-ms`; the call has had no effect). Thread-safe.
class ControlService final : public v1::Control::CallbackService {
 public:
  static constexpr char kRetryKey[] = "lgpu-retry-after-ms";

  /// The parts that the methods use.
  struct Parts {
    LeaseTable& leases;
    Broker& broker;
    SessionDirectory& sessions;
    EventLog& events;
    const StatsReporter& stats;
    const Diagnostician& diagnostician;
    MemorySnapshots& snapshots;
    LeaseSuspender& suspender;
    bool simulated = false;
    /// Makes the directory of a lease, or finds it made; its path.
    std::function<absl::StatusOr<std::string>(const LeaseTable::WithDirectory&)> open_directory = {};
  };
  /// All outlive the service; `uid`: every caller's. `only`: they come by the directory of this lease.
  ControlService(const Parts& parts, CallRoom& room, std::uint32_t uid, std::optional<LeaseKey> only)
      : parts_(parts), room_(room), uid_(uid), only_(only) {}

  // The methods, in the order of control.proto.
  using Context = grpc::CallbackServerContext;
  using Unary = grpc::ServerUnaryReactor;
  Unary* GetVersion(Context*, const v1::GetVersionRequest*, v1::GetVersionResponse*) override;
  Unary* ListPhysicalDevices(Context*, const v1::ListPhysicalDevicesRequest*,
                             v1::ListPhysicalDevicesResponse*) override;
  Unary* CreateLease(Context*, const v1::CreateLeaseRequest*, v1::Lease*) override;
  grpc::ServerWriteReactor<v1::LeaseWait>* WaitForLease(Context*, const v1::WaitForLeaseRequest*) override;
  Unary* AttachLease(Context*, const v1::AttachLeaseRequest*, v1::Lease*) override;
  Unary* GetLease(Context*, const v1::GetLeaseRequest*, v1::Lease*) override;
  Unary* ListLeases(Context*, const v1::ListLeasesRequest*, v1::ListLeasesResponse*) override;
  Unary* ResizeLease(Context*, const v1::ResizeLeaseRequest*, v1::Lease*) override;
  Unary* RemoveLease(Context*, const v1::RemoveLeaseRequest*, v1::RemoveLeaseResponse*) override;
  Unary* SuspendLease(Context*, const v1::SuspendLeaseRequest*, v1::SuspendLeaseResponse*) override;
  Unary* ResumeLease(Context*, const v1::ResumeLeaseRequest*, v1::ResumeLeaseResponse*) override;
  grpc::ServerWriteReactor<v1::LeaseTrim>* TrimLeases(Context*, const v1::TrimLeasesRequest*) override;
  Unary* OpenLeaseDirectory(Context*, const v1::OpenLeaseDirectoryRequest*,
                            v1::OpenLeaseDirectoryResponse*) override;
  Unary* GetStats(Context*, const v1::GetStatsRequest*, v1::StatsSnapshot*) override;
  grpc::ServerWriteReactor<v1::MemorySnapshotPart>* GetMemorySnapshot(
      Context*, const v1::GetMemorySnapshotRequest*) override;
  Unary* GetPlacements(Context*, const v1::GetPlacementsRequest*, v1::PlacementReport*) override;
  grpc::ServerWriteReactor<v1::PlacementRecord>* WatchPlacements(Context*,
                                                                 const v1::GetPlacementsRequest*) override;
  grpc::ServerWriteReactor<v1::Event>* WatchEvents(Context*, const v1::WatchEventsRequest*) override;
  Unary* Diagnose(Context*, const v1::DiagnoseRequest*, v1::Diagnosis*) override;

 private:
  class Call;

  absl::StatusOr<Caller> Identify(const grpc::CallbackServerContext& context) const;
  /// Takes the call's place. UNAVAILABLE, with the metadata: try again.
  absl::Status Admit(grpc::CallbackServerContext& context);
  /// The error that asks the client to make the call again.
  static absl::Status TryAgain(grpc::CallbackServerContext& context, const std::string& why);
  /// UNAVAILABLE, with the metadata: with the call that has just taken a place the user or a group of theirs
  /// has more calls than a cap allows.
  absl::Status CheckCallCaps(grpc::CallbackServerContext& context);
  std::size_t CallsOf(std::uint32_t uid) const;
  /// Runs `body`, an absl::StatusOr<Response>(const Caller&), on `pool` and answers with what it returns.
  template <typename Response, typename Body>
  Unary* Answer(CallPool& pool, Context* context, Response* response, Body body);
  /// A stream of the batches of the function that `open`, an absl::StatusOr<...>(const Caller&), returns.
  template <typename Message, typename Open>
  grpc::ServerWriteReactor<Message>* Watch(Context* context, Open open);
  void TellRefusal(const Caller& caller, const absl::Status& status);

  const Parts parts_;
  CallRoom& room_;
  const std::uint32_t uid_;
  const std::optional<LeaseKey> only_;
};

}  // namespace lgpu::daemon

#endif  // LGPU_DAEMON_SERVER_CONTROL_SERVICE_H_
