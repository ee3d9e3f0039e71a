#ifndef LGPU_ALLOCATOR_LEDGER_H_
#define LGPU_ALLOCATOR_LEDGER_H_

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "lgpu/bytes.h"
#include "lgpu/id.h"

namespace lgpu {

using CardId = Id<struct CardTag>;
using LogicalId = Id<struct LogicalTag>;
using WaiterId = Id<struct WaiterTag>;

/// A Ledger is the arithmetic of who holds how much of which card. The daemon's Broker and `local`
/// contexts both decide by it. It is pure: no device, no clock, no thread.
///
/// The invariants, which CheckInvariants() tests after every step of the property suite:
///
///   held(logical)    = granted + leaving           (leaving: returned or draining, not confirmed free)
///   held(logical)   <= roundup(limit), or what it was when the limit was lowered; never rising while over
///   guarantee       <= roundup(limit)
///   promised(card)   = sum over its logicals of max(guarantee, held) + overhead + reserve <= total
///
/// `foreign` is an observation and no part of these: it lowers what may be granted next, and can
/// make a card overcommitted. All roundings are to the card's granularity.
///
/// Queue: requests that are short of the card wait in the card's FIFO. A request inside its guarantee
/// never waits; no other request overtakes the head of the queue. Wrong ids are bugs and abort.
///
/// Not thread-safe: the owner brings a lock.
class Ledger {
 public:
  struct CardOptions {
    Bytes total;
    Bytes reserve;                                      // never granted
    Bytes granularity = Bytes(std::uint64_t{2} << 20);  // a power of two
  };
  struct LogicalOptions {
    Bytes limit;
    Bytes guarantee;  // set aside: nobody else can take it
  };
  enum class Shortage { kNone, kLimit, kCard };
  /// The answer to a request. With kNone the bytes are charged.
  struct Verdict {
    Shortage shortage = Shortage::kNone;
    Bytes short_by;         // how much is missing of the limit or the card
    Bytes coming_back;      // leaving memory that counts against it and will be free without anybody's doing
    bool hopeless = false;  // not even an otherwise idle card, and limit, would have room
  };
  struct LogicalView {
    CardId card;
    Bytes limit, guarantee;
    Bytes granted, leaving;
    Bytes held() const { return granted + leaving; }
  };
  struct CardView {
    Bytes total, reserve, overhead, foreign, granularity;
    Bytes held;      // sum of held
    Bytes promised;  // as in the invariant
    /// What can still be promised or granted beyond guarantees: total - promised - foreign, or zero.
    Bytes free() const;
    bool overcommitted() const;  // promised + foreign > total
  };

  /// INVALID_ARGUMENT: total below granularity or reserve, granularity no power of two.
  absl::StatusOr<CardId> AddCard(const CardOptions& options);

  /// INVALID_ARGUMENT: zero limit, guarantee above limit, either above what the card can ever hold.
  /// RESOURCE_EXHAUSTED: the guarantee cannot be set aside now (text with the numbers; the caller, who
  /// knows names, makes the Refusal of it).
  absl::StatusOr<LogicalId> AddLogical(CardId card, const LogicalOptions& options);
  /// FAILED_PRECONDITION while it holds memory or has waiters.
  absl::Status RemoveLogical(LogicalId logical);
  /// A lower limit than held is accepted: nothing more is granted until held <= limit. Errors as
  /// AddLogical; on an error nothing changes.
  absl::Status Resize(LogicalId logical, const LogicalOptions& options);

  /// Charges `bytes` (a multiple of the granularity, not zero) or says what is missing.
  Verdict Request(LogicalId logical, Bytes bytes);
  /// A granted step failed and nothing was handed out: the bytes are free again.
  void Refund(LogicalId logical, Bytes bytes);
  /// Granted bytes start to leave (returned, or their holder died): still held.
  void StartLeaving(LogicalId logical, Bytes bytes);
  /// Leaving bytes are confirmed free.
  void ConfirmFree(LogicalId logical, Bytes bytes);
  /// Charges memory that exists already, whatever the card says (re-adoption after a restart). It may
  /// put the logical device over its limit, never above what is asked here.
  void Adopt(LogicalId logical, Bytes bytes);

  /// Device memory of clients that is in no chunk. RESOURCE_EXHAUSTED if the card has no room.
  absl::Status ChargeOverhead(CardId card, Bytes bytes);
  void RefundOverhead(CardId card, Bytes bytes);
  /// What others use, as observed; 0 where it is unknown.
  void SetForeign(CardId card, Bytes bytes);

  /// Joins the end of the card's queue; for requests that were short of the card.
  WaiterId Enqueue(LogicalId logical, Bytes bytes);
  /// Leaves the queue; fine for one that was served already.
  void Leave(WaiterId waiter);
  /// Serves the queue of a card from its head as far as room goes: charges each and takes it out. A head
  /// that is now short of its limit is taken out uncharged and listed in `failed`.
  struct Served {
    std::vector<WaiterId> granted;
    std::vector<WaiterId> failed;
  };
  Served ServeQueue(CardId card);
  /// If every logical device that holds memory of the card has a waiter on it and nothing is leaving:
  /// the youngest of these waiters, whom to refuse. Nothing otherwise.
  std::optional<WaiterId> DeadlockVictim(CardId card) const;

  LogicalView View(LogicalId logical) const;
  CardView View(CardId card) const;
  std::vector<LogicalId> LogicalsOf(CardId card) const;
  std::vector<WaiterId> QueueOf(CardId card) const;

  /// OK, or INTERNAL naming the first invariant that does not hold, with its numbers.
  absl::Status CheckInvariants() const;

 private:
  struct Card;
  struct Logical;
  struct Waiter;
};

}  // namespace lgpu

#endif  // LGPU_ALLOCATOR_LEDGER_H_
