#ifndef LGPU_ALLOCATOR_BROKER_BROKER_CORE_H_
#define LGPU_ALLOCATOR_BROKER_BROKER_CORE_H_

#include <functional>
#include <memory>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "allocator/broker/admission.h"
#include "allocator/broker/broker.h"
#include "allocator/broker/broker_tables.h"
#include "allocator/broker/charge_table.h"
#include "allocator/broker/chunk_table.h"
#include "allocator/broker/giving_way.h"
#include "allocator/broker/guarantees.h"
#include "allocator/broker/kept_room.h"
#include "allocator/broker/overhead_table.h"
#include "allocator/broker/pending_requests.h"
#include "allocator/broker/preemptible_leases.h"
#include "allocator/broker/queue_scheduler.h"
#include "allocator/broker/refusal_builder.h"
#include "allocator/broker/request_clock.h"
#include "allocator/broker/trim_requests.h"
#include "allocator/broker/unreturned_memory.h"
#include "allocator/broker/waiting_requests.h"
#include "base/mutex.h"

namespace lgpu {

/// A BrokerCore is the state of one Broker, the classes that decide about it, and the lock that guards both.
/// The classes that do the broker's calls share it.
///
/// The backend, and the log's Commit, are called without the lock.
struct BrokerCore {
  BrokerCore(DeviceMemory& device_memory, GrantLog& grant_log, const Broker::Options& options)
      : backend(device_memory),
        log(grant_log),
        tick_waker(options.tick_waker),
        leaves_process(options.leaves_process),
        now(options.clock),
        tables(grant_log, options),
        waiting(tables, options.max_drain, options.give_way_wait, options.min_run) {}

  DeviceMemory& backend;
  GrantLog& log;
  const std::shared_ptr<Waker> tick_waker;
  const bool leaves_process;
  const std::function<Broker::TimePoint()> now;

  mutable Mutex mutex;
  BrokerTables tables ABSL_GUARDED_BY(mutex);
  WaitingRequests waiting ABSL_GUARDED_BY(mutex);
  ChunkTable chunks ABSL_GUARDED_BY(mutex){tables};
  ChargeTable charges ABSL_GUARDED_BY(mutex){tables};
  RefusalBuilder refusals ABSL_GUARDED_BY(mutex){tables, waiting};
  TrimRequests trims ABSL_GUARDED_BY(mutex){tables};
  OverheadTable overheads ABSL_GUARDED_BY(mutex){tables};
  PreemptibleLeases preemptible ABSL_GUARDED_BY(mutex){tables, overheads};
  Guarantees guarantees ABSL_GUARDED_BY(mutex){tables, waiting, preemptible};
  KeptRoom kept ABSL_GUARDED_BY(mutex){tables, waiting, preemptible};
  Admission admission ABSL_GUARDED_BY(mutex){tables,     waiting,     chunks, charges, trims,
                                             guarantees, preemptible, kept,   refusals};
  GivingWay giving_way ABSL_GUARDED_BY(mutex){tables, waiting, guarantees, trims, admission, preemptible};
  QueueScheduler scheduler ABSL_GUARDED_BY(mutex){tables, waiting, charges, trims, admission, giving_way};
  PendingRequests requests ABSL_GUARDED_BY(mutex){tables, waiting, charges, admission, scheduler};
  RequestClock clock ABSL_GUARDED_BY(mutex){tables, waiting, admission, scheduler};
  UnreturnedMemory unreturned ABSL_GUARDED_BY(mutex){tables};

  CondVar card_given;  // a card that was taken to free memory of it is given back
  Broker::TimePoint next_tick ABSL_GUARDED_BY(mutex) = Broker::TimePoint::max();  // as Tick was told last

  void UnlockAndWake() ABSL_UNLOCK_FUNCTION(mutex) {
    if (std::exchange(waiting.times_changed, false)) {
      const Broker::TimePoint next = clock.Next();
      if (next < next_tick) {
        next_tick = next;
        tables.wakes.push_back(tick_waker);
      }
    }
    const BrokerTables::Wakes wakes = std::exchange(tables.wakes, {});
    mutex.Unlock();
    for (const std::shared_ptr<Waker>& waker : wakes) {
      if (waker != nullptr) waker->Wake();
    }
  }
};

/// A BrokerLock holds the lock of a BrokerCore for its own lifetime. As soon as it has given the lock up it
/// wakes those that the tables name.
class ABSL_SCOPED_LOCKABLE BrokerLock {
 public:
  explicit BrokerLock(BrokerCore& core) ABSL_EXCLUSIVE_LOCK_FUNCTION(core.mutex) : core_(core) {
    core.mutex.Lock();
  }
  ~BrokerLock() ABSL_UNLOCK_FUNCTION() {
    core_.mutex.AssertHeld();
    core_.UnlockAndWake();
  }
  BrokerLock(const BrokerLock&) = delete;
  BrokerLock& operator=(const BrokerLock&) = delete;

 private:
  BrokerCore& core_;
};

}  // namespace lgpu

#endif  // LGPU_ALLOCATOR_BROKER_BROKER_CORE_H_
