#ifndef LGPU_ALLOCATOR_BROKER_WAITING_REQUESTS_H_
#define LGPU_ALLOCATOR_BROKER_WAITING_REQUESTS_H_

#include <chrono>
#include <cstdint>
#include <map>
#include <vector>

#include "absl/status/status.h"
#include "allocator/broker/broker_tables.h"
#include "allocator/broker/card_queue.h"
#include "allocator/broker/release_order.h"
#include "allocator/broker/waiter.h"

namespace lgpu {

/// WaitingRequests are the requests of one Broker that wait, and the queues of its cards. The classes that
/// decide about requests share them; here are look-ups.
///
/// Not thread-safe: the broker's lock guards them. The tables outlive them.
struct WaitingRequests {
  WaitingRequests(BrokerTables& broker_tables, std::chrono::milliseconds longest_turn,
                  std::chrono::milliseconds longest_giving_way, std::chrono::milliseconds shortest_run)
      : tables(broker_tables),
        max_drain(longest_turn),
        give_way_wait(longest_giving_way),
        min_run(shortest_run) {}

  BrokerTables& tables;
  const std::chrono::milliseconds max_drain;
  const std::chrono::milliseconds give_way_wait;
  const std::chrono::milliseconds min_run;
  std::map<CardId, CardQueue> queues;       // of all cards, of the ids of waiters
  std::map<WaiterId, Waiter> waiters;       // those that wait, and those whose answer was not taken
  std::map<WaiterId, LogicalId> set_aside;  // devices that no lease has, for leases and for GivingWay
  std::vector<GivingWayNews> news;          // since TakeNews of GivingWay
  /// A request waits, or what it waits for has changed: Tick may be due earlier.
  bool times_changed = false;
  bool stopping = false;  // no request for a guarantee waits any more
  std::uint64_t last_waiter = 0;

  /// For all cards of the tables.
  void AddQueues();
  WaiterId NewWaiter() { return WaiterId{++last_waiter}; }
  CardQueue& QueueOf(const Waiter& waiter) { return queues.at(waiter.card); }
  void Wake(const Waiter& waiter) const { tables.wakes.push_back(waiter.waker); }
  /// Each request stands in its card's queue where its phase says so, and nowhere else. Only there are bytes
  /// set aside for it, and the ledger has them.
  absl::Status CheckInvariants() const;
};

}  // namespace lgpu

#endif  // LGPU_ALLOCATOR_BROKER_WAITING_REQUESTS_H_
