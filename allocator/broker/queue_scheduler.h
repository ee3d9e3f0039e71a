#ifndef LGPU_ALLOCATOR_BROKER_QUEUE_SCHEDULER_H_
#define LGPU_ALLOCATOR_BROKER_QUEUE_SCHEDULER_H_

#include <map>
#include <optional>
#include <vector>

#include "allocator/broker/admission.h"
#include "allocator/broker/broker_tables.h"
#include "allocator/broker/charge_table.h"
#include "allocator/broker/room_table.h"
#include "allocator/broker/trim_requests.h"

namespace lgpu {

/// A QueueScheduler serves the requests that wait for the cards: it knows which requests fit, which one has
/// the turn, and which ones nothing can serve. CardQueue has the order and the clock of turns.
///
/// Not thread-safe: the broker's lock guards it. What it is made of outlives it.
class QueueScheduler {
 public:
  QueueScheduler(BrokerTables& tables, ChargeTable& charges, TrimRequests& trims, Admission& admission,
                 RoomTable& rooms)
      : tables_(tables), charges_(charges), trims_(trims), admission_(admission), rooms_(rooms) {}

  /// To be called when memory of the card or under a limit may have become free, and when a request waits.
  /// Serves the requests that can be served, moves the card's turn on, and refuses requests that nothing can
  /// serve.
  void Serve(CardId card);
  /// Serve, if the turn of the card has had its time.
  void EndTurnInTime(CardId card);
  /// When Serve was last called for the card.
  Broker::TimePoint ServedAt(CardId card) { return served_at_[card]; }
  std::vector<Broker::Queued> QueueOf(CardId card) const;

 private:
  /// What a request in a card's queue waits for.
  struct Wish {
    Bytes need;              // of the card's free memory
    TrimTable::Need& trims;  // of the request
    LogicalId device;        // its own memory there is no help to it
    SessionId session;
    bool patient = false;  // it waits for holders, not only for memory that is idle or on its way back
  };
  /// Memory that requests in a card's queue may hope for.
  struct Reach {
    Bytes free;
    Bytes coming_back;
    Bytes most;         // if sessions that do not wait themselves gave back all that they hold
    bool idle = false;  // some sessions can be asked for idle memory
  };
  void ServeQueue(CardId card);
  /// Returns whether something changed.
  bool MoveTurnOn(CardId card);
  Wish WishOf(WaiterId id);
  Reach ReachOf(CardId card) const;
  bool MayBeServed(WaiterId id, CardId card, const Reach& reach);
  /// Asks sessions for idle memory that the request with the turn lacks.
  void AskForCard(WaiterId id, CardId card);
  /// Ends a request that waited only for memory that is idle or on its way back: no more comes.
  void GiveUp(WaiterId id);
  /// The youngest request, by a session that holds memory of the card, if all that do wait for the card. None
  /// while a charge waits that memory outside lgpu could serve: the programs there may end.
  std::optional<WaiterId> DeadlockVictim(CardId card);

  BrokerTables& tables_;
  ChargeTable& charges_;
  TrimRequests& trims_;
  Admission& admission_;
  RoomTable& rooms_;
  std::map<CardId, Broker::TimePoint> served_at_;
};

}  // namespace lgpu

#endif  // LGPU_ALLOCATOR_BROKER_QUEUE_SCHEDULER_H_
