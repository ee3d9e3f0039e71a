#ifndef LGPU_ALLOCATOR_BROKER_WAITER_H_
#define LGPU_ALLOCATOR_BROKER_WAITER_H_

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "allocator/broker/broker.h"
#include "allocator/broker/trim_table.h"

namespace lgpu {

/// A ChargeWish is what a Waiter has beside its GrowSpec if it is a charge.
struct ChargeWish {
  CardId card;
  Bytes bytes;  // spec.at_least has them in whole granules, as if the session held none
  std::string what;
  Broker::TimePoint card_deadline;
  bool is_retry = false;  // the driver refused it: memory that the card reports as used may come back
};

/// A Waiter is one request for memory, from Grow or ChargeCard to its answer. Its phase says what it needs
/// next.
struct Waiter {
  enum class Phase {
    kNew,      // to be admitted
    kLimit,    // waits in its device's line for memory under the limit
    kCard,     // waits in its card's queue
    kBackend,  // is admitted again at `retry_at`: the backend had less than the ledger
    kCharged,  // `charged` is in the ledger, and chunks are to be made for it
    kBallast,  // the spare chunks `ballast` are to be freed for it
    kServed,
    kRefused,
  };
  Broker::GrowSpec spec;  // of a charge: `device` is the first that the lease has on the card
  std::optional<ChargeWish> charge = {};
  Phase phase = Phase::kNew;
  Broker::TimePoint retry_at;         // in kBackend
  Broker::TimePoint next_look;        // in kCard
  TrimTable::Need need;               // in kLimit and kCard
  bool in_grace = false;              // its timeout is over: it waits for idle memory and turns only
  bool is_withdrawn = false;          // its session has given it up
  Bytes charged;                      // in kCharged
  std::vector<Chunk> taken;           // in kServed: spare chunks, which its session has
  std::vector<ChunkId> ballast = {};  // in kBallast: spare chunks, on their way back
  absl::Status refusal;               // in kRefused

  bool IsQueued() const { return phase == Phase::kLimit || phase == Phase::kCard; }
  /// It waits for the backend, and the backend may not be asked again yet.
  bool IsPutOff(Broker::TimePoint now) const {
    return phase == Phase::kBackend && now < std::min(retry_at, spec.deadline);
  }
};

/// A Room is a guarantee that waits in a card's queue to be set aside.
struct Room {
  CardId card;
  std::string user;
  Bytes bytes;
  Broker::TimePoint since;
  absl::FunctionRef<absl::Status()> attempt;  // called with the broker's lock
  std::string lease_name = {};
  std::int64_t pid = 0;
  bool patient = false;  // it waits for holders too
  TrimTable::Need need = {};
  absl::Status status = {};
  bool over = false;  // it left the queue
};

}  // namespace lgpu

#endif  // LGPU_ALLOCATOR_BROKER_WAITER_H_
