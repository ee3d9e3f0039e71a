#ifndef LGPU_ALLOCATOR_BROKER_PENDING_REQUESTS_H_
#define LGPU_ALLOCATOR_BROKER_PENDING_REQUESTS_H_

#include <optional>
#include <vector>

#include "allocator/broker/admission.h"
#include "allocator/broker/broker_tables.h"
#include "allocator/broker/charge_table.h"
#include "allocator/broker/queue_scheduler.h"

namespace lgpu {

/// What has to be done for a request without the lock: chunks of `sizes` are to be made for what is charged,
/// or (`sizes` is empty) its ballast is to be freed.
struct Making {
  std::vector<Bytes> sizes;
  int backend_device = 0;
};

/// PendingRequests are those that wait: each is parked between the call that asked and the call that has its
/// answer.
///
/// Not thread-safe: the broker's lock guards it. What it is made of outlives it.
class PendingRequests {
 public:
  PendingRequests(BrokerTables& tables, ChargeTable& charges, Admission& admission, QueueScheduler& queues)
      : tables_(tables), charges_(charges), admission_(admission), queues_(queues) {}

  /// Admits a new request. Nothing is to be made: `answer` is its answer, or says that it waits.
  std::optional<Making> Place(WaiterId id, Waiter& mine, Broker::GrowAnswer& answer);
  /// As above, for a parked request, which is taken into `mine` where it waits no more. The session may have
  /// ended: the answer is an error.
  std::optional<Making> Continue(WaiterId id, Waiter& mine, Broker::GrowAnswer& answer);
  /// The time of a parked request is over at once, without the grace that others have. None of this id:
  /// nothing happens.
  void Withdraw(WaiterId id);
  /// The request is to be admitted again later: the backend had less than the ledger.
  void PutOff(WaiterId id, Waiter waiter, Broker::GrowAnswer& answer);
  /// Drops all requests of a session.
  void Drop(SessionId session);

 private:
  void Park(WaiterId id, Waiter waiter);
  void Forget(WaiterId id);
  /// Takes a parked request out if it waits no more; else says in `answer` how long it does.
  bool TakeIfSettled(WaiterId id, Waiter& mine, Broker::GrowAnswer& answer);
  void LookForIdle(Waiter& waiter);
  Broker::TimePoint NextLook(WaiterId id, const Waiter& waiter, Broker::TimePoint now) const;
  std::optional<Making> Conclude(Waiter& mine, Broker::GrowAnswer& answer);

  BrokerTables& tables_;
  ChargeTable& charges_;
  Admission& admission_;
  QueueScheduler& queues_;
};

}  // namespace lgpu

#endif  // LGPU_ALLOCATOR_BROKER_PENDING_REQUESTS_H_
