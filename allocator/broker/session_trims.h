#ifndef LGPU_ALLOCATOR_BROKER_SESSION_TRIMS_H_
#define LGPU_ALLOCATOR_BROKER_SESSION_TRIMS_H_

#include <span>
#include <vector>

#include "allocator/broker/broker.h"

namespace lgpu {

struct BrokerCore;

/// SessionTrims passes orders to return idle memory to sessions, and their answers back, for requests that
/// are short of memory and for people.
///
/// Thread-safe: it takes the broker's lock. The core outlives it.
class SessionTrims {
 public:
  explicit SessionTrims(BrokerCore& core) : core_(core) {}

  /// New orders to return idle memory. Answer answers each of them.
  std::vector<TrimOrder> TakeOrders(SessionId session);
  /// The idle chunks have been returned. `pending`: more become idle when queued work ends. INVALID_ARGUMENT
  /// for an order that is not open.
  absl::Status Answer(SessionId session, TrimId trim, bool pending);
  /// Asks every session that holds memory of these devices, which are of one lease. Preallocated devices are
  /// left out: their memory stays with the lease.
  Broker::TrimRequest Start(std::span<const LogicalId> devices);
  /// Sees which answers have come, and asks again where more became idle. To be called now and then.
  void Continue(Broker::TrimRequest& request);
  /// Sessions that ignore orders, each at most once in 10 s. To be called about every half second.
  std::vector<Broker::IgnoredTrim> TakeIgnored();
  Broker::TrimRecord RecordOf(SessionId session) const;

 private:
  BrokerCore& core_;
};

}  // namespace lgpu

#endif  // LGPU_ALLOCATOR_BROKER_SESSION_TRIMS_H_
