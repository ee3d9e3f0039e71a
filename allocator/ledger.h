#ifndef LGPU_ALLOCATOR_LEDGER_H_
#define LGPU_ALLOCATOR_LEDGER_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <set>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "lgpu/bytes.h"
#include "lgpu/id.h"

namespace lgpu {

using CardId = Id<struct CardTag>;
using LogicalId = Id<struct LogicalTag>;

/// A Ledger counts the memory that each logical device holds of each card. The Broker of lgpud and of `local`
/// contexts decides by it. It is pure: no device, no clock, no thread.
///
/// The invariants, which CheckInvariants() tests after every step of the property suite:
///
///   held(logical)    = granted + leaving           (leaving: returned or draining, not confirmed free)
///   held(logical)   <= roundup(limit), or its value when the limit was lowered; never rising while over
///   guarantee       <= roundup(limit)
///   promised(card)   = sum over its logicals of max(guarantee, held) + overhead + reserve <= total,
///                      or its value after Adopt; never rising while over
///
/// `foreign` is an observation and no part of these: it lowers what may be granted next, and can
/// make a card overcommitted. All roundings are to the card's granularity.
///
/// The Ledger knows no queue: its owner asks again for a request that was short
/// (allocator/broker/card_queue.h).
///
/// Wrong ids, amounts that are no multiple of the granularity and giving back more than there is are bugs
/// and abort.
///
/// Not thread-safe: the owner brings a lock.
class Ledger {
 public:
  struct CardOptions {
    Bytes total = {};
    Bytes reserve = {};                                 // never granted
    Bytes granularity = Bytes(std::uint64_t{2} << 20);  // a power of two
  };
  struct LogicalOptions {
    Bytes limit = {};
    Bytes guarantee = {};  // set aside: no other device can take it
  };
  enum class Shortage { kNone, kLimit, kCard };
  /// The answer to a request. With kNone the bytes are charged.
  struct Verdict {
    Shortage shortage = Shortage::kNone;
    Bytes short_by;     // how much is missing of the limit or the card
    Bytes coming_back;  // leaving memory that counts against it and becomes free by itself
    /// The request would not fit even if all leaving memory of this logical device came back, and (short of
    /// the card) all memory that other devices hold beyond their guarantees, and all foreign memory.
    bool hopeless = false;
  };
  struct LogicalView {
    CardId card;
    Bytes limit;      // as asked
    Bytes guarantee;  // rounded up: the memory that is set aside
    Bytes granted, leaving;
    Bytes held() const { return granted + leaving; }
  };
  struct CardView {
    Bytes total, reserve, overhead, foreign, granularity;
    Bytes held;      // sum of held
    Bytes promised;  // as in the invariant
    /// Memory that can still be promised or granted beyond guarantees: total - promised - foreign, or zero.
    Bytes free() const;
    bool overcommitted() const;  // promised + foreign > total
  };

  /// INVALID_ARGUMENT: total below granularity or reserve, granularity no power of two.
  absl::StatusOr<CardId> AddCard(const CardOptions& options);

  /// Whether a logical device may have this size at all: OK, or the INVALID_ARGUMENT of AddLogical.
  absl::Status CheckSize(CardId card, const LogicalOptions& options) const {
    return CheckOptions(CardOf(card), options, Bytes());
  }
  /// The same of Resize, at any time: a limit that is not above the present one is no more than the card may
  /// hold.
  absl::Status CheckResize(LogicalId logical, const LogicalOptions& options) const {
    const Logical& resized = LogicalOf(logical);
    return CheckOptions(CardOf(resized.card), options, resized.limit);
  }
  /// INVALID_ARGUMENT: zero limit, guarantee above limit, either above what the card can ever hold.
  /// RESOURCE_EXHAUSTED: the guarantee cannot be set aside now (text with the numbers; the caller, which
  /// knows names, makes the Refusal of it).
  absl::StatusOr<LogicalId> AddLogical(CardId card, const LogicalOptions& options);
  /// As AddLogical, for a logical device of an earlier ledger: keeps its id, and ignores what the card has
  /// left (a promise above the card's total never rises, as after Adopt). ALREADY_EXISTS: the id is taken.
  absl::Status RestoreLogical(LogicalId id, CardId card, const LogicalOptions& options);
  /// Ids up to this one are never given out.
  void SkipIds(LogicalId last) { last_logical_ = std::max(last_logical_, last.value); }
  /// FAILED_PRECONDITION while it holds memory.
  absl::Status RemoveLogical(LogicalId logical);
  /// A lower limit than held is accepted: nothing more is granted until held <= limit. Errors as
  /// AddLogical; on an error nothing changes.
  absl::Status Resize(LogicalId logical, const LogicalOptions& options);

