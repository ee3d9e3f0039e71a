// One file past the usual length: one class with a method for each call of the service.

#include "daemon/server/control_service.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/refusal_text.h"
#include "daemon/leases/lease_trim.h"
#include "daemon/leases/waiting_lease.h"
#include "daemon/server/grpc_status.h"
#include "daemon/server/lease_wait_call.h"
#include "daemon/server/watch_stream.h"
#include "daemon/snapshots/snapshot_parts.h"
#include "lgpu/refusal.h"
#include "lgpu/status.h"
#include "proto/wire/channel.h"

namespace lgpu::daemon {
namespace {

using Clock = std::chrono::steady_clock;

constexpr char kTokenKey[] = "lgpu-session-token-bin";
// How long a call waits for memory that is on its way back.
constexpr std::chrono::milliseconds kPatience{2000};
// How soon a call that was not admitted should be made again.
constexpr std::chrono::milliseconds kRetryAfter{50};
constexpr std::size_t kStreamBatch = 256;
constexpr std::size_t kSnapshotBatch = 4;  // messages of up to 4,096 blocks
// As long as the caller stays.
constexpr std::chrono::hours kLongestWait{24 * 365};

Clock::time_point Deadline(const grpc::CallbackServerContext& context) {
  // Monotonic clock.
  const gpr_timespec deadline = gpr_convert_clock_type(context.raw_deadline(), GPR_CLOCK_MONOTONIC);
  const std::chrono::milliseconds left(
      gpr_time_to_millis(gpr_time_sub(deadline, gpr_now(GPR_CLOCK_MONOTONIC))));
  return Clock::now() + std::min<std::chrono::nanoseconds>(
                            std::max<std::chrono::nanoseconds>(left, std::chrono::nanoseconds(0)), kPatience);
}

MemorySnapshots::Request SnapshotRequest(const v1::GetMemorySnapshotRequest& request) {
  MemorySnapshots::Request out{.lease = request.lease()};
  constexpr std::uint32_t kMostIndex = 1'000'000;  // no lease has so many
  if (request.has_device()) out.device = static_cast<int>(std::min(request.device(), kMostIndex));
  if (request.session_id() != 0) out.session = SessionId{request.session_id()};
  const auto longest = static_cast<std::uint64_t>(MemorySnapshots::kLongestWait.count());
  if (request.wait_ms() != 0) out.wait = std::chrono::milliseconds(std::min(request.wait_ms(), longest));
  return out;
}

/// The end of a call that was not admitted.
template <typename Reactor>
Reactor* Refused(Reactor* reactor, const absl::Status& why) {
  reactor->Finish(ToGrpc(why));
  return reactor;
}

/// A stream that was not opened.
template <typename Message>
class RefusedStream final : public grpc::ServerWriteReactor<Message> {
 public:
  void OnDone() override { delete this; }
};

}  // namespace

/// A unary call that was admitted, until its answer has left the daemon. It deletes itself then.
class ControlService::Call final : public grpc::ServerUnaryReactor {
 public:
  Call(CallRoom& room, std::uint32_t uid) : room_(room), uid_(uid) {}

  void Reply(const absl::Status& status, std::size_t bytes) {
    bytes_ = bytes;
    room_.unread_bytes.Take(uid_, bytes_);
    Finish(ToGrpc(status));
  }
  void OnDone() override {
    room_.unread_bytes.GiveBack(uid_, bytes_);
    room_.calls.GiveBack(uid_);
    delete this;
  }

