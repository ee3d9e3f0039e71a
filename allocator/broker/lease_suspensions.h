#ifndef LGPU_ALLOCATOR_BROKER_LEASE_SUSPENSIONS_H_
#define LGPU_ALLOCATOR_BROKER_LEASE_SUSPENSIONS_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "allocator/broker/broker.h"

namespace lgpu {

struct BrokerCore;

/// LeaseSuspensions account for leases whose programs leave the cards, with all that they have there, and
/// come back later. The caller has the programs moved, and calls in this order:
///
///   Begin     the lease's requests wait from here on, and its programs have no allowance
///   Park      its programs have left the cards: their memory is in no account, and others get it
///   TakeBack  its memory is charged again, whole or not at all; its programs may come back
///   End       its requests go on
///
/// From Begin and from TakeBack on End leads back; Park comes after either. Fail ends it for good: the
/// programs cannot come back. A lease with memory in chunks, with a preallocated device, or on a
/// real card whose free memory cannot be read, cannot be suspended.
///
/// Thread-safe: it takes the broker's lock. The core outlives it.
class LeaseSuspensions {
 public:
  explicit LeaseSuspensions(BrokerCore& core) : core_(core) {}

  /// FAILED_PRECONDITION, with the reason: the lease cannot be suspended, or not now.
  absl::Status Begin(LeaseKey lease);
  /// As Begin, for a session of the lease that has moved its contents by itself and has given its chunks
  /// back. What its process has beside them stays charged.
  ///
  /// `needs`: what it needs of each device to come back. TakeBack then takes as much, and guarantees it until
  /// End. Without it the program asks for its memory as for any other.
  ///
  /// `held_before`: what the lease's devices held, as the account had it: the program says its needs.
  absl::Status BeginOwn(LeaseKey lease, SessionId session, const std::map<LogicalId, Bytes>& needs = {},
                        const std::map<LogicalId, Bytes>& held_before = {});
  /// The sessions of the lease that hold chunks; none where others have memory in charges.
  std::vector<SessionId> ChunkHolders(LeaseKey lease) const;
  /// What each device of the lease holds.
  std::map<LogicalId, Bytes> HeldBy(LeaseKey lease) const;
  /// What a session of the lease has charged of a device, in whole granules.
  struct Charge {
    SessionId session;
    LogicalId device;
    Bytes bytes;
  };
  /// What Park takes from the account, or has taken, since Begin. It only falls; a session whose process is
  /// moved is named also where it has nothing left. After BeginOwn: the needs.
  std::vector<Charge> Charges(LeaseKey lease) const;
  /// What a process has of a card beside its charges.
  struct Overhead {
    std::string card_uuid;
    std::int64_t pid = 0;
    Bytes bytes;
  };
  /// Of the processes of Charges; their memory leaves the account with Park too.
  std::vector<Overhead> Overheads(LeaseKey lease) const;
  /// Returns the bytes. On cards whose memory is observed others get them as soon as a report shows that they
  /// are free. `keeps_room`: it gives way for others, and leases that never give way leave room for it
  /// (KeptRoom).
  Bytes Park(LeaseKey lease, bool keeps_room = false);
  /// What TakeBack needs of each card's free memory; no entry is zero.
  std::map<CardId, Bytes> NeedOf(LeaseKey lease) const;
  /// Takes it from what was set aside for `rooms` (Reservations) and from free memory. RESOURCE_EXHAUSTED: a
  /// card has too little, and nothing has changed but that `rooms` are gone.
  absl::Status TakeBack(LeaseKey lease, std::span<const WaiterId> rooms);
  /// Nothing happens if the lease is parked, or was not begun.
  void End(LeaseKey lease);
  /// As Begin, if it is not begun, whatever the state of its sessions: an earlier broker had begun.
  absl::Status BeginAnyway(LeaseKey lease);
  /// Of the processes that are moved only these are from here on: the others have their memory, and stay
  /// charged. Nothing happens if the lease is parked, or was not begun.
  void MoveOnly(LeaseKey lease, const std::set<std::int64_t>& pids);
  /// Its memory is in no account from here on, and its requests are refused. Nothing happens if it was not
  /// begun.
  void Fail(LeaseKey lease);
  /// What an earlier broker had parked.
  struct Earlier {
    std::vector<Charge> charges;
    std::vector<Overhead> overheads = {};
    std::map<LogicalId, Bytes> guarantees = {};
    bool has_failed = false;
    bool is_own = false;      // as after BeginOwn
    bool keeps_room = false;  // as in Park
  };
  /// The lease's devices and sessions are restored, without guarantees and charges.
  void Restore(LeaseKey lease, const Earlier& earlier);

  struct Info {
    bool is_parked = false;
    Bytes parked;
    bool has_programs = false;  // of those that were moved, one has not ended
    bool had_programs = false;  // that were moved
    bool has_requests = false;  // that wait until it is resumed
    std::size_t place = 0;      // in the queue of its card that it waits longest for, from 1; 0: in none
  };
  /// Nothing: the lease was not begun.
  std::optional<Info> Find(LeaseKey lease) const;

 private:
  absl::Status CheckMayBegin(LeaseKey lease) const;
  Bytes ParkedOf(LeaseKey lease) const;
  bool HasRequests(LeaseKey lease) const;
  std::size_t PlaceOf(LeaseKey lease) const;
  void BeginLocked(LeaseKey lease);
  using ByProcess = std::map<std::pair<CardId, std::int64_t>, Bytes>;
  /// While the lease is not parked.
  ByProcess OverheadsNow(LeaseKey lease) const;
  Bytes ParkLocked(LeaseKey lease);
  void AdmitAgain(LeaseKey lease);
  void DropGuarantees(LeaseKey lease);

  BrokerCore& core_;
};

}  // namespace lgpu

#endif  // LGPU_ALLOCATOR_BROKER_LEASE_SUSPENSIONS_H_
