#ifndef LGPU_ALLOCATOR_BROKER_KEPT_ROOM_H_
#define LGPU_ALLOCATOR_BROKER_KEPT_ROOM_H_

#include "allocator/broker/broker_tables.h"
#include "allocator/broker/preemptible_leases.h"
#include "allocator/broker/waiting_requests.h"

namespace lgpu {

/// KeptRoom is what a card keeps for leases that gave way and are in host memory: a request whose memory
/// cannot be taken back leaves so much free that the largest of these leases fits, once all leases that can
/// give way have done so. Without kept room, leases that never give way would take that memory one after the
/// other, and the programs in host memory would wait until all of those leases have ended. No room is kept
/// for a lease that a user suspended.
///
/// Not thread-safe: the broker's lock guards it. What it is made of outlives it.
class KeptRoom {
 public:
  KeptRoom(const BrokerTables& tables, const WaitingRequests& waiting, const PreemptibleLeases& preemptible)
      : tables_(tables), waiting_(waiting), preemptible_(preemptible) {}

  struct Kept {
    Bytes bytes;     // of the card's free memory; more than all of it while programs outside lgpu have some
    LeaseKey lease;  // that needs most
  };
  /// What all requests that have to leave room leave of the card.
  Kept On(CardId card) const;
  /// The request has to leave room: what it gets cannot be taken back.
  bool IsFrom(const Waiter& waiter) const { return !preemptible_.CanBeTakenBack(waiter); }
  /// What the request leaves free.
  Kept Beside(const Waiter& waiter) const {
    const bool is_kept = !tables_.suspensions.empty() && IsFrom(waiter);
    return is_kept ? On(waiter.card) : Kept();
  }

 private:
  /// What the card has more when all that can give way have done so.
  Bytes YieldOf(CardId card) const;

  const BrokerTables& tables_;
  const WaitingRequests& waiting_;
  const PreemptibleLeases& preemptible_;
};

}  // namespace lgpu

#endif  // LGPU_ALLOCATOR_BROKER_KEPT_ROOM_H_