  /// Charges `bytes` (a multiple of the granularity, not zero) or says what is missing.
  Verdict Request(LogicalId logical, Bytes bytes);
  /// As Request, and charges nothing.
  Verdict Check(LogicalId logical, Bytes bytes) const;
  /// The shares of `bytes` (as for Request) of several logical devices of one card: inside their guarantees
  /// first, then in the order given. With kNone, Request succeeds for each of `parts`, none of which is zero.
  /// Short of the limit: `parts` fill all room.
  struct Split {
    Verdict verdict;
    std::vector<std::pair<LogicalId, Bytes>> parts;
    Bytes need;  // of the card's free memory, for `parts`
  };
  Split CheckSplit(const std::vector<LogicalId>& logicals, Bytes bytes) const;
  /// How much of the card's free memory `bytes` more would take: zero inside the guarantee.
  Bytes NeedOf(LogicalId logical, Bytes bytes) const;
  /// A granted step failed and nothing was handed out: the bytes are free again.
  void Refund(LogicalId logical, Bytes bytes);
  /// Granted bytes start to leave (returned, or their holder died): still held.
  void StartLeaving(LogicalId logical, Bytes bytes);
  /// Leaving bytes are confirmed free.
  void ConfirmFree(LogicalId logical, Bytes bytes);
  /// Charges memory that exists already, even where the card has no room (re-adoption after a restart). It
  /// may put the logical device over its limit, and the card over its total, never above what is asked here.
  /// An amount that no card could have (a sum above 2^62) is a bug of the caller.
  void Adopt(LogicalId logical, Bytes bytes);

  /// Device memory of clients that is in no chunk. RESOURCE_EXHAUSTED if the card has no room.
  absl::Status ChargeOverhead(CardId card, Bytes bytes);
  void RefundOverhead(CardId card, Bytes bytes);
  /// Memory that programs outside lgpu use, as observed; 0 where it is unknown.
  void SetForeign(CardId card, Bytes bytes);

  LogicalView View(LogicalId logical) const;
  CardView View(CardId card) const;
  std::vector<LogicalId> LogicalsOf(CardId card) const;

  /// OK, or INTERNAL naming the first invariant that does not hold, with its numbers.
  absl::Status CheckInvariants() const;

 private:
  struct Card {
    CardOptions options;
    Bytes overhead;
    Bytes foreign;
    std::set<LogicalId> logicals;
    // Sums over `logicals`, kept up to date so that a request costs no loop.
    Bytes held;
    Bytes guaranteed;       // sum of guarantee
    Bytes promised;         // sum of max(guarantee, held)
    Bytes coming_back;      // the part of `promised` that goes when all leaving memory has left
    Bytes adopted_ceiling;  // the promise after Adopt, while that is above total
  };
  struct Logical {
    CardId card;
    Bytes limit;      // as asked
    Bytes guarantee;  // rounded up
    Bytes granted;
    Bytes leaving;
    Bytes ceiling;  // the most it may hold while that is above the limit; zero otherwise

    Bytes held() const { return granted + leaving; }
    Bytes promise() const { return std::max(guarantee, held()); }
  };

  Card& CardOf(CardId card);
  const Card& CardOf(CardId card) const;
  Logical& LogicalOf(LogicalId logical);
  const Logical& LogicalOf(LogicalId logical) const;

  static Bytes LimitOf(const Card& card, const Logical& logical);
  static Bytes Promised(const Card& card);
  static Bytes Free(const Card& card);
  // How much more of the card is promised once `bytes` more are granted.
  static Bytes Need(const Logical& logical, Bytes bytes);
  static bool FitsLimit(const Card& card, const Logical& logical, Bytes bytes);
  static Verdict LimitVerdict(const Card& card, const Logical& logical, Bytes bytes);
  static Verdict CardVerdict(const Card& card, const Logical& logical, Bytes bytes, Bytes short_by);

  /// `present`: a limit that the device has already, from a time when the card had a smaller reserve.
  static absl::Status CheckOptions(const Card& card, const LogicalOptions& options, Bytes present);
  // Takes a logical device out of the sums of its card, changes it, and puts it back.
  template <typename Change>
  void Update(Logical& logical, Change change);
  void Charge(Logical& logical, Bytes bytes);
  static void LowerCeiling(Card& card);
  static void AddToSums(Card& card, const Logical& logical);
  static void TakeFromSums(Card& card, const Logical& logical);

  absl::Status CheckLogical(LogicalId id, const Logical& logical) const;
  absl::Status CheckCard(CardId id, const Card& card) const;

  std::unordered_map<CardId, Card> cards_;
  std::unordered_map<LogicalId, Logical> logicals_;
  // Ids are never used again.
  std::uint64_t last_card_ = 0;
  std::uint64_t last_logical_ = 0;
};

}  // namespace lgpu

#endif  // LGPU_ALLOCATOR_LEDGER_H_
