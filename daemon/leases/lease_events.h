#ifndef LGPU_DAEMON_LEASES_LEASE_EVENTS_H_
#define LGPU_DAEMON_LEASES_LEASE_EVENTS_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "allocator/broker/broker.h"
#include "allocator/broker/release_order.h"
#include "allocator/broker/session_trims.h"
#include "daemon/leases/lease.h"
#include "daemon/server/event_log.h"
#include "daemon/sessions/session_state.h"
#include "lgpu/bytes.h"

namespace lgpu::daemon {

/// A LeaseEvents writes the events of leases and of their sessions to the log. Thread-safe as the log is; the
/// caller's lock keeps the lease as it is meanwhile.
class LeaseEvents {
 public:
  /// The log outlives it.
  explicit LeaseEvents(EventLog& log) : log_(log) {}

  // ---- The lease.
  /// `maker`: the session that it is made for; null: none.
  void Created(const Lease& lease, const SessionState* maker) const;
  void Resized(const Lease& lease) const;
  void Ended(const Lease& lease) const;
  /// It is removed now, for this reason. Also a line of the daemon's log.
  void EndsByItself(const Lease& lease, const std::string& why) const;
  /// Also a warning of the daemon's log.
  void LacksMemory(const Lease& lease, Bytes missing, const absl::Status& why) const;
  /// A program of the lease uses more than it has charged or was granted; `what` follows its name.
  /// `program`: as people know it.
  void Uncharged(const Lease& lease, std::int64_t pid, const std::string& program,
                 const std::string& what) const;

  /// It is idle, and another lease needs its memory.
  void AskedToGiveWay(const Lease& lease, std::string text) const;
  /// It gave way, or another lease did for a request of it.
  void GaveWay(const Lease& lease, const GivingWayNews& news) const;

  /// Its programs were suspended or resumed, or could not be.
  void Suspended(const Lease& lease, std::string text) const;

  // ---- One session of it.
  void Attached(const Lease& lease, const SessionState& session) const;
  /// Of before lgpud was started again; its program has not come back yet.
  void Absent(const Lease& lease, const SessionState& session, Bytes held) const;
  void Back(const Lease& lease, const SessionState& session, Bytes held) const;
  void Lost(const Lease& lease, const SessionState& session, Bytes held) const;
  /// Its memory is back; `was_lost`: after Lost, not after Close.
  void Gone(const Lease& lease, const SessionState& session, bool was_lost) const;
  /// It gave memory back that its card does not have.
  void Unreturned(const Lease& lease, const SessionState& session, Bytes bytes) const;
  /// It does not answer whether it has idle memory.
  void IgnoredTrim(const Lease& lease, const SessionState& session,
                   const SessionTrims::Ignored& ignored) const;
  /// Its program has lost its GPU context.
  void LostContext(const Lease& lease, const SessionState& session) const;

 private:
  void Append(v1::Event::Kind kind, const Lease& lease, const SessionState* session, std::string text) const;

  EventLog& log_;
};

}  // namespace lgpu::daemon

#endif  // LGPU_DAEMON_LEASES_LEASE_EVENTS_H_
