#ifndef LGPU_ALLOCATOR_BROKER_WAITER_H_
#define LGPU_ALLOCATOR_BROKER_WAITER_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "allocator/broker/broker.h"
#include "allocator/broker/made_chunk.h"
#include "allocator/broker/trim_table.h"
#include "allocator/broker/waker.h"
#include "allocator/ledger.h"

namespace lgpu {

/// A ChargeWish is what a Waiter has beside its GrowSpec if it is a charge.
struct ChargeWish {
  CardId card;
  Bytes bytes;  // spec.at_least has them in whole granules, as if the session held none
  std::string what;
  Broker::TimePoint card_deadline;
  bool is_retry = false;  // the driver refused it: memory that the card reports as used may come back
};

/// A GuaranteeWish is what a Waiter has beside its GrowSpec if it asks for a guarantee of a card: for a
/// device that is made or resized, or to be reserved for a lease that waits to be made or to come back.
struct GuaranteeWish {
  enum class For { kNewDevice, kResize, kReservation };
  For what = For::kNewDevice;
  Broker::DeviceSpec spec;              // of the device; kReservation: its owner and lease_name only
  std::int64_t pid = 0;                 // of the lease's program; 0: unknown
  Ledger::LogicalOptions size = {};     // that the device is to have
  bool is_set_aside = false;            // the device is made, or has its new size
  Ledger::LogicalOptions before = {};   // kResize: the size that it had until then
  std::vector<Bytes> chunk_sizes = {};  // of a preallocated device: those to be made for `booked`
  MadeChunks made = {};                 // so far

  /// A resize that is refused is undone; one without a higher limit has its new size all the same.
  bool IsUndoneWhenRefused() const {
    return what == For::kResize && is_set_aside && size.limit > before.limit;
  }
};

/// An AskedLease was asked to give way for a request, and had its time.
struct AskedLease {
  LeaseKey lease;
  std::string name;
  Bytes given;
  bool was_idle = true;  // false: it was in use, and nothing was done
};

/// A Waiter is one request for memory, from the call that asks to its answer: for chunks, for a charge, or
/// for a guarantee. Its phase says what it needs next.
struct Waiter {
  enum class Phase {
    kNew,      // to be admitted
    kLimit,    // waits in its device's line: for room under the limit, or for the device's own leaving memory
    kCard,     // waits in its card's queue
    kBackend,  // is admitted again at `retry_at`: the backend had less than the ledger
    kSuspended,  // its lease is suspended: it is admitted again when that is resumed
    kBooked,     // `booked` is in the ledger, and chunks are to be made for it
    kBallast,    // the spare chunks `ballast` are to be freed for it
    kServed,
    kRefused,
  };
  /// Of a charge: `device` is the first that the lease has on the card. Of a guarantee: no session,
  /// `at_least` is what the card's free memory lacks by, and `device` is the one that is resized.
  Broker::GrowSpec spec;
  CardId card;
  std::string user;              // whose turns of the card it takes
  std::shared_ptr<Waker> waker;  // woken when it waits no more
  std::optional<ChargeWish> charge = {};
  std::optional<GuaranteeWish> guarantee = {};
  Phase phase = Phase::kNew;
  /// False: it waits only for memory that is idle or on its way back, and for turns, not for holders. So does
  /// each request whose timeout is over.
  bool is_patient = true;
  Broker::TimePoint retry_at;         // in kBackend
  TrimTable::Need need;               // in kLimit and kCard
  Bytes booked;                       // in kBooked
  std::vector<Chunk> taken;           // in kServed: spare chunks, which its session has
  std::vector<ChunkId> ballast = {};  // in kBallast: spare chunks, on their way back
  absl::Status refusal;               // in kRefused
  // Of a request that leases give way for (GivingWay).
  Bytes aside;                                         // in kCard: set aside for it alone
  std::vector<AskedLease> asked_leases = {};           // one that is there is not asked again
  std::optional<Broker::TimePoint> own_deadline = {};  // it waits longer than this; none: as it asked
  Broker::TimePoint suspended_at = {};                 // in kSuspended

  void WaitLonger(Broker::TimePoint until) {
    if (until <= spec.deadline) return;
    if (!own_deadline) own_deadline = spec.deadline;
    SetDeadline(until);
  }
  void EndLongerWait() {
    if (own_deadline) SetDeadline(*std::exchange(own_deadline, std::nullopt));
  }
  void SetDeadline(Broker::TimePoint deadline) {
    spec.deadline = deadline;
    if (charge) charge->card_deadline = deadline;
  }

  bool IsQueued() const { return phase == Phase::kLimit || phase == Phase::kCard; }
  bool Waits() const { return IsQueued() || phase == Phase::kBackend || phase == Phase::kSuspended; }
};

}  // namespace lgpu

#endif  // LGPU_ALLOCATOR_BROKER_WAITER_H_
