#include "daemon/server/control_service.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "lgpu/refusal.h"
#include "lgpu/status.h"
#include "proto/refusal_messages.h"
#include "proto/session_channel.h"

namespace lgpu::daemon {
namespace {

using Clock = std::chrono::steady_clock;

constexpr char kTokenKey[] = "lgpu-session-token-bin";
// How long a call waits for memory that is on its way back.
constexpr std::chrono::milliseconds kPatience{2000};
// How often a stream looks whether its client is still there.
constexpr std::chrono::milliseconds kStreamLook{200};
constexpr std::size_t kStreamBatch = 256;

grpc::Status ToGrpc(const absl::Status& status) {
  if (status.ok()) {
    return grpc::Status::OK;
  }
  return {static_cast<grpc::StatusCode>(status.code()), std::string(status.message()),
          EncodeStatusDetails(status)};
}

// Runs `call` for who calls; its value goes into `response`.
template <typename Response>
grpc::Status Reply(absl::StatusOr<Response> result, Response* response) {
  if (result.ok()) {
    *response = *std::move(result);
  }
  return ToGrpc(result.status());
}

Clock::time_point Deadline(const grpc::ServerContext& context) {
  // Monotonic clock.
  const gpr_timespec deadline = gpr_convert_clock_type(context.raw_deadline(), GPR_CLOCK_MONOTONIC);
  const std::chrono::milliseconds left(
      gpr_time_to_millis(gpr_time_sub(deadline, gpr_now(GPR_CLOCK_MONOTONIC))));
  return Clock::now() + std::min<std::chrono::nanoseconds>(
                            std::max<std::chrono::nanoseconds>(left, std::chrono::nanoseconds(0)), kPatience);
}

// Counts one stream while it is open.
class StreamSlot {
 public:
  StreamSlot(StreamCounts& streams, std::uint32_t uid)
      : streams_(streams), uid_(uid), status_(streams.Open(uid)) {}
  ~StreamSlot() {
    if (status_.ok()) {
      streams_.Close(uid_);
    }
  }
  StreamSlot(const StreamSlot&) = delete;
  StreamSlot& operator=(const StreamSlot&) = delete;
  const absl::Status& status() const { return status_; }

