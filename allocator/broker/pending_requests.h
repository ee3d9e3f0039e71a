#ifndef LGPU_ALLOCATOR_BROKER_PENDING_REQUESTS_H_
#define LGPU_ALLOCATOR_BROKER_PENDING_REQUESTS_H_

#include <optional>
#include <vector>

#include "allocator/broker/admission.h"
#include "allocator/broker/broker_tables.h"
#include "allocator/broker/charge_table.h"
#include "allocator/broker/queue_scheduler.h"
#include "allocator/broker/waiting_requests.h"

namespace lgpu {

/// What has to be done for a request without the lock: chunks of `sizes` are to be made for what is booked,
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
  PendingRequests(BrokerTables& tables, WaitingRequests& waiting, ChargeTable& charges, Admission& admission,
                  QueueScheduler& queues)
      : tables_(tables), waiting_(waiting), charges_(charges), admission_(admission), queues_(queues) {}

  /// Admits a new request. Where it waits it is parked: false. True: `mine` waits no more.
  bool Settle(WaiterId id, Waiter& mine);
  /// Takes a parked request out, if it waits no more.
  bool Take(WaiterId id, Waiter& mine);
  /// A request that waits, or whose answer is to be taken.
  void Park(WaiterId id, Waiter waiter);
  /// The request is to be admitted again later: the backend had less than the ledger.
  void PutOff(WaiterId id, Waiter waiter);
  void Forget(WaiterId id);
  /// Drops all requests of a session.
  void Drop(SessionId session);

  // For chunks and charges.
  /// Settle. Nothing is to be made: `answer` is its answer, or says that it waits.
  std::optional<Making> Place(WaiterId id, Waiter& mine, Broker::Answer& answer);
  /// Take, and as above. The session may have ended: the answer is an error.
  std::optional<Making> Continue(WaiterId id, Waiter& mine, Broker::Answer& answer);

 private:
  std::optional<Making> Conclude(Waiter& mine, Broker::Answer& answer);

  BrokerTables& tables_;
  WaitingRequests& waiting_;
  ChargeTable& charges_;
  Admission& admission_;
  QueueScheduler& queues_;
};

}  // namespace lgpu

#endif  // LGPU_ALLOCATOR_BROKER_PENDING_REQUESTS_H_
