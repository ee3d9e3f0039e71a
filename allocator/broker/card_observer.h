#ifndef LGPU_ALLOCATOR_BROKER_CARD_OBSERVER_H_
#define LGPU_ALLOCATOR_BROKER_CARD_OBSERVER_H_

#include <chrono>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "allocator/broker/broker.h"

namespace lgpu {

struct BrokerCore;

/// A CardObserver takes the reports of real cards, has the OverheadTable account for them, and tells what
/// they show: memory beside chunks, and memory that programs keep.
///
/// Thread-safe: it takes the broker's lock, and calls the backend without it. The core outlives it.
class CardObserver {
 public:
  /// Memory that a session returned and its card does not have.
  struct Unreturned {
    SessionId session;
    Bytes bytes;
  };
  /// A process that uses more of a card than what it has charged, was granted, and its overhead may be.
  struct Uncharged {
    std::int64_t pid = 0;
    int card_index = 0;
    Bytes beside;                        // what it has charged and was granted
    Bytes allowed;                       // BrokerCard::watched_overhead
    std::set<std::int64_t> listed = {};  // all processes on the card
  };
  /// Memory of the cards that processes use beside chunks, where it was measured; else their allowance.
  struct Overheads {
    std::map<SessionId, Bytes> of_session;  // of the session's process
    std::map<std::pair<LeaseKey, CardId>, Bytes> of_lease;
  };

  explicit CardObserver(BrokerCore& core) : core_(core) {}

  /// Reads the reports of real cards that have them: memory that a program uses beside chunks replaces its
  /// allowance; memory of unknown processes counts as foreign and lowers what may be granted. To be called
  /// about every second.
  void ObserveCards();
  /// Observes one card, at most every kBackendRetry.
  void ObserveCard(CardId card);
  /// The same of the card with this UUID, if there is one.
  void ObserveCard(const std::string& uuid);
  /// Memory of a card that processes without a session use, as observed.
  void SetForeign(CardId card, Bytes bytes);

  /// The process of a draining session has more memory of a card, as the card's driver lists it, than what
  /// the process's other sessions account for. False where drivers list no processes.
  bool IsStillListed(SessionId session);
  /// Processes of the last two readings that use more than the card's overhead allowance and 64 MiB. None on
  /// cards without an allowance, where nothing is known of contexts, and on MIG instances, whose lists do not
  /// tell processes apart.
  std::vector<Uncharged> UnchargedUse() const;
  Overheads overheads() const;
  /// What the other sessions of the session's lease were lent on a card for charges and do not use. The sums
  /// over all sessions are taken anew every kUnusedAge.
  Bytes UnusedByOthers(SessionId session, CardId card);
  /// Takes those sums anew.
  void SumUnused();
  /// Memory that a session returned and its card does not have after a grace: a process keeps it. It stays
  /// charged to the session, whose requests are refused meanwhile. Only of real cards that report their
  /// memory.
  Bytes UnreturnedBy(SessionId session) const;
  /// The unreturned memory that was found since the last call.
  std::vector<Unreturned> TakeUnreturned();

 private:
  static constexpr std::chrono::milliseconds kUnusedAge{20};
  struct Unused {
    absl::flat_hash_map<std::pair<LeaseKey, CardId>, Bytes> of_lease;
    absl::flat_hash_map<std::pair<SessionId, CardId>, Bytes> of_session;
    Broker::TimePoint at{};
  };
  void SumUnusedLocked();

  BrokerCore& core_;
  Unused unused_;  // guarded by the broker's lock
};

}  // namespace lgpu

#endif  // LGPU_ALLOCATOR_BROKER_CARD_OBSERVER_H_
