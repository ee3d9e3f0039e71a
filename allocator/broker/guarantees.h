#ifndef LGPU_ALLOCATOR_BROKER_GUARANTEES_H_
#define LGPU_ALLOCATOR_BROKER_GUARANTEES_H_

#include "absl/status/status.h"
#include "allocator/broker/broker_tables.h"
#include "allocator/broker/preemptible_leases.h"
#include "allocator/broker/waiting_requests.h"

namespace lgpu {

/// Guarantees sets guarantees aside: for devices that are made or resized, and for leases that wait to be
/// made.
///
/// Not thread-safe: the broker's lock guards it. The tables outlive it.
class Guarantees {
 public:
  Guarantees(BrokerTables& tables, WaitingRequests& waiting, const PreemptibleLeases& preemptible)
      : tables_(tables), waiting_(waiting), preemptible_(preemptible) {}

  /// Does what a request for a guarantee asks for: makes the device, gives it its new size, or sets the bytes
  /// aside for a lease. The chunks of a new preallocated device are charged. RESOURCE_EXHAUSTED: the card has
  /// too little, and nothing has changed.
  absl::Status SetAside(WaiterId id, Waiter& waiter);
  /// A resize is refused: the device has the size again that it had. Spare chunks may be beyond it.
  void Undo(const Waiter& waiter);
  /// Gives what was set aside for the lease `spec.room` to a device that is about to be made. False: that is
  /// less than the guarantee, and it is free.
  bool TakeFrom(const Broker::DeviceSpec& spec, Bytes guarantee);
  /// What is left of what was set aside for a request is free. False: nothing was.
  bool Free(WaiterId request);
  /// Sets more bytes, which the card has free, aside for a request that waits for the card.
  void SetMoreAside(WaiterId id, Waiter& waiter, Bytes more);

 private:
  absl::Status MakeDevice(Waiter& waiter);
  absl::Status ResizeDevice(Waiter& waiter);
  absl::Status SetAsideForLease(WaiterId id, const Waiter& waiter);

  BrokerTables& tables_;
  WaitingRequests& waiting_;
  const PreemptibleLeases& preemptible_;
};

}  // namespace lgpu

#endif  // LGPU_ALLOCATOR_BROKER_GUARANTEES_H_
