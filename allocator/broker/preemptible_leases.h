#ifndef LGPU_ALLOCATOR_BROKER_PREEMPTIBLE_LEASES_H_
#define LGPU_ALLOCATOR_BROKER_PREEMPTIBLE_LEASES_H_

#include <set>

#include "allocator/broker/broker_tables.h"
#include "allocator/broker/overhead_table.h"
#include "allocator/broker/waiter.h"

namespace lgpu {

/// PreemptibleLeases are the leases that may be suspended for others, as their owners said.
///
/// Not thread-safe: the broker's lock guards them. What they are made of outlives them.
class PreemptibleLeases {
 public:
  PreemptibleLeases(BrokerTables& tables, const OverheadTable& overheads)
      : tables_(tables), overheads_(overheads) {}

  bool Contains(LeaseKey lease) const;
  bool IsEmpty() const;
  /// It may be suspended at work, after it ran for a while.
  bool GivesWayAtWork(LeaseKey lease) const;
  /// It has memory of a program that moves it by itself.
  bool SuspendsItself(LeaseKey lease) const;
  /// Those whose programs can be moved, as far as the broker knows, and are not in host memory.
  std::set<LeaseKey> Movable() const;
  bool IsMovable(LeaseKey lease) const;
  /// Of these, those that get no chunks at this moment.
  std::set<LeaseKey> MovableNow() const;
  /// What the request gets can be taken back: others may take it, as soon as its lease gives way.
  bool CanBeTakenBack(const Waiter& waiter) const;
  /// How much of the card's memory becomes free for the request when these have given way, some time: those
  /// that give way at work; the others too, if they are idle by then.
  struct Later {
    Bytes certain;
    Bytes likely;
  };
  Later YieldLater(const Waiter& waiter) const;
  /// Others may be suspended for the request. Fair trade: what it gets can be taken back in the same way. So
  /// its own lease can be suspended, as far as is known, and it is a charge, chunks of a program that
  /// suspends itself, or the room of a lease that is resumed.
  bool MayPreempt(const Waiter& waiter) const;
  /// What the card has more while the lease is suspended: its guarantees count as held.
  Bytes YieldOf(LeaseKey lease, CardId card) const;
  /// Of all that are Movable together.
  Bytes YieldOfAll(CardId card) const;

 private:
  Bytes YieldOf(const std::set<LeaseKey>& leases, CardId card) const;

  BrokerTables& tables_;
  const OverheadTable& overheads_;
};

}  // namespace lgpu

#endif  // LGPU_ALLOCATOR_BROKER_PREEMPTIBLE_LEASES_H_
