#ifndef LGPU_ALLOCATOR_BROKER_RESERVATIONS_H_
#define LGPU_ALLOCATOR_BROKER_RESERVATIONS_H_

#include <string>

#include "absl/functional/function_ref.h"
#include "allocator/broker/broker_core.h"

namespace lgpu {

/// Reservations sets guarantees aside for devices that are made or resized: at once, or after waiting in the
/// card's queue. It waits on a thread of the caller, or without one (Broker::QueueRoom).
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

  // As QueueRoom, LookAtRoom and LeaveRoom of Broker.
  WaiterId Queue(const Broker::RoomSpec& spec);
  Broker::RoomView Look(WaiterId id);
  void Leave(WaiterId id);

 private:
  /// Serves the card; gives the lock up meanwhile.
  void Serve(CardId card) ABSL_EXCLUSIVE_LOCKS_REQUIRED(core_.mutex);

  BrokerCore& core_;
};

}  // namespace lgpu

#endif  // LGPU_ALLOCATOR_BROKER_RESERVATIONS_H_
