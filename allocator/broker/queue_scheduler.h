#ifndef LGPU_ALLOCATOR_BROKER_QUEUE_SCHEDULER_H_
#define LGPU_ALLOCATOR_BROKER_QUEUE_SCHEDULER_H_

#include <map>
#include <optional>
#include <vector>

#include "allocator/broker/admission.h"
#include "allocator/broker/broker_tables.h"
#include "allocator/broker/charge_table.h"
#include "allocator/broker/giving_way.h"
#include "allocator/broker/trim_requests.h"
#include "allocator/broker/waiting_requests.h"

namespace lgpu {

/// A QueueScheduler serves the requests that wait for the cards: it knows which requests fit, which one has
/// the turn, and which ones nothing can serve. CardQueue has the order and the clock of turns.
///
/// What runs at the same time: nothing. Every call that changes memory or requests holds the broker's lock
/// and calls Serve before it gives the lock up, so a request that could be served never waits for another
/// event. RequestClock calls Serve when time alone changes something, at NextChange.
///
/// Why no request starves: while no turn runs, each request that fits is granted, one of each user after the
/// other. A request that does not fit gets a turn, in which the card gathers free memory for it alone. A turn
/// ends at its time, at the grant, or as soon as the request cannot be served, and after it no turn starts
/// for as long as it lasted: other requests are held back for half of the time at most. A user whose request
/// was served or had a turn goes to the end of the ring, so n users that wait each have a turn or a grant
/// within 2 x max_drain x n. A request that nothing can serve does not wait: it is refused at once if it
/// waits only for idle memory, or if all holders wait for each other and it is the youngest.
///
/// Where idle leases give way for a request (GivingWay), what they give never enters the free memory that
/// turns are about: the promise above is about the rest, and a request with a turn is not held back by it.
/// Where room is kept for a lease that gave way (KeptRoom), a request of a lease that never gives way fits if
/// it leaves as much.
///
/// Not thread-safe: the broker's lock guards it. What it is made of outlives it.
class QueueScheduler {
 public:
  QueueScheduler(BrokerTables& tables, WaitingRequests& waiting, ChargeTable& charges, TrimRequests& trims,
                 Admission& admission, GivingWay& giving_way)
      : tables_(tables),
        waiting_(waiting),
        charges_(charges),
        trims_(trims),
        admission_(admission),
        giving_way_(giving_way) {}

  /// To be called when memory of the card or under a limit may have become free, and when a request waits.
  /// Serves the requests that can be served, moves the card's turn on, and refuses requests that nothing can
  /// serve.
  void Serve(CardId card);
  /// When time alone gives Serve something to do; TimePoint::max(): never, as things are.
  Broker::TimePoint NextChange(CardId card) const;
  std::vector<Broker::Queued> QueueOf(CardId card) const;

 private:
  /// What a request in a card's queue waits for.
  struct Wish {
    Bytes need;              // of the card's free memory, with what it leaves of that
    TrimTable::Need& trims;  // of the request
    LogicalId device;        // its own memory there is no help to it
    SessionId session;
    bool patient = false;  // as of its Waiter
  };
  /// Memory that requests in a card's queue may hope for.
  struct Reach {
    Bytes free;
    Bytes coming_back;
    Bytes most;         // if sessions that do not wait themselves gave back all that they hold
    Bytes kept;         // as KeptOn
    bool idle = false;  // some sessions can be asked for idle memory
  };
  void ServeQueue(CardId card);
  /// Returns whether something changed.
  bool MoveTurnOn(CardId card);
  Wish WishOf(WaiterId id, Bytes kept);
  Reach ReachOf(CardId card) const;
  bool MayBeServed(WaiterId id, CardId card, const Reach& reach);
  /// Asks sessions for idle memory that the request with the turn lacks.
  void AskForCard(WaiterId id, CardId card, const Reach& reach);
  /// The youngest request, by a session that holds memory of the card, if all that do wait for the card. None
  /// while a charge waits that memory outside lgpu could serve: the programs there may end.
  std::optional<WaiterId> DeadlockVictim(CardId card);

  BrokerTables& tables_;
  WaitingRequests& waiting_;
  ChargeTable& charges_;
  TrimRequests& trims_;
  Admission& admission_;
  GivingWay& giving_way_;
  std::map<CardId, Broker::TimePoint> served_at_;
};

}  // namespace lgpu

#endif  // LGPU_ALLOCATOR_BROKER_QUEUE_SCHEDULER_H_
