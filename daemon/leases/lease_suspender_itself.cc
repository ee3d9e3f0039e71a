// Programs of liblgpu, which move their contents by themselves: by order of a LeaseSuspender, or of their
// own.

#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "allocator/broker/lease_suspensions.h"
#include "daemon/leases/lease_suspender.h"
#include "lgpu/status.h"

namespace lgpu::daemon {
namespace {

// A grant that the program gives back may be on its way.
constexpr int kBeginAttempts = 20;
constexpr std::chrono::milliseconds kBetweenAttempts{10};

}  // namespace

std::optional<SessionId> LeaseSuspender::SelfMover(const Lease& lease) const {
  const std::vector<SessionId> holders = broker_.suspensions().ChunkHolders(lease.key);
  if (holders.size() != 1 || !CheckAlone(lease, holders.front()).ok()) return std::nullopt;
  const std::shared_ptr<SessionState> session = sessions_.Find(holders.front());
  const bool moves = session != nullptr && session->identity().suspends_itself &&
                     session->phase() == SessionState::Phase::kLive;
  return moves ? std::optional(holders.front()) : std::nullopt;
}

absl::StatusOr<LeaseSuspender::Programs> LeaseSuspender::ResumesItself(const Lease& lease) const {
  const SessionId itself{lease.suspended->own_session_id()};
  if (!lease.suspended->own_by_order()) return Programs();
  const std::shared_ptr<SessionState> session = sessions_.Find(itself);
  if (session == nullptr) return Programs();
  if (session->phase() == SessionState::Phase::kAbsent) {
    return absl::FailedPreconditionError(
        absl::StrCat("process ", session->process().pid,
                     " has not reconnected since lgpud restarted\ntry: the same command in a moment"));
  }
  return Programs{{itself, {}}};
}

absl::Status LeaseSuspender::BeginOrdered(const Lease& lease, SessionId mover,
                                          const std::map<LogicalId, Bytes>& needs,
                                          const std::map<LogicalId, Bytes>& held_before) {
  absl::Status begun = absl::UnavailableError("lgpud is stopping");
  for (int i = 0; i < kBeginAttempts && !IsClosed(); ++i) {
    begun = leases_.BeginOrderedSuspension(lease.key, mover, needs, held_before);
    if (begun.ok() || absl::IsNotFound(begun)) return begun;
    std::this_thread::sleep_for(kBetweenAttempts);
  }
  return begun;
}

absl::Status LeaseSuspender::NotBackByItself(const Lease& lease, const absl::Status& why) {
  if (absl::IsAborted(why)) {  // it is at work on its Context: later
    leases_.Park(lease.key, LeaseTable::ParkingOf(*lease.suspended));
    return absl::FailedPreconditionError(why.message());
  }
  // Its contents are in host memory, and it has the error.
  broker_.suspensions().End(lease.key);
  const std::string text(why.message());
  Tell(lease, absl::StrCat("has its memory again, but its program failed to move its contents back: ",
                           text.substr(0, text.find('\n'))));
  MutexLock lock(mutex_);
  ++counters_.failures;
  return absl::InternalError(absl::StrCat("the program of lease ", lease.name,
                                          " could not take its contents back: ", std::string(why.message()),
                                          "\ntry: Context::Resume in that program"));
}

absl::Status LeaseSuspender::CheckAlone(const Lease& lease, SessionId session) const {
  for (const SessionId id : lease.live) {
    const std::shared_ptr<SessionState> other = id == session ? nullptr : sessions_.Find(id);
    if (other == nullptr || other->identity().suspends) continue;
    const std::shared_ptr<SessionState> itself = sessions_.Find(session);
    if (itself != nullptr && itself->process().pid == other->process().pid) continue;
    return absl::FailedPreconditionError(
        absl::StrCat("process ", other->process().pid, " is another program of the lease"));
  }
  return absl::OkStatus();
}

absl::StatusOr<v1::SuspendLeaseResponse> LeaseSuspender::SuspendOwn(const Caller& caller,
                                                                    const std::string& name, Bytes bytes) {
  LGPU_ASSIGN_OR_RETURN(const Lease lease, leases_.BeginOwnSuspension(caller, name));
  if (absl::Status alone = CheckAlone(lease, caller.session->id()); !alone.ok()) {
    broker_.suspensions().End(lease.key);
    return alone;
  }
  v1::SuspendLeaseResponse response;
  response.set_lease_id(lease.id);
  response.set_lease_name(lease.name);
  response.set_bytes(
      leases_
          .Park(lease.key,
                {.movers = {}, .preempted_at = {}, .own_session = caller.session->id(), .own_bytes = bytes})
          .count());
  Observe(lease);
  Tell(lease, absl::StrCat("suspended by its program: ", FormatBytes(bytes), " in host memory"));
  MutexLock lock(mutex_);
  ++counters_.suspensions;
  counters_.bytes += bytes.count();
  return response;
}

}  // namespace lgpu::daemon
