#ifndef LGPU_ALLOCATOR_BROKER_GRANTS_H_
#define LGPU_ALLOCATOR_BROKER_GRANTS_H_

#include <optional>

#include "allocator/broker/broker_core.h"
#include "allocator/broker/card_observer.h"
#include "allocator/broker/chunk_reclaimer.h"
#include "allocator/broker/chunk_returns.h"

namespace lgpu {

/// Grants does requests for memory: it checks them, makes chunks for those that are admitted, and gives
/// an answer away as soon as the log has it.
///
/// Thread-safe: it takes the broker's lock, and calls the backend and the log's Commit without it. What it is
/// made of outlives it.
class Grants {
 public:
  Grants(BrokerCore& core, ChunkReclaimer& reclaimer, ChunkReturns& returns, CardObserver& observer)
      : core_(core), reclaimer_(reclaimer), returns_(returns), observer_(observer) {}

  // As the calls of Broker.
  Broker::Answer Grow(const Broker::GrowSpec& spec);
  Broker::Answer Take(WaiterId id);
  Broker::Answer ChargeCard(const Broker::ChargeSpec& spec);

 private:
  absl::Status CheckGrow(const Broker::GrowSpec& spec) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(core_.mutex);
  absl::StatusOr<Waiter> CheckCharge(const Broker::ChargeSpec& spec) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(core_.mutex);
  Waiter NewRequest(const Broker::GrowSpec& spec) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(core_.mutex);
  /// Makes what is to be made, and logs the answer.
  Broker::Answer Finish(WaiterId id, Waiter mine, const std::optional<Making>& making, Broker::Answer answer);
  /// Makes the chunks of a booked request, and does what is left of it.
  Broker::Answer MakeChunks(WaiterId id, Waiter mine, const Making& making);
  /// The chunks that were made for a request of a preallocated device are spare now: the request is served
  /// from these and from those that were there. If other sessions took them meanwhile it is admitted again.
  std::optional<Making> ServeFromSpare(WaiterId id, Waiter& mine, const absl::Status& made,
                                       Broker::Answer& answer) ABSL_EXCLUSIVE_LOCKS_REQUIRED(core_.mutex);
  /// A NotMadeRequest is one whose chunks the backend did not make. `others_leave`: it may have more soon.
  struct NotMadeRequest {
    Waiter waiter;
    absl::Status status;
    bool others_leave = false;
  };
  /// The card is observed: a program may have taken memory that the ledger did not know of, a new context for
  /// instance. Where the ledger sees now that the card is full, the request waits for the card as any other.
  Broker::Answer LookAgain(WaiterId id, NotMadeRequest request);
  /// The backend had too little for a booked request. `may_come`: it may have more soon.
  Broker::Answer NotMade(WaiterId id, Waiter mine, const absl::Status& status, bool may_come)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(core_.mutex);
  /// Frees spare chunks for a request, and admits the request again.
  Broker::Answer FreeBallast(WaiterId id, Waiter mine);
  /// The answer, once its chunks or its charge are in the log; otherwise they are taken back.
  Broker::Answer Logged(Broker::Answer answer);
  void TakeBack(const Broker::Answer& answer);

  BrokerCore& core_;
  ChunkReclaimer& reclaimer_;
  ChunkReturns& returns_;
  CardObserver& observer_;
};

}  // namespace lgpu

#endif  // LGPU_ALLOCATOR_BROKER_GRANTS_H_
