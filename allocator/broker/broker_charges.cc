// Charges: memory that programs take from the driver themselves. A charge is a number; what is lent to a
// session on a card counts as held on the logical devices that its lease has there.

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "allocator/broker/broker.h"
#include "base/check.h"
#include "lgpu/status.h"

namespace lgpu {
namespace {

// The most that a program may have lent and unused.
constexpr Bytes kMostAllowance(std::uint64_t{64} << 20);
// Of the limit, for all processes of a lease together.
constexpr std::uint64_t kAllowanceShare = 8;

Bytes SumOf(const std::map<LogicalId, Bytes>& amounts) {
  Bytes sum;
  for (const auto& [device, bytes] : amounts) sum += bytes;
  return sum;
}

}  // namespace

std::optional<CardId> Broker::FindCard(const std::string& uuid) const {
  for (const auto& [id, card] : cards_) {
    if (card.device.uuid == uuid) return id;
  }
  return std::nullopt;
}

std::vector<LogicalId> Broker::DevicesOn(LeaseKey lease, CardId card) const {
  std::vector<LogicalId> devices;
  for (const auto& [id, device] : devices_) {
    if (device.spec.lease == lease && device.spec.card == card && !device.removed) devices.push_back(id);
  }
  return devices;
}

std::size_t Broker::IndexOf(LeaseKey lease, CardId card) const {
  std::set<CardId> before;
  for (const auto& [id, device] : devices_) {
    if (device.spec.lease != lease) continue;
    if (device.spec.card == card) break;
    before.insert(device.spec.card);
  }
  return before.size();
}

void Broker::ShareAllowances(SessionId session, std::shared_ptr<Allowances> allowances) {
  MutexLock lock(mutex_);
  StopTrimming(session);
  sessions_.at(session).allowances = std::move(allowances);
}

absl::StatusOr<Broker::Waiter> Broker::CheckCharge(const ChargeSpec& spec) const {
  const auto session = sessions_.find(spec.session);
  if (session == sessions_.end() || !session->second.lease) {
    return absl::FailedPreconditionError(
        "memory was charged before the session was attached to a lease; send Attach first");
  }
  if (spec.bytes.is_zero()) return absl::InvalidArgumentError("zero bytes were charged; charge at least one");
  const std::optional<CardId> card = FindCard(spec.card_uuid);
  const std::vector<LogicalId> devices =
      card ? DevicesOn(session->second.lease, *card) : std::vector<LogicalId>();
  if (devices.empty()) {
    return absl::NotFoundError(absl::StrCat("the session's lease has no logical device on card \"",
                                            spec.card_uuid, "\"; charge a card that the lease names"));
  }
  LGPU_RETURN_IF_ERROR(CheckMayGrow(session->second));
  Waiter waiter;
  waiter.spec = {.session = spec.session,
                 .device = devices.front(),
                 .at_least = RoundUp(spec.bytes, cards_.at(*card).device.granularity),
                 .wanted = {},
                 .asked_at = spec.asked_at,
                 .deadline = spec.deadline};
  waiter.charge = {.card = *card,
                   .bytes = spec.bytes,
                   .what = spec.what,
                   .card_deadline = spec.deadline,
                   .is_retry = spec.driver_refusals > 0};
  return waiter;
}

Broker::GrowAnswer Broker::ChargeCard(const ChargeSpec& spec) {
  GrowAnswer answer;
  Wakes wakes;
  GrowId id;
  Waiter mine;
  std::optional<Making> making;
  // Memory that the ledger does not know of yet is foreign from here on.
  if (spec.driver_refusals > 0) ObserveCard(spec.card_uuid);
  {
    MutexLock lock(mutex_);
    absl::StatusOr<Waiter> waiter = CheckCharge(spec);
    if (!waiter.ok()) {
      answer.status = waiter.status();
      return answer;
    }
    mine = *std::move(waiter);
    if (spec.driver_refusals > 1) {
      Refuse(mine, {.reason = RefusalReason::kBackend,
                    .detail = absl::StrCat("the driver refused ", FormatBytes(spec.bytes), " twice")});
      answer.status = mine.refusal;
      ++counters_.refusals;
      return answer;
    }
    id = GrowId{++last_waiter_};
    const CardId card = mine.charge->card;
    Session& session = sessions_.at(spec.session);
    if (!session.charges.contains(card)) session.charges[card].index = IndexOf(session.lease, card);
    if (queues_.at(card).IsTurnOver(now_())) Serve(card, wakes);
    making = Place(id, mine, answer, wakes);
  }
  WakeAll(wakes);
  return making ? Make(id, std::move(mine), *making) : LoggedCharge(std::move(answer));
}

Ledger::Split Broker::SplitOf(const Waiter& waiter) const {
  const LeaseKey lease = sessions_.at(waiter.spec.session).lease;
  return ledger_.CheckSplit(DevicesOn(lease, waiter.charge->card), waiter.spec.at_least);
}

Bytes Broker::NeedOf(const Waiter& waiter) const {
  return waiter.charge ? SplitOf(waiter).need : ledger_.NeedOf(waiter.spec.device, waiter.spec.at_least);
}

void Broker::ChargeSplit(GrowId id, Waiter& waiter, Wakes& wakes) {
  const CardId card = waiter.charge->card;
  Session& session = sessions_.at(waiter.spec.session);
  const CardCharge& charge = session.charges.at(card);
  if (SaturatingAdd(charge.lent, waiter.charge->bytes) <= SumOf(charge.held)) {
    Book(waiter.spec.session, card, waiter.charge->bytes, {});
    waiter.phase = Waiter::Phase::kTaken;
    return;
  }
  Ledger::Split split = SplitOf(waiter);
  const auto is_short = [&] { return split.verdict.shortage != Ledger::Shortage::kNone; };
  while (
      is_short() &&
      TakeAllowances(card, split.verdict.shortage == Ledger::Shortage::kLimit ? session.lease : LeaseKey())) {
    split = SplitOf(waiter);
  }
  const bool held_back = !is_short() && queues_.at(card).turn() && !split.need.is_zero();
  if (held_back) split.verdict.shortage = Ledger::Shortage::kCard;
  const TimePoint now = now_();
  switch (split.verdict.shortage) {
    case Ledger::Shortage::kNone:
      Book(waiter.spec.session, card, waiter.charge->bytes, split.parts);
      waiter.phase = Waiter::Phase::kTaken;
      return;
    case Ledger::Shortage::kLimit: {
      waiter.ballast = TakeBallast(DevicesOn(session.lease, card), split.verdict.short_by);
      if (!waiter.ballast.empty()) {
        waiter.phase = Waiter::Phase::kBallast;
        return;
      }
      const TimePoint last = waiter.spec.asked_at + kGrace;
      const Bytes missing = SaturatingSub(split.verdict.short_by, split.verdict.coming_back);
      waiter.spec.deadline = last;
      if (now < last && (missing.is_zero() || AskUnderLimit(waiter, missing, wakes))) {
        waiter.phase = Waiter::Phase::kLimit;
        devices_.at(waiter.spec.device).limit_waiters.push_back(id);
      } else {
        Refuse(waiter, {.reason = RefusalReason::kLimit});
      }
      return;
    }
    case Ledger::Shortage::kCard:
      if (!waiter.in_grace) waiter.spec.deadline = waiter.charge->card_deadline;
      if ((!split.verdict.hopeless || waiter.charge->is_retry) &&
          (now < waiter.spec.deadline || ((held_back || MayTrim(waiter)) && MayAsk(waiter)))) {
        waiter.phase = Waiter::Phase::kCard;
        waiter.need = {};
        waiter.next_look = TimePoint::max();  // the caller serves the queue
        queues_.at(card).Join(id, devices_.at(waiter.spec.device).spec.owner);
      } else {
        Refuse(waiter, {.reason = RefusalReason::kCard});
      }
      return;
  }
}

void Broker::Book(SessionId id, CardId card, Bytes bytes,
                  const std::vector<std::pair<LogicalId, Bytes>>& parts) {
  Session& session = sessions_.at(id);
  CardCharge& charge = session.charges.at(card);
  for (const auto& [logical, part] : parts) {
    LGPU_CHECK(ledger_.Request(logical, part).shortage == Ledger::Shortage::kNone);
    Device& device = devices_.at(logical);
    charge.held[logical] += part;
    device.lent += part;
    device.held_by[id] += part;
    device.last_charge = now_();
    session.held += part;
  }
  charge.lent += bytes;
  charging_.emplace(card, id);
  FitCharge(id, session, card);
  LogCharge(id, charge);
}

void Broker::DropHeld(SessionId id, Session& session, LogicalId logical, Bytes bytes) {
  Device& device = devices_.at(logical);
  device.lent -= bytes;
  session.held -= bytes;
  Bytes& held = device.held_by.at(id);
  held -= bytes;
  if (held.is_zero()) device.held_by.erase(id);
}

bool Broker::FitCharge(SessionId id, Session& session, CardId card) {
  CardCharge& charge = session.charges.at(card);
  const Bytes before = SumOf(charge.held);
  Bytes excess = SaturatingSub(before, RoundUp(charge.lent, cards_.at(card).device.granularity));
  const bool gives = !excess.is_zero();
  while (!excess.is_zero()) {
    const auto last = std::prev(charge.held.end());
    const Bytes part = std::min(excess, last->second);
    ledger_.Refund(last->first, part);
    DropHeld(id, session, last->first, part);
    last->second -= part;
    if (last->second.is_zero()) charge.held.erase(last);
    excess -= part;
  }
  if (charge.held.empty()) charging_.erase({card, id});
  return gives;
}

void Broker::LogCharge(SessionId id, CardCharge& charge) {
  for (const auto& [device, bytes] : charge.held) {
    Bytes& logged = charge.logged[device];
    if (bytes <= logged) continue;
    logged = bytes;
    log_.NoteCharged({.session = id, .device = device, .bytes = bytes});
  }
}

bool Broker::TakeAllowance(SessionId id, Session& session, CardId card) {
  CardCharge& charge = session.charges.at(card);
  if (session.allowances == nullptr || charge.leaving) return false;
  session.allowances->Keep(charge.index).store(0, std::memory_order_relaxed);
  const Bytes left(session.allowances->Free(charge.index).exchange(0, std::memory_order_acq_rel));
  charge.lent -= std::min(left, charge.lent);
  return FitCharge(id, session, card);
}

bool Broker::TakeAllowances(CardId card, LeaseKey lease) {
  std::vector<SessionId> sessions;
  for (auto at = charging_.lower_bound({card, SessionId()}); at != charging_.end() && at->first == card;
       ++at) {
    if (!lease || sessions_.at(at->second).lease == lease) sessions.push_back(at->second);
  }
  bool taken = false;
  for (const SessionId id : sessions) taken |= TakeAllowance(id, sessions_.at(id), card);
  return taken;
}

Bytes Broker::AllowanceOf(LeaseKey lease, CardId card) const {
  Bytes limits;
  for (const LogicalId device : DevicesOn(lease, card)) limits += ledger_.View(device).limit;
  std::uint64_t processes = 0;
  for (auto at = charging_.lower_bound({card, SessionId()}); at != charging_.end() && at->first == card;
       ++at) {
    processes += sessions_.at(at->second).lease == lease ? 1 : 0;
  }
  const Bytes share(limits.count() / kAllowanceShare / std::max<std::uint64_t>(processes, 1));
  return RoundDown(std::min(share, kMostAllowance), cards_.at(card).device.granularity);
}

Broker::Lent Broker::Lend(const Waiter& waiter) {
  const CardId card = waiter.charge->card;
  const SessionId id = waiter.spec.session;
  const Session& session = sessions_.at(id);
  const CardCharge& charge = session.charges.at(card);
  Lent lent{.session = id,
            .card = card,
            .bytes = waiter.charge->bytes,
            .refill = {},
            .keep = {},
            .allowances = session.allowances,
            .index = charge.index};
  const std::vector<LogicalId> devices = DevicesOn(session.lease, card);
  // While a request waits for the card or for a limit of the lease, no allowance is lent.
  const bool others_wait =
      !queues_.at(card).empty() || std::any_of(devices.begin(), devices.end(), [&](LogicalId device) {
        mutex_.AssertHeld();
        return !devices_.at(device).limit_waiters.empty();
      });
  if (lent.allowances == nullptr || others_wait || devices.empty()) return lent;
  lent.keep = AllowanceOf(session.lease, card);
  const Bytes free(lent.allowances->Free(lent.index).load(std::memory_order_relaxed));
  const Bytes granularity = cards_.at(card).device.granularity;
  Bytes refill = RoundDown(SaturatingSub(lent.keep, free), granularity);
  for (; !refill.is_zero(); refill = RoundDown(Bytes(refill.count() / 2), granularity)) {
    const Ledger::Split split = ledger_.CheckSplit(devices, refill);
    if (split.verdict.shortage != Ledger::Shortage::kNone) continue;
    Book(id, card, refill, split.parts);
    lent.refill = refill;
    break;
  }
  return lent;
}

Broker::GrowAnswer Broker::LoggedCharge(GrowAnswer answer) {
  if (!answer.lent) return answer;
  const Lent& lent = *answer.lent;
  if (absl::Status committed = log_.Commit(); !committed.ok()) {
    Wakes wakes;
    {
      MutexLock lock(mutex_);
      UnchargeLocked(lent.session, lent.card, lent.bytes + lent.refill, wakes);
      --counters_.charges;
      ++counters_.refusals;
    }
    WakeAll(wakes);
    answer.lent.reset();
    answer.status = std::move(committed);
    return answer;
  }
  if (lent.allowances != nullptr) {
    lent.allowances->Keep(lent.index).store(lent.keep.count(), std::memory_order_relaxed);
    lent.allowances->Free(lent.index).fetch_add(lent.refill.count(), std::memory_order_acq_rel);
  }
  return answer;
}

void Broker::UnchargeLocked(SessionId id, CardId card, Bytes bytes, Wakes& wakes) {
  const auto session = sessions_.find(id);
  if (session == sessions_.end()) return;
  const auto charge = session->second.charges.find(card);
  if (charge == session->second.charges.end() || charge->second.leaving) return;
  charge->second.lent -= std::min(bytes, charge->second.lent);
  if (FitCharge(id, session->second, card)) Serve(card, wakes);
}

absl::Status Broker::Uncharge(SessionId session, const std::string& card_uuid, Bytes bytes) {
  Wakes wakes;
  {
    MutexLock lock(mutex_);
    const std::optional<CardId> card = FindCard(card_uuid);
    const auto found = sessions_.find(session);
    if (!card || found == sessions_.end() || !found->second.charges.contains(*card)) {
      return absl::InvalidArgumentError(
          absl::StrCat("Uncharge of card \"", card_uuid, "\", of which the session has charged nothing"));
    }
    UnchargeLocked(session, *card, bytes, wakes);
  }
  WakeAll(wakes);
  return absl::OkStatus();
}

std::vector<Broker::Charged> Broker::ChargesOf(SessionId session) const {
  std::vector<Charged> charges;
  MutexLock lock(mutex_);
  const auto found = sessions_.find(session);
  if (found == sessions_.end()) return charges;
  for (const auto& [card, charge] : found->second.charges) {
    Charged& out = charges.emplace_back(Charged{.card_uuid = cards_.at(card).device.uuid,
                                                .index = charge.index,
                                                .lent = charge.lent,
                                                .used = charge.lent});
    if (Allowances* const words = found->second.allowances.get(); words != nullptr && !charge.leaving) {
      out.used = SaturatingSub(charge.lent, Bytes(words->Free(charge.index).load(std::memory_order_relaxed)));
    }
  }
  return charges;
}

void Broker::StartLeavingCharges(Session& session, std::set<CardId>& touched) {
  session.allowances.reset();
  for (auto& [card, charge] : session.charges) {
    if (std::exchange(charge.leaving, true)) continue;
    for (const auto& [device, bytes] : charge.held) ledger_.StartLeaving(device, bytes);
    touched.insert(card);
  }
}

void Broker::EndCharges(const std::vector<SessionId>& sessions) {
  Wakes wakes;
  {
    MutexLock lock(mutex_);
    std::set<CardId> touched;
    for (const SessionId id : sessions) {
      const auto session = sessions_.find(id);
      if (session == sessions_.end()) continue;
      for (auto& [card, charge] : session->second.charges) {
        if (!charge.leaving) continue;
        EndCharge(id, session->second, card, Bytes());
        touched.insert(card);
      }
    }
    for (const CardId card : touched) Serve(card, wakes);
  }
  WakeAll(wakes);
}

void Broker::LowerCharges(SessionId id, const std::map<std::string, Bytes>& by_card) {
  Wakes wakes;
  {
    MutexLock lock(mutex_);
    const auto session = sessions_.find(id);
    if (session == sessions_.end()) return;
    for (auto& [card, charge] : session->second.charges) {
      if (!charge.leaving) continue;
      const auto rest = by_card.find(cards_.at(card).device.uuid);
      EndCharge(id, session->second, card, rest == by_card.end() ? Bytes() : rest->second);
      Serve(card, wakes);
    }
  }
  WakeAll(wakes);
}

void Broker::EndCharge(SessionId id, Session& session, CardId card, Bytes rest) {
  CardCharge& charge = session.charges.at(card);
  charge.lent = std::min(charge.lent, rest);
  Bytes excess = SaturatingSub(SumOf(charge.held), RoundUp(charge.lent, cards_.at(card).device.granularity));
  while (!excess.is_zero()) {
    const auto last = std::prev(charge.held.end());
    const LogicalId device = last->first;
    const Bytes part = std::min(excess, last->second);
    ledger_.ConfirmFree(device, part);
    DropHeld(id, session, device, part);
    last->second -= part;
    if (last->second.is_zero()) charge.held.erase(last);
    ForgetIfEmpty(device);
    excess -= part;
  }
  if (charge.held.empty()) charging_.erase({card, id});
}

std::vector<ChunkId> Broker::TakeBallast(const std::vector<LogicalId>& devices, Bytes bytes) {
  Bytes spare;
  for (const LogicalId logical : devices) spare += devices_.at(logical).spare_bytes;
  if (spare < bytes) return {};
  // Small ones first, so that little more goes than is needed.
  std::vector<ChunkId> taken;
  Bytes sum;
  for (const LogicalId logical : devices) {
    const auto& by_size = devices_.at(logical).spare;
    for (auto size = by_size.rbegin(); size != by_size.rend(); ++size) {
      for (auto chunk = size->second.begin(); chunk != size->second.end() && sum < bytes; ++chunk) {
        taken.push_back(*chunk);
        sum += size->first;
      }
    }
  }
  for (const ChunkId id : taken) {
    ChunkEntry& chunk = chunks_.at(id);
    TakeFromSpare(id, chunk);
    StartLeaving(chunk, ChunkState::kReturning);
  }
  return taken;
}

Broker::GrowAnswer Broker::FreeBallast(GrowId id, Waiter mine) {
  std::vector<MemoryHandle> memories;
  {
    MutexLock lock(mutex_);
    for (const ChunkId chunk : mine.ballast) memories.push_back(chunks_.at(chunk).memory);
  }
  std::vector<absl::Status> freed;
  for (const MemoryHandle& memory : memories) freed.push_back(backend_.Reclaim(memory));
  GrowAnswer answer;
  std::optional<Making> making;
  Wakes wakes;
  {
    MutexLock lock(mutex_);
    MissingChunks missing;  // of others: these chunks were no session's
    for (std::size_t i = 0; i < freed.size(); ++i) Settle(mine.ballast[i], freed[i], wakes, missing);
    mine.ballast.clear();
    mine.phase = Waiter::Phase::kNew;
    // Before waiting requests are looked at: the freed memory belongs to this charge.
    making = Place(id, mine, answer, wakes);
    Serve(mine.charge->card, wakes);
  }
  WakeAll(wakes);
  return making ? Make(id, std::move(mine), *making) : LoggedCharge(std::move(answer));
}

Refusal Broker::MakeChargeRefusal(const Waiter& waiter, RefusalCause cause) const {
  cause.asked = waiter.charge->bytes;
  const LogicalId first = waiter.spec.device;
  Refusal refusal = MakeRefusal(devices_.at(first), first, cause);
  refusal.what = waiter.charge->what;
  Bytes limit, held;
  const LeaseKey lease = sessions_.at(waiter.spec.session).lease;
  for (const LogicalId logical : DevicesOn(lease, waiter.charge->card)) {
    const Ledger::LogicalView view = ledger_.View(logical);
    limit += view.limit;
    held += view.held() - devices_.at(logical).spare_bytes;
  }
  if (cause.reason == RefusalReason::kLimit) {
    refusal.advice = {absl::StrCat("give the lease a higher memory_limit than ", FormatBytes(limit),
                                   ", or free memory in its programs")};
  }
  refusal.limit = limit;
  refusal.held = held;
  return refusal;
}

absl::Status Broker::CheckCharges() const {
  std::map<LogicalId, Bytes> lent;
  for (const auto& [id, session] : sessions_) {
    for (const auto& [card, charge] : session.charges) {
      const Bytes held = SumOf(charge.held);
      if (held != RoundUp(charge.lent, cards_.at(card).device.granularity) ||
          charging_.contains({card, id}) == charge.held.empty()) {
        return absl::InternalError(absl::StrCat("session ", id.value, " was lent ", charge.lent.count(),
                                                " bytes, and ", held.count(), " are held for it"));
      }
      for (const auto& [device, bytes] : charge.held) {
        lent[device] += bytes;
        const auto logged = charge.logged.find(device);
        if (logged == charge.logged.end() || logged->second < bytes) {
          return absl::InternalError(absl::StrCat("session ", id.value, " has charged ", bytes.count(),
                                                  " bytes of device ", device.value, ", the log has less"));
        }
      }
    }
  }
  for (const auto& [id, device] : devices_) {
    if (device.lent != lent[id]) {
      return absl::InternalError(absl::StrCat("device ", id.value, " has lent ", device.lent.count(),
                                              " bytes, its sessions have ", lent[id].count()));
    }
  }
  return absl::OkStatus();
}

}  // namespace lgpu
