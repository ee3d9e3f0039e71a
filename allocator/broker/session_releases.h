#ifndef LGPU_ALLOCATOR_BROKER_SESSION_RELEASES_H_
#define LGPU_ALLOCATOR_BROKER_SESSION_RELEASES_H_

#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "allocator/broker/broker.h"
#include "allocator/broker/release_order.h"

namespace lgpu {

struct BrokerCore;

/// SessionReleases passes orders to run release hooks to sessions, and their answers back; GivingWay decides
/// which lease is asked.
///
/// Thread-safe: it takes the broker's lock. The core outlives it.
class SessionReleases {
 public:
  explicit SessionReleases(BrokerCore& core) : core_(core) {}

  /// New orders to run the hook; with no session: to have leases suspended. Answer answers each of them.
  std::vector<ReleaseOrder> TakeOrders(SessionId session);
  /// INVALID_ARGUMENT: the session was not asked this.
  absl::Status Answer(SessionId session, ReleaseId id, ReleaseOutcome outcome);
  /// Until when the request waits, where that is longer than it asked for.
  std::optional<Broker::TimePoint> LongerWait(WaiterId request) const;
  /// The leases that have been asked and have not answered yet.
  std::vector<GivingWayView> Views() const;
  GivingWayCounters counters() const;
  /// What happened since the last call, oldest first.
  std::vector<GivingWayNews> TakeNews();

 private:
  BrokerCore& core_;
};

}  // namespace lgpu

#endif  // LGPU_ALLOCATOR_BROKER_SESSION_RELEASES_H_
