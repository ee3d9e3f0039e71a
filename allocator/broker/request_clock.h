#ifndef LGPU_ALLOCATOR_BROKER_REQUEST_CLOCK_H_
#define LGPU_ALLOCATOR_BROKER_REQUEST_CLOCK_H_

#include "allocator/broker/admission.h"
#include "allocator/broker/broker_tables.h"
#include "allocator/broker/queue_scheduler.h"
#include "allocator/broker/waiting_requests.h"

namespace lgpu {

/// A RequestClock does what time alone brings about for requests that wait: a turn begins or ends, holders
/// are asked for idle memory once more, the backend is tried again, and the time of a request is over.
///
/// Not thread-safe: the broker's lock guards it. What it is made of outlives it.
class RequestClock {
 public:
  RequestClock(const BrokerTables& tables, WaitingRequests& waiting, Admission& admission,
               QueueScheduler& queues)
      : tables_(tables), waiting_(waiting), admission_(admission), queues_(queues) {}

  /// Does all that is due, and returns Next().
  Broker::TimePoint Tick();
  /// When Tick has something to do; TimePoint::max(): never, as things are.
  Broker::TimePoint Next() const;
  /// The request waits no more: it is CANCELLED, or has what it was given until now. Nothing happens where
  /// there is none of this id.
  void Withdraw(WaiterId id);
  /// No request for a guarantee waits any more.
  void EndGuarantees();

 private:
  void Look(WaiterId id, Waiter& waiter);
  Broker::TimePoint NextOf(const Waiter& waiter) const;
  void TryAgain(WaiterId id, Waiter& waiter);
  void EndLate(WaiterId id, Waiter& waiter);

  const BrokerTables& tables_;
  WaitingRequests& waiting_;
  Admission& admission_;
  QueueScheduler& queues_;
};

}  // namespace lgpu

#endif  // LGPU_ALLOCATOR_BROKER_REQUEST_CLOCK_H_
