#include "allocator/ledger.h"

#include <string>
#include <utility>

#include "base/check.h"
#include "lgpu/status.h"

namespace lgpu {
namespace {

// Every amount stays below this, so that sums of a few of them are in range.
constexpr Bytes kMost(std::uint64_t{1} << 62);

std::string Text(Bytes amount) { return FormatBytes(amount); }

}  // namespace

Bytes Ledger::CardView::free() const { return SaturatingSub(total, SaturatingAdd(promised, foreign)); }
bool Ledger::CardView::overcommitted() const { return SaturatingAdd(promised, foreign) > total; }

Ledger::Card& Ledger::CardOf(CardId card) {
  const auto found = cards_.find(card);
  LGPU_CHECK(found != cards_.end());
  return found->second;
}
const Ledger::Card& Ledger::CardOf(CardId card) const {
  const auto found = cards_.find(card);
  LGPU_CHECK(found != cards_.end());
  return found->second;
}
Ledger::Logical& Ledger::LogicalOf(LogicalId logical) {
  const auto found = logicals_.find(logical);
  LGPU_CHECK(found != logicals_.end());
  return found->second;
}
const Ledger::Logical& Ledger::LogicalOf(LogicalId logical) const {
  const auto found = logicals_.find(logical);
  LGPU_CHECK(found != logicals_.end());
  return found->second;
}

Bytes Ledger::LimitOf(const Card& card, const Logical& logical) {
  return RoundUp(logical.limit, card.options.granularity);
}

Bytes Ledger::Promised(const Card& card) { return card.promised + card.overhead + card.options.reserve; }

Bytes Ledger::Free(const Card& card) {
  return SaturatingSub(card.options.total, SaturatingAdd(Promised(card), card.foreign));
}

Bytes Ledger::Need(const Logical& logical, Bytes bytes) {
  return std::max(logical.guarantee, SaturatingAdd(logical.held(), bytes)) - logical.promise();
}

bool Ledger::FitsLimit(const Card& card, const Logical& logical, Bytes bytes) {
  return SaturatingAdd(logical.held(), bytes) <= LimitOf(card, logical);
}

void Ledger::AddToSums(Card& card, const Logical& logical) {
  const Bytes promise = logical.promise();
  card.held += logical.held();
  card.guaranteed += logical.guarantee;
  card.promised += promise;
  card.coming_back += promise - std::max(logical.guarantee, logical.granted);
}

void Ledger::TakeFromSums(Card& card, const Logical& logical) {
  const Bytes promise = logical.promise();
  card.held -= logical.held();
  card.guaranteed -= logical.guarantee;
  card.promised -= promise;
  card.coming_back -= promise - std::max(logical.guarantee, logical.granted);
}

template <typename Change>
void Ledger::Update(Logical& logical, Change change) {
  Card& card = CardOf(logical.card);
  TakeFromSums(card, logical);
  change();
  AddToSums(card, logical);
  // While held is above the limit it may only fall: the ceiling follows it down.
  logical.ceiling =
      logical.held() > LimitOf(card, logical) ? std::min(logical.ceiling, logical.held()) : Bytes();
  LowerCeiling(card);
}

void Ledger::LowerCeiling(Card& card) {
  const Bytes promised = Promised(card);
  card.adopted_ceiling = promised > card.options.total ? std::min(card.adopted_ceiling, promised) : Bytes();
}

void Ledger::Charge(Logical& logical, Bytes bytes) {
  Update(logical, [&] { logical.granted += bytes; });
}

absl::StatusOr<CardId> Ledger::AddCard(const CardOptions& options) {
  const std::uint64_t unit = options.granularity.count();
  if (unit == 0 || (unit & (unit - 1)) != 0) {
    return absl::InvalidArgumentError("the granularity of a card must be a power of two, not " +
                                      Text(options.granularity));
  }
  if (options.total < options.granularity || options.total > kMost) {
    return absl::InvalidArgumentError("a card cannot have " + Text(options.total) + " in units of " +
                                      Text(options.granularity));
  }
  if (options.total < options.reserve) {
    return absl::InvalidArgumentError("a reserve of " + Text(options.reserve) + " is more than the card's " +
                                      Text(options.total));
  }
  const CardId id{++last_card_};
  cards_[id].options = options;
  return id;
}

absl::Status Ledger::CheckOptions(const Card& card, const LogicalOptions& options, Bytes present) {
  const Bytes most = card.options.total - card.options.reserve;
  if (options.limit.is_zero()) return absl::InvalidArgumentError("a memory limit of 0 allows nothing");
  if (options.guarantee > options.limit) {
    return absl::InvalidArgumentError("a guarantee of " + Text(options.guarantee) +
                                      " is above the limit of " + Text(options.limit));
  }
  if (options.limit > std::max(most, present)) {
    return absl::InvalidArgumentError("a limit of " + Text(options.limit) +
                                      " is more than the card can ever hold: " + FormatBytesCut(most) + " (" +
                                      Text(card.options.total) + " less a reserve of " +
                                      Text(card.options.reserve) + ")");
  }
  if (RoundUp(options.guarantee, card.options.granularity) > most) {
    return absl::InvalidArgumentError("a guarantee of " + Text(options.guarantee) + ", in units of " +
                                      Text(card.options.granularity) +
                                      ", is more than the card can ever hold: " + FormatBytesCut(most));
  }
  return absl::OkStatus();
}

namespace {

absl::Status NoRoomForGuarantee(Bytes guarantee, Bytes more, const Ledger::CardView& card) {
  std::string text = "a guarantee of " + Text(guarantee) + " cannot be set aside: it needs " + Text(more);
  text += " and " + FormatBytesCut(card.free()) + " of the card's " + Text(card.total) + " are free (";
  text += Text(card.promised) + " held, promised or reserved";
  if (!card.foreign.is_zero()) text += ", " + Text(card.foreign) + " used outside lgpu";
  return absl::ResourceExhaustedError(text + ")");
}

}  // namespace

absl::StatusOr<LogicalId> Ledger::AddLogical(CardId card, const LogicalOptions& options) {
  Card& on = CardOf(card);
  LGPU_RETURN_IF_ERROR(CheckOptions(on, options, Bytes()));
  Logical logical;
  logical.card = card;
  logical.limit = options.limit;
  logical.guarantee = RoundUp(options.guarantee, on.options.granularity);
  if (logical.guarantee > Free(on)) {
    return NoRoomForGuarantee(options.guarantee, logical.guarantee, View(card));
  }
  const LogicalId id{++last_logical_};
  AddToSums(on, logical);
  on.logicals.insert(id);
  logicals_.emplace(id, logical);
  return id;
}

absl::Status Ledger::RestoreLogical(LogicalId id, CardId card, const LogicalOptions& options) {
  Card& on = CardOf(card);
  // AddLogical checked the size against the card; the card's reserve may differ now.
  if (options.limit.is_zero() || options.guarantee > options.limit) {
    return absl::InvalidArgumentError("a limit of " + Text(options.limit) + " and a guarantee of " +
                                      Text(options.guarantee) + " are no logical device's");
  }
  if (!id || logicals_.contains(id)) {
    return absl::AlreadyExistsError("logical device " + std::to_string(id.value) + " is there already");
  }
  Logical logical;
  logical.card = card;
  logical.limit = options.limit;
  logical.guarantee = RoundUp(options.guarantee, on.options.granularity);
  AddToSums(on, logical);
  on.adopted_ceiling = kMost;
  LowerCeiling(on);
  on.logicals.insert(id);
  logicals_.emplace(id, logical);
  SkipIds(id);
  return absl::OkStatus();
}

absl::Status Ledger::RemoveLogical(LogicalId logical) {
  const Logical& gone = LogicalOf(logical);
  if (!gone.held().is_zero()) {
    return absl::FailedPreconditionError("it still holds " + Text(gone.held()) + ", of which " +
                                         Text(gone.leaving) + " are not confirmed free");
  }
  Card& card = CardOf(gone.card);
  TakeFromSums(card, gone);
  LowerCeiling(card);
  card.logicals.erase(logical);
  logicals_.erase(logical);
  return absl::OkStatus();
}

absl::Status Ledger::Resize(LogicalId logical, const LogicalOptions& options) {
  Logical& resized = LogicalOf(logical);
  Card& card = CardOf(resized.card);
  LGPU_RETURN_IF_ERROR(CheckOptions(card, options, resized.limit));
  const Bytes guarantee = RoundUp(options.guarantee, card.options.granularity);
  const Bytes promise = std::max(guarantee, resized.held());
  const Bytes more = SaturatingSub(promise, resized.promise());
  if (more > Free(card)) return NoRoomForGuarantee(options.guarantee, more, View(resized.card));
  Update(resized, [&] {
    resized.limit = options.limit;
    resized.guarantee = guarantee;
    resized.ceiling = resized.held();
  });
  return absl::OkStatus();
}

Ledger::Verdict Ledger::LimitVerdict(const Card& card, const Logical& logical, Bytes bytes) {
  Verdict verdict;
  verdict.shortage = Shortage::kLimit;
  verdict.short_by = SaturatingAdd(logical.held(), bytes) - LimitOf(card, logical);
  verdict.coming_back = logical.leaving;
  verdict.hopeless = SaturatingAdd(logical.granted, bytes) > LimitOf(card, logical);
  return verdict;
}

Ledger::Verdict Ledger::CardVerdict(const Card& card, const Logical& logical, Bytes bytes, Bytes short_by) {
  const Bytes with_leaving = std::max(logical.guarantee, SaturatingAdd(logical.held(), bytes));
  const Bytes without = std::max(logical.guarantee, SaturatingAdd(logical.granted, bytes));
  const Bytes own_now = logical.promise() - std::max(logical.guarantee, logical.granted);
  Verdict verdict;
  verdict.shortage = Shortage::kCard;
  verdict.short_by = short_by;
  verdict.coming_back = card.coming_back - own_now + (with_leaving - without);
  const Bytes least = card.guaranteed - logical.guarantee + card.overhead + card.options.reserve;
  verdict.hopeless = SaturatingAdd(least, without) > card.options.total;
  return verdict;
}

Ledger::Verdict Ledger::Check(LogicalId logical, Bytes bytes) const {
  const Logical& asking = LogicalOf(logical);
  const Card& card = CardOf(asking.card);
  LGPU_CHECK(!bytes.is_zero() && RoundDown(bytes, card.options.granularity) == bytes);
  if (!FitsLimit(card, asking, bytes)) return LimitVerdict(card, asking, bytes);
  const Bytes need = Need(asking, bytes);
  const Bytes missing = SaturatingSub(SaturatingAdd(Promised(card) + need, card.foreign), card.options.total);
  return need.is_zero() || missing.is_zero() ? Verdict() : CardVerdict(card, asking, bytes, missing);
}

Ledger::Verdict Ledger::Request(LogicalId logical, Bytes bytes) {
  const Verdict verdict = Check(logical, bytes);
  if (verdict.shortage == Shortage::kNone) Charge(LogicalOf(logical), bytes);
  return verdict;
}

Ledger::Split Ledger::CheckSplit(const std::vector<LogicalId>& logicals, Bytes bytes) const {
  LGPU_CHECK(!logicals.empty());
  const Card& card = CardOf(LogicalOf(logicals.front()).card);
  LGPU_CHECK(!bytes.is_zero() && RoundDown(bytes, card.options.granularity) == bytes);
  Bytes rest = bytes;
  std::vector<Bytes> taken(logicals.size());
  for (const bool only_guaranteed : {true, false}) {
    for (std::size_t i = 0; i < logicals.size(); ++i) {
      const Logical& logical = LogicalOf(logicals[i]);
      const Bytes bound = only_guaranteed ? logical.guarantee : LimitOf(card, logical);
      const Bytes part = std::min(rest, SaturatingSub(bound, logical.held() + taken[i]));
      taken[i] += part;
      rest -= part;
    }
  }
  Split split;
  Bytes leaving, with_granted, promised_now, promised_later;
  // As in CardVerdict: the card's least promise with these bytes, once all leaving memory has left.
  Bytes least = card.guaranteed + card.overhead + card.options.reserve;
  for (std::size_t i = 0; i < logicals.size(); ++i) {
    const Logical& logical = LogicalOf(logicals[i]);
    split.need += Need(logical, taken[i]);
    leaving += logical.leaving;
    with_granted += SaturatingSub(LimitOf(card, logical), logical.granted);
    promised_now += logical.promise() - std::max(logical.guarantee, logical.granted);
    const Bytes without = std::max(logical.guarantee, logical.granted + taken[i]);
    promised_later += std::max(logical.guarantee, logical.held() + taken[i]) - without;
    least += without - logical.guarantee;
    if (!taken[i].is_zero()) split.parts.emplace_back(logicals[i], taken[i]);
  }
  const Bytes missing =
      SaturatingSub(SaturatingAdd(Promised(card) + split.need, card.foreign), card.options.total);
  if (!rest.is_zero()) {
    split.verdict = {.shortage = Shortage::kLimit,
                     .short_by = rest,
                     .coming_back = leaving,
                     .hopeless = with_granted < bytes};
  } else if (!split.need.is_zero() && !missing.is_zero()) {
    split.verdict = {.shortage = Shortage::kCard,
                     .short_by = missing,
                     .coming_back = card.coming_back - promised_now + promised_later,
                     .hopeless = least > card.options.total};
  }
  return split;
}

Bytes Ledger::NeedOf(LogicalId logical, Bytes bytes) const { return Need(LogicalOf(logical), bytes); }

void Ledger::Refund(LogicalId logical, Bytes bytes) {
  Logical& giving = LogicalOf(logical);
  LGPU_CHECK_OP(bytes.count(), <=, giving.granted.count());
  LGPU_CHECK(RoundDown(bytes, CardOf(giving.card).options.granularity) == bytes);
  Update(giving, [&] { giving.granted -= bytes; });
}

void Ledger::StartLeaving(LogicalId logical, Bytes bytes) {
  Logical& giving = LogicalOf(logical);
  LGPU_CHECK_OP(bytes.count(), <=, giving.granted.count());
  LGPU_CHECK(RoundDown(bytes, CardOf(giving.card).options.granularity) == bytes);
  Update(giving, [&] {
    giving.granted -= bytes;
    giving.leaving += bytes;
  });
}

void Ledger::ConfirmFree(LogicalId logical, Bytes bytes) {
  Logical& giving = LogicalOf(logical);
  LGPU_CHECK_OP(bytes.count(), <=, giving.leaving.count());
  LGPU_CHECK(RoundDown(bytes, CardOf(giving.card).options.granularity) == bytes);
  Update(giving, [&] { giving.leaving -= bytes; });
}

void Ledger::Adopt(LogicalId logical, Bytes bytes) {
  Logical& adopting = LogicalOf(logical);
  Card& card = CardOf(adopting.card);
  LGPU_CHECK(RoundDown(bytes, card.options.granularity) == bytes);
  LGPU_CHECK_OP(SaturatingAdd(Promised(card), bytes).count(), <=, kMost.count());
  Update(adopting, [&] {
    adopting.granted += bytes;
    adopting.ceiling = adopting.held();
    card.adopted_ceiling = kMost;
  });
}

absl::Status Ledger::ChargeOverhead(CardId card, Bytes bytes) {
  Card& on = CardOf(card);
  if (bytes > Free(on)) {
    return absl::ResourceExhaustedError("the card has no room for an overhead of " + Text(bytes) + ": " +
                                        Text(Free(on)) + " of " + Text(on.options.total) + " are free");
  }
  on.overhead += bytes;
  return absl::OkStatus();
}

void Ledger::RefundOverhead(CardId card, Bytes bytes) {
  Card& on = CardOf(card);
  LGPU_CHECK_OP(bytes.count(), <=, on.overhead.count());
  on.overhead -= bytes;
  LowerCeiling(on);
}

void Ledger::SetForeign(CardId card, Bytes bytes) { CardOf(card).foreign = bytes; }

Ledger::LogicalView Ledger::View(LogicalId logical) const {
  const Logical& seen = LogicalOf(logical);
  LogicalView view;
  view.card = seen.card;
  view.limit = seen.limit;
  view.guarantee = seen.guarantee;
  view.granted = seen.granted;
  view.leaving = seen.leaving;
  return view;
}

Ledger::CardView Ledger::View(CardId card) const {
  const Card& seen = CardOf(card);
  CardView view;
  view.total = seen.options.total;
  view.reserve = seen.options.reserve;
  view.overhead = seen.overhead;
  view.foreign = seen.foreign;
  view.granularity = seen.options.granularity;
  view.held = seen.held;
  view.promised = Promised(seen);
  return view;
}

std::vector<LogicalId> Ledger::LogicalsOf(CardId card) const {
  const Card& seen = CardOf(card);
  return {seen.logicals.begin(), seen.logicals.end()};
}

}  // namespace lgpu
