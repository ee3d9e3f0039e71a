#ifndef LGPU_ALLOCATOR_BROKER_RESERVATIONS_H_
#define LGPU_ALLOCATOR_BROKER_RESERVATIONS_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "allocator/broker/broker.h"

namespace lgpu {

struct BrokerCore;

/// Reservations are the places of leases that wait to be made in the queue of a card.
///
/// Thread-safe: it takes the broker's lock. The core outlives it.
class Reservations {
 public:
  explicit Reservations(BrokerCore& core) : core_(core) {}

  struct Request {
    CardId card;
    Bytes bytes;  // above zero
    std::string lease_name = {};
    std::string owner = {};
    std::int64_t pid = 0;
    std::shared_ptr<Waker> waker = {};  // woken when it waits no more
    bool at_once = false;               // refused where there is no room now: it never stands in the queue
    Broker::Preemptible preemptible = Broker::Preemptible::kNever;  // others are suspended for such a lease
    LeaseKey lease = {};  // that is to be resumed; none: one that is to be made
  };
  struct Place {
    std::string text = {};  // what it waits for, in words for every user
    std::size_t place = 0;  // from 1
    std::size_t waiting = 0;
  };

  /// Joins the queue. When its time comes, the bytes are set aside for AddDevice with this id. The answer
  /// comes by the waker of `spec`, even where there is room at once.
  WaiterId Queue(const Request& spec);
  /// Where it stands; nothing: it waits no more.
  std::optional<Place> View(WaiterId id) const;
  /// Leaves the queue. What was set aside and not used is free. `is_served`: the lease was made elsewhere,
  /// and nobody pays for leases that gave way for the request (AskerAccounts).
  void Leave(WaiterId id, bool is_served = false);

 private:
  BrokerCore& core_;
};

}  // namespace lgpu

#endif  // LGPU_ALLOCATOR_BROKER_RESERVATIONS_H_