 private:
  StreamCounts& streams_;
  const std::uint32_t uid_;
  const absl::Status status_;
};

}  // namespace

absl::Status StreamCounts::Open(std::uint32_t uid) {
  MutexLock lock(mutex_);
  const auto found = of_users_.find(uid);
  const int mine = found == of_users_.end() ? 0 : found->second;
  if (all_ >= kMax || mine >= kMaxOfOneUser) {
    return absl::ResourceExhaustedError(absl::StrCat(all_, " streams are open, ", mine,
                                                     " of them this user's; at most ", kMax, " and ",
                                                     kMaxOfOneUser, " may be; close some and try again"));
  }
  ++all_;
  ++of_users_[uid];
  return absl::OkStatus();
}

void StreamCounts::Close(std::uint32_t uid) {
  MutexLock lock(mutex_);
  --all_;
  if (--of_users_.at(uid) == 0) {
    of_users_.erase(uid);
  }
}

ConnectionUsers::Claimed ConnectionUsers::Claim(int fd, std::uint32_t uid) {
  MutexLock lock(mutex_);
  if (const auto found = users_.find(fd); found != users_.end()) {
    return found->second == uid ? Claimed::kYours : Claimed::kAnothers;
  }
  std::vector<int>& numbers = numbers_[uid];
  if (numbers.size() >= max_of_one_user_) {
    return Claimed::kTooMany;
  }
  numbers.push_back(fd);
  users_.emplace(fd, uid);
  return Claimed::kYours;
}

std::vector<int> ConnectionUsers::NumbersOf(std::uint32_t uid) const {
  MutexLock lock(mutex_);
  const auto found = numbers_.find(uid);
  return found == numbers_.end() ? std::vector<int>() : found->second;
}

std::optional<std::uint32_t> ConnectionUsers::Find(const std::string& peer) const {
  int fd = -1;
  absl::string_view number = peer;
  if (!absl::ConsumePrefix(&number, "fd:") || !absl::SimpleAtoi(number, &fd)) {
    return std::nullopt;
  }
  MutexLock lock(mutex_);
  const auto found = users_.find(fd);
  return found == users_.end() ? std::nullopt : std::optional(found->second);
}

absl::StatusOr<Caller> ControlService::Identify(const grpc::ServerContext& context) const {
  const std::optional<std::uint32_t> uid = services_.users.Find(context.peer());
  if (!uid) {
    return absl::PermissionDeniedError(
        absl::StrCat("who calls cannot be told from the connection (", context.peer(), ")"));
  }
  const auto token = context.client_metadata().find(kTokenKey);
  if (token == context.client_metadata().end()) {
    return Caller{.uid = *uid, .session = nullptr};
  }
  std::shared_ptr<SessionState> session =
      services_.sessions.FindToken(std::string_view(token->second.data(), token->second.size()));
  if (session == nullptr || (session->uid() != *uid && *uid != 0)) {
    return absl::PermissionDeniedError(
        "the session token is of no session of yours; the session has ended, connect again");
  }
  const std::uint32_t owner = session->uid();
  return Caller{.uid = owner, .session = std::move(session)};
}

void ControlService::TellRefusal(const Caller& caller, const absl::Status& status) {
  const std::optional<Refusal> refusal = GetRefusal(status);
  if (!refusal) {
    return;
  }
  v1::Event event;
  event.set_kind(v1::Event::KIND_REFUSED);
  event.set_lease_name(refusal->lease);
  if (caller.session != nullptr) {
    event.set_session_id(caller.session->id().value);
    event.set_pid(caller.session->process().pid);
  }
  const std::string text(status.message());
  event.set_text(text.substr(0, text.find('\n')));
  *event.mutable_refusal() = RefusalToProto(*refusal);
  services_.events.Append(std::move(event), caller.uid);
}

grpc::Status ControlService::GetVersion(grpc::ServerContext*, const v1::GetVersionRequest*,
                                        v1::GetVersionResponse* response) {
  response->set_version(LGPU_VERSION);
  response->set_protocol_version(SessionChannel::kProtocolVersion);
  response->set_pid(::getpid());
  response->set_backend(services_.simulated ? "simulated" : "cuda");
  return grpc::Status::OK;
}

grpc::Status ControlService::ListPhysicalDevices(grpc::ServerContext*, const v1::ListPhysicalDevicesRequest*,
                                                 v1::ListPhysicalDevicesResponse* response) {
  for (v1::CardStats& card : services_.stats.Cards()) {
    *response->add_devices() = std::move(card);
  }
  return grpc::Status::OK;
}

grpc::Status ControlService::CreateLease(grpc::ServerContext* context, const v1::CreateLeaseRequest* request,
                                         v1::Lease* response) {
  const absl::StatusOr<Caller> caller = Identify(*context);
  if (!caller.ok()) {
    return ToGrpc(caller.status());
  }
  absl::StatusOr<v1::Lease> lease = services_.leases.Create(*caller, *request, Deadline(*context));
  TellRefusal(*caller, lease.status());
  return Reply(std::move(lease), response);
}

grpc::Status ControlService::AttachLease(grpc::ServerContext* context, const v1::AttachLeaseRequest* request,
                                         v1::Lease* response) {
  const absl::StatusOr<Caller> caller = Identify(*context);
  return caller.ok() ? Reply(services_.leases.Attach(*caller, request->lease()), response)
                     : ToGrpc(caller.status());
}

grpc::Status ControlService::GetLease(grpc::ServerContext* context, const v1::GetLeaseRequest* request,
                                      v1::Lease* response) {
  const absl::StatusOr<Caller> caller = Identify(*context);
  return caller.ok() ? Reply(services_.leases.Get(*caller, request->lease()), response)
                     : ToGrpc(caller.status());
}

grpc::Status ControlService::ListLeases(grpc::ServerContext* context, const v1::ListLeasesRequest*,
                                        v1::ListLeasesResponse* response) {
  const absl::StatusOr<Caller> caller = Identify(*context);
  if (!caller.ok()) {
    return ToGrpc(caller.status());
  }
  for (v1::Lease& lease : services_.leases.List(*caller)) {
    *response->add_leases() = std::move(lease);
  }
  return grpc::Status::OK;
}

grpc::Status ControlService::ResizeLease(grpc::ServerContext* context, const v1::ResizeLeaseRequest* request,
                                         v1::Lease* response) {
  const absl::StatusOr<Caller> caller = Identify(*context);
  if (!caller.ok()) {
    return ToGrpc(caller.status());
  }
  absl::StatusOr<v1::Lease> lease = services_.leases.Resize(*caller, *request, Deadline(*context));
  TellRefusal(*caller, lease.status());
  return Reply(std::move(lease), response);
}

grpc::Status ControlService::RemoveLease(grpc::ServerContext* context, const v1::RemoveLeaseRequest* request,
                                         v1::RemoveLeaseResponse*) {
  const absl::StatusOr<Caller> caller = Identify(*context);
  return ToGrpc(caller.ok() ? services_.leases.Remove(*caller, request->lease(), Deadline(*context))
                            : caller.status());
}

grpc::Status ControlService::GetStats(grpc::ServerContext* context, const v1::GetStatsRequest*,
                                      v1::StatsSnapshot* response) {
  const absl::StatusOr<Caller> caller = Identify(*context);
  if (!caller.ok()) {
    return ToGrpc(caller.status());
  }
  *response = services_.stats.Snapshot(*caller);
  return grpc::Status::OK;
}

grpc::Status ControlService::GetPlacements(grpc::ServerContext* context,
                                           const v1::GetPlacementsRequest* request,
                                           v1::PlacementReport* response) {
  const absl::StatusOr<Caller> caller = Identify(*context);
  if (!caller.ok()) {
    return ToGrpc(caller.status());
  }
  const absl::StatusOr<LeaseTable::Placements> placements =
      services_.leases.FindPlacements(*caller, request->lease());
  if (!placements.ok()) {
    return ToGrpc(placements.status());
  }
  *response = placements->log->Report(request->max_records());
  response->set_lease_id(placements->id);
  response->set_lease_name(placements->name);
  return grpc::Status::OK;
}

grpc::Status ControlService::WatchPlacements(grpc::ServerContext* context,
                                             const v1::GetPlacementsRequest* request,
                                             grpc::ServerWriter<v1::PlacementRecord>* writer) {
  const absl::StatusOr<Caller> caller = Identify(*context);
  if (!caller.ok()) {
    return ToGrpc(caller.status());
  }
  const StreamSlot slot(streams_, caller->uid);
  if (!slot.status().ok()) {
    return ToGrpc(slot.status());
  }
  const absl::StatusOr<LeaseTable::Placements> placements =
      services_.leases.FindPlacements(*caller, request->lease());
  if (!placements.ok()) {
    return ToGrpc(placements.status());
  }
  std::uint64_t after = placements->log->Before(request->max_records());
  while (!context->IsCancelled()) {
    const PlacementLog::Batch batch = placements->log->Read(after, kStreamBatch, Clock::now() + kStreamLook);
    for (const v1::PlacementRecord& record : batch.records) {
      if (!writer->Write(record)) {
        return grpc::Status::OK;
      }
    }
    after = batch.last_sequence;
    if (batch.closed) {
      break;
    }
  }
  return grpc::Status::OK;
}

grpc::Status ControlService::WatchEvents(grpc::ServerContext* context, const v1::WatchEventsRequest* request,
                                         grpc::ServerWriter<v1::Event>* writer) {
  const absl::StatusOr<Caller> caller = Identify(*context);
  if (!caller.ok()) {
    return ToGrpc(caller.status());
  }
  const StreamSlot slot(streams_, caller->uid);
  if (!slot.status().ok()) {
    return ToGrpc(slot.status());
  }
  const std::uint64_t last_kept = services_.events.last_sequence();
  std::uint64_t after = request->after_sequence();
  while (!context->IsCancelled()) {
    const Clock::time_point until = request->kept_only() ? Clock::now() : Clock::now() + kStreamLook;
    const EventLog::Batch batch = services_.events.Read(after, caller->uid, kStreamBatch, until);
    // From the very start means: from the oldest that is kept.
    if (batch.lost > 0 && after > 0) {
      v1::Event dropped;
      dropped.set_kind(v1::Event::KIND_EVENTS_DROPPED);
      dropped.set_text(absl::StrCat(batch.lost, " events came faster than they were read and are lost"));
      if (!writer->Write(dropped)) {
        return grpc::Status::OK;
      }
    }
    for (const v1::Event& event : batch.events) {
      const bool wanted = request->lease().empty() || event.lease_id() == request->lease() ||
                          event.lease_name() == request->lease();
      if (wanted && !writer->Write(event)) {
        return grpc::Status::OK;
      }
    }
    after = batch.last_sequence;
    if (batch.closed || (request->kept_only() && after >= last_kept)) {
      break;
    }
  }
  return grpc::Status::OK;
}

grpc::Status ControlService::Diagnose(grpc::ServerContext* context, const v1::DiagnoseRequest*,
                                      v1::Diagnosis* response) {
  const absl::StatusOr<Caller> caller = Identify(*context);
  if (!caller.ok()) {
    return ToGrpc(caller.status());
  }
  *response = services_.diagnostician.Examine(*caller);
  return grpc::Status::OK;
}

}  // namespace lgpu::daemon
