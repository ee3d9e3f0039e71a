#ifndef LGPU_ALLOCATOR_BROKER_RESERVATIONS_H_
#define LGPU_ALLOCATOR_BROKER_RESERVATIONS_H_

#include <string>

#include "absl/functional/function_ref.h"
#include "allocator/broker/broker.h"

namespace lgpu {

struct BrokerCore;
class BrokerLock;

/// Reservations sets guarantees aside for devices that are made or resized: at once, or after waiting in the
/// card's queue. It waits on a thread of the caller, or without one (Queue).
///
/// Thread-safe: it takes the broker's lock. The core outlives it.
class Reservations {
 public:
  explicit Reservations(BrokerCore& core) : core_(core) {}

  /// Sets a guarantee of this size aside by `attempt`, which is called with the lock. Waits until `deadline`
  /// for memory that is leaving or idle, and for turns of other requests; gives the caller's lock up
  /// meanwhile.
  absl::Status Wait(const BrokerLock& lock, CardId card, const std::string& user, Bytes guarantee,
                    Broker::TimePoint deadline, absl::FunctionRef<absl::Status()> attempt);

  // Memory for a lease that waits to be made, in the queue of a card. No thread waits.
  /// Joins the queue. When its time comes, the bytes are set aside for AddDevice with this id.
  WaiterId Queue(const Broker::RoomSpec& spec);
  /// To be called often: it moves the queue on.
  Broker::RoomView Look(WaiterId id);
  /// Leaves the queue. What was set aside and not used is free.
  void Leave(WaiterId id);

 private:
  BrokerCore& core_;
};

}  // namespace lgpu

#endif  // LGPU_ALLOCATOR_BROKER_RESERVATIONS_H_