 private:
  CallRoom& room_;
  const std::uint32_t uid_;
  std::size_t bytes_ = 0;
};

absl::StatusOr<Caller> ControlService::Identify(const grpc::CallbackServerContext& context) const {
  const auto token = context.client_metadata().find(kTokenKey);
  if (token == context.client_metadata().end()) return Caller{.uid = uid_, .session = nullptr, .only = only_};
  std::shared_ptr<SessionState> session =
      parts_.sessions.FindToken(std::string_view(token->second.data(), token->second.size()));
  if (session == nullptr || (session->uid() != uid_ && (uid_ != 0 || only_))) {
    return absl::PermissionDeniedError(
        "you have no session with this token: the session has ended; connect again");
  }
  const std::uint32_t owner = session->uid();
  return Caller{.uid = owner, .session = std::move(session), .only = only_};
}

absl::Status ControlService::Admit(grpc::CallbackServerContext& context) {
  std::string why;
  if (!room_.unread_bytes.HasRoom(uid_)) {
    why = absl::StrCat("your programs have not read ", room_.unread_bytes.CountOf(uid_), " bytes of answers");
  } else if (!room_.calls.TryTake(uid_)) {
    why = absl::StrCat("your programs have ", room_.calls.CountOf(uid_), " unfinished calls");
  } else if (const absl::Status capped = CheckCallCaps(context); !capped.ok()) {
    room_.calls.GiveBack(uid_);
    return capped;
  } else {
    return absl::OkStatus();
  }
  return TryAgain(context, absl::StrCat(why, ", which is your share"));
}

absl::Status ControlService::TryAgain(grpc::CallbackServerContext& context, const std::string& why) {
  context.AddTrailingMetadata(kRetryKey, absl::StrCat(kRetryAfter.count()));
  return absl::UnavailableError(absl::StrCat(why, "; try again"));
}

std::size_t ControlService::CallsOf(std::uint32_t uid) const {
  return room_.calls.CountOf(uid) + room_.streams.CountOf(uid) + room_.lease_waits.CountOf(uid);
}

absl::Status ControlService::CheckCallCaps(grpc::CallbackServerContext& context) {
  bool is_new = false;
  const User user = room_.users.Find(uid_, is_new);
  if (is_new) room_.short_calls->Run(uid_, [&users = room_.users, uid = uid_] { users.Learn(uid); });
  for (const LeaseTable::CallCap& cap : parts_.leases.CallCaps(user)) {
    std::size_t calls = 0;
    if (cap.group.empty()) {
      calls = CallsOf(uid_);
    } else {
      for (const std::uint32_t uid : room_.users.InGroup(cap.group)) calls += CallsOf(uid);
    }
    if (calls <= cap.calls) continue;
    return TryAgain(context,
                    absl::StrCat(cap.group.empty() ? absl::StrCat("user ", user.name) : "group " + cap.group,
                                 " may have at most ", cap.calls, " unfinished calls (", cap.key, ".calls)"));
  }
  return absl::OkStatus();
}

template <typename Response, typename Body>
grpc::ServerUnaryReactor* ControlService::Answer(CallPool& pool, Context* context, Response* response,
                                                 Body body) {
  if (const absl::Status admitted = Admit(*context); !admitted.ok()) {
    return Refused(context->DefaultReactor(), admitted);
  }
  auto* const call = new Call(room_, uid_);
  pool.Run(uid_, [this, call, context, response, body = std::move(body)] {
    if (context->IsCancelled()) return call->Reply(absl::CancelledError("the caller is gone"), 0);
    const absl::StatusOr<Caller> caller = Identify(*context);
    absl::StatusOr<Response> result = caller.ok() ? body(*caller) : caller.status();
    if (result.ok()) *response = *std::move(result);
    call->Reply(result.status(), result.ok() ? response->ByteSizeLong() : result.status().message().size());
  });
  return call;
}

void ControlService::TellRefusal(const Caller& caller, const absl::Status& status) {
  const std::optional<Refusal> refusal = GetRefusal(status);
  if (!refusal) return;
  v1::Event event;
  event.set_kind(v1::Event::KIND_REFUSED);
  event.set_lease_name(refusal->lease);
  if (caller.session != nullptr) {
    event.set_session_id(caller.session->id().value);
    event.set_pid(caller.session->process().pid);
  }
  event.set_text(RefusalHeadline(*refusal));
  *event.mutable_refusal() = RefusalToProto(*refusal);
  parts_.events.Append(std::move(event), caller.uid);
}

grpc::ServerUnaryReactor* ControlService::GetVersion(Context* context, const v1::GetVersionRequest*,
                                                     v1::GetVersionResponse* response) {
  return Answer(*room_.short_calls, context, response,
                [this](const Caller&) -> absl::StatusOr<v1::GetVersionResponse> {
                  v1::GetVersionResponse version;
                  version.set_version(LGPU_VERSION);
                  version.set_protocol_version(wire::Protocol::kProtocolVersion);
                  version.set_pid(::getpid());
                  version.set_backend(parts_.simulated ? "simulated" : "cuda");
                  return version;
                });
}

grpc::ServerUnaryReactor* ControlService::ListPhysicalDevices(Context* context,
                                                              const v1::ListPhysicalDevicesRequest*,
                                                              v1::ListPhysicalDevicesResponse* response) {
  return Answer(*room_.short_calls, context, response,
                [this](const Caller& caller) -> absl::StatusOr<v1::ListPhysicalDevicesResponse> {
                  v1::ListPhysicalDevicesResponse list;
                  for (v1::CardStats& card : parts_.stats.CardsFor(caller)) {
                    *list.add_devices() = std::move(card);
                  }
                  return list;
                });
}

grpc::ServerUnaryReactor* ControlService::CreateLease(Context* context, const v1::CreateLeaseRequest* request,
                                                      v1::Lease* response) {
  return Answer(*room_.waiting_calls, context, response, [this, context, request](const Caller& caller) {
    absl::StatusOr<v1::Lease> lease = parts_.leases.Create(caller, *request, Deadline(*context));
    TellRefusal(caller, lease.status());
    return lease;
  });
}

grpc::ServerWriteReactor<v1::LeaseWait>* ControlService::WaitForLease(
    Context* context, const v1::WaitForLeaseRequest* request) {
  using Refusing = RefusedStream<v1::LeaseWait>;
  const absl::StatusOr<Caller> caller = Identify(*context);
  if (!caller.ok()) return Refused(new Refusing(), caller.status());
  if (!room_.lease_waits.TryTake(uid_)) {
    return Refused(new Refusing(), absl::ResourceExhaustedError(absl::StrCat(
                                       "your programs wait for ", room_.lease_waits.CountOf(uid_),
                                       " leases, which is your share; end some of them and try again")));
  }
  if (const absl::Status capped = CheckCallCaps(*context); !capped.ok()) {
    room_.lease_waits.GiveBack(uid_);
    return Refused(new Refusing(), capped);
  }
  const Clock::time_point now = Clock::now();
  const auto longest = std::chrono::duration_cast<std::chrono::milliseconds>(kLongestWait).count();
  const Clock::time_point deadline =
      now + std::chrono::milliseconds(
                request->wait_ms() == 0 ? longest : std::min<std::uint64_t>(request->wait_ms(), longest));
  return new LeaseWaitCall(
      {.pump = *room_.pump,
       .pool = *room_.waiting_calls,
       .uid = uid_,
       .tell_refusal = [this](const Caller& whose, const absl::Status& why) { TellRefusal(whose, why); },
       .done = [this] { room_.lease_waits.GiveBack(uid_); }},
      std::make_unique<WaitingLease>(parts_.leases, parts_.broker, *caller, request->create(), deadline,
                                     room_.pump->waker()));
}

grpc::ServerUnaryReactor* ControlService::AttachLease(Context* context, const v1::AttachLeaseRequest* request,
                                                      v1::Lease* response) {
  return Answer(*room_.short_calls, context, response, [this, request](const Caller& caller) {
    return parts_.leases.Attach(caller, request->lease(), request->idle_after_ms());
  });
}

grpc::ServerUnaryReactor* ControlService::GetLease(Context* context, const v1::GetLeaseRequest* request,
                                                   v1::Lease* response) {
  return Answer(*room_.short_calls, context, response, [this, request](const Caller& caller) {
    return parts_.leases.Get(caller, request->lease());
  });
}

grpc::ServerUnaryReactor* ControlService::ListLeases(Context* context, const v1::ListLeasesRequest*,
                                                     v1::ListLeasesResponse* response) {
  return Answer(*room_.short_calls, context, response,
                [this](const Caller& caller) -> absl::StatusOr<v1::ListLeasesResponse> {
                  v1::ListLeasesResponse list;
                  for (v1::Lease& lease : parts_.leases.List(caller)) *list.add_leases() = std::move(lease);
                  return list;
                });
}

grpc::ServerUnaryReactor* ControlService::ResizeLease(Context* context, const v1::ResizeLeaseRequest* request,
                                                      v1::Lease* response) {
  return Answer(*room_.waiting_calls, context, response, [this, context, request](const Caller& caller) {
    absl::StatusOr<v1::Lease> lease = parts_.leases.Resize(caller, *request, Deadline(*context));
    TellRefusal(caller, lease.status());
    return lease;
  });
}

grpc::ServerUnaryReactor* ControlService::RemoveLease(Context* context, const v1::RemoveLeaseRequest* request,
                                                      v1::RemoveLeaseResponse* response) {
  // Among the short calls, although it waits for memory to come back: it must not stand in line behind calls
  // of its user that wait for just that memory.
  return Answer(*room_.short_calls, context, response,
                [this, context, request](const Caller& caller) -> absl::StatusOr<v1::RemoveLeaseResponse> {
                  if (request->lease().empty() == request->request_id().empty()) {
                    return absl::InvalidArgumentError(
                        "the request names no lease; give its name, its id or its request_id");
                  }
                  v1::RemoveLeaseResponse removed;
                  if (!request->lease().empty()) {
                    if (request->before_kill()) parts_.suspender.PrepareKill(caller, request->lease());
                    const Clock::time_point until = request->at_once() ? Clock::now() : Deadline(*context);
                    LGPU_RETURN_IF_ERROR(parts_.leases.Remove(caller, request->lease(), until));
                    return removed;
                  }
                  LGPU_ASSIGN_OR_RETURN(
                      *removed.mutable_lease_id(),
                      parts_.leases.RemoveRequested(caller, request->request_id(), Deadline(*context)));
                  return removed;
                });
}

grpc::ServerUnaryReactor* ControlService::SuspendLease(Context* context,
                                                       const v1::SuspendLeaseRequest* request,
                                                       v1::SuspendLeaseResponse* response) {
  return Answer(*room_.waiting_calls, context, response, [this, request](const Caller& caller) {
    return request->own_bytes() == 0
               ? parts_.suspender.Suspend(caller, request->lease())
               : parts_.suspender.SuspendOwn(caller, request->lease(), Bytes(request->own_bytes()));
  });
}

grpc::ServerUnaryReactor* ControlService::ResumeLease(Context* context, const v1::ResumeLeaseRequest* request,
                                                      v1::ResumeLeaseResponse* response) {
  return Answer(*room_.waiting_calls, context, response, [this, context, request](const Caller& caller) {
    constexpr std::chrono::milliseconds kLongest = std::chrono::hours(24);
    const auto longest = static_cast<std::uint64_t>(kLongest.count());
    const auto wait = std::chrono::milliseconds(std::min<std::uint64_t>(request->wait_ms(), longest));
    const auto is_given_up = [context] { return context->IsCancelled(); };
    return request->own()
               ? parts_.suspender.ResumeOwn(caller, request->lease(), Clock::now() + wait, is_given_up)
               : parts_.suspender.Resume(caller, request->lease(), Clock::now() + wait, is_given_up);
  });
}

grpc::ServerUnaryReactor* ControlService::OpenLeaseDirectory(Context* context,
                                                             const v1::OpenLeaseDirectoryRequest* request,
                                                             v1::OpenLeaseDirectoryResponse* response) {
  return Answer(*room_.short_calls, context, response,
                [this, request](const Caller& caller) -> absl::StatusOr<v1::OpenLeaseDirectoryResponse> {
                  LGPU_ASSIGN_OR_RETURN(const LeaseTable::WithDirectory lease,
                                        parts_.leases.OpenDirectory(caller, request->lease()));
                  v1::OpenLeaseDirectoryResponse opened;
                  LGPU_ASSIGN_OR_RETURN(*opened.mutable_directory(), parts_.open_directory(lease));
                  return opened;
                });
}

grpc::ServerUnaryReactor* ControlService::GetStats(Context* context, const v1::GetStatsRequest*,
                                                   v1::StatsSnapshot* response) {
  return Answer(*room_.short_calls, context, response,
                [this](const Caller& caller) -> absl::StatusOr<v1::StatsSnapshot> {
                  return parts_.stats.Snapshot(caller);
                });
}

grpc::ServerUnaryReactor* ControlService::GetPlacements(Context* context,
                                                        const v1::GetPlacementsRequest* request,
                                                        v1::PlacementReport* response) {
  return Answer(*room_.short_calls, context, response,
                [this, request](const Caller& caller) -> absl::StatusOr<v1::PlacementReport> {
                  LGPU_ASSIGN_OR_RETURN(const LeaseTable::Placements placements,
                                        parts_.leases.FindPlacements(caller, request->lease()));
                  v1::PlacementReport report = placements.log->Report(request->max_records());
                  report.set_lease_id(placements.id);
                  report.set_lease_name(placements.name);
                  return report;
                });
}

grpc::ServerUnaryReactor* ControlService::Diagnose(Context* context, const v1::DiagnoseRequest*,
                                                   v1::Diagnosis* response) {
  return Answer(*room_.short_calls, context, response,
                [this](const Caller& caller) -> absl::StatusOr<v1::Diagnosis> {
                  if (caller.only) {
                    return absl::PermissionDeniedError(
                        "doctor cannot examine lgpud through a lease's own directory, as a container uses "
                        "it\ntry: lgpu doctor outside of the container");
                  }
                  return parts_.diagnostician.Examine(caller);
                });
}

template <typename Message, typename Open>
grpc::ServerWriteReactor<Message>* ControlService::Watch(Context* context, Open open) {
  const absl::StatusOr<Caller> caller = Identify(*context);
  if (!caller.ok()) return Refused(new RefusedStream<Message>(), caller.status());
  if (!room_.streams.TryTake(uid_)) {
    return Refused(new RefusedStream<Message>(),
                   absl::ResourceExhaustedError(
                       absl::StrCat("your programs have ", room_.streams.CountOf(uid_),
                                    " open streams, which is your share; close some and try again")));
  }
  if (const absl::Status capped = CheckCallCaps(*context); !capped.ok()) {
    room_.streams.GiveBack(uid_);
    return Refused(new RefusedStream<Message>(), capped);
  }
  absl::StatusOr<std::function<typename WatchStream<Message>::Batch()>> next = open(*caller);
  if (!next.ok()) {
    room_.streams.GiveBack(uid_);
    return Refused(new RefusedStream<Message>(), next.status());
  }
  return new WatchStream<Message>(*room_.pump, *std::move(next), [this] { room_.streams.GiveBack(uid_); });
}

grpc::ServerWriteReactor<v1::PlacementRecord>* ControlService::WatchPlacements(
    Context* context, const v1::GetPlacementsRequest* request) {
  using Batch = WatchStream<v1::PlacementRecord>::Batch;
  return Watch<v1::PlacementRecord>(
      context, [this, request](const Caller& caller) -> absl::StatusOr<std::function<Batch()>> {
        LGPU_ASSIGN_OR_RETURN(const LeaseTable::Placements placements,
                              parts_.leases.FindPlacements(caller, request->lease()));
        return [log = placements.log, after = placements.log->Before(request->max_records())]() mutable {
          PlacementLog::Batch read = log->Read(after, kStreamBatch);
          after = read.last;
          return Batch{.messages = std::move(read.records), .is_last = read.closed};
        };
      });
}

grpc::ServerWriteReactor<v1::MemorySnapshotPart>* ControlService::GetMemorySnapshot(
    Context* context, const v1::GetMemorySnapshotRequest* request) {
  using Batch = WatchStream<v1::MemorySnapshotPart>::Batch;
  return Watch<v1::MemorySnapshotPart>(
      context, [this, request](const Caller& caller) -> absl::StatusOr<std::function<Batch()>> {
        LGPU_ASSIGN_OR_RETURN(std::shared_ptr<SnapshotCall> call,
                              parts_.snapshots.Start(caller, SnapshotRequest(*request)));
        return [call = std::move(call), parts = std::shared_ptr<SnapshotParts>()]() mutable {
          if (parts == nullptr) {
            std::shared_ptr<const LeaseBlocks> told = call->Poll();
            if (told == nullptr) return Batch();
            call.reset();
            parts = std::make_shared<SnapshotParts>(std::move(told));
          }
          std::vector<v1::MemorySnapshotPart> next = parts->Next(kSnapshotBatch);
          return Batch{.messages = std::move(next), .is_last = parts->is_over()};
        };
      });
}

grpc::ServerWriteReactor<v1::LeaseTrim>* ControlService::TrimLeases(Context* context,
                                                                    const v1::TrimLeasesRequest* request) {
  using Batch = WatchStream<v1::LeaseTrim>::Batch;
  return Watch<v1::LeaseTrim>(
      context, [this, request](const Caller& caller) -> absl::StatusOr<std::function<Batch()>> {
        LGPU_ASSIGN_OR_RETURN(
            std::unique_ptr<LeaseTrim> started,
            LeaseTrim::Start({.leases = parts_.leases, .broker = parts_.broker, .sessions = parts_.sessions},
                             caller, *request));
        return [trim = std::shared_ptr<LeaseTrim>(std::move(started))] {
          std::vector<v1::LeaseTrim> told = trim->Take();
          return Batch{.messages = std::move(told), .is_last = trim->is_over()};
        };
      });
}

grpc::ServerWriteReactor<v1::Event>* ControlService::WatchEvents(Context* context,
                                                                 const v1::WatchEventsRequest* request) {
  using Batch = WatchStream<v1::Event>::Batch;
  return Watch<v1::Event>(
      context, [this, request](const Caller& caller) -> absl::StatusOr<std::function<Batch()>> {
        const std::string only = caller.only ? parts_.leases.Names(*caller.only).first : "";
        if (caller.only && only.empty()) return absl::NotFoundError("the lease has ended");
        return [&events = parts_.events, uid = caller.uid, lease = only.empty() ? request->lease() : only,
                after = request->after_sequence(),
                last_kept = request->kept_only() ? std::optional(parts_.events.last_sequence())
                                                 : std::nullopt]() mutable {
          EventLog::Batch read = events.Read(after, uid, kStreamBatch);
          Batch batch;
          // `after` 0 asks for all kept events, so that earlier ones count as none lost.
          if (read.lost > 0 && after > 0) {
            v1::Event& dropped = batch.messages.emplace_back();
            dropped.set_kind(v1::Event::KIND_EVENTS_DROPPED);
            dropped.set_text(absl::StrCat(read.lost, " events came faster than they were read and are lost"));
          }
          for (v1::Event& event : read.events) {
            if (lease.empty() || event.lease_id() == lease || event.lease_name() == lease) {
              batch.messages.push_back(std::move(event));
            }
          }
          after = read.last_sequence;
          batch.is_last = read.closed || (last_kept && after >= *last_kept);
          return batch;
        };
      });
}

}  // namespace lgpu::daemon
