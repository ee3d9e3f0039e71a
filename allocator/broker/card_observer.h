#ifndef LGPU_ALLOCATOR_BROKER_CARD_OBSERVER_H_
#define LGPU_ALLOCATOR_BROKER_CARD_OBSERVER_H_

#include <map>
#include <set>
#include <string>
#include <vector>

#include "allocator/broker/broker_core.h"

namespace lgpu {

/// A CardObserver takes the reports of real cards, and has the OverheadTable account for them.
///
/// Thread-safe: it takes the broker's lock, and calls the backend without it. The core outlives it.
class CardObserver {
 public:
  explicit CardObserver(BrokerCore& core) : core_(core) {}

  // As ObserveCards and StillListed of Broker.
  void ObserveCards();
  std::set<SessionId> StillListed(const std::vector<SessionId>& sessions);
  /// Observes one card, at most every kBackendRetry.
  void ObserveCard(const std::string& uuid);

 private:
  BrokerCore& core_;
  std::map<CardId, Broker::TimePoint> observed_at_ ABSL_GUARDED_BY(core_.mutex);  // by ObserveCard
};

}  // namespace lgpu

#endif  // LGPU_ALLOCATOR_BROKER_CARD_OBSERVER_H_
