// Charges: memory that programs take from the driver themselves. A charge is a
// number; what is lent to a session on a card counts as held on the logical
// devices that its lease has there.

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "allocator/broker/broker_impl.h"
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

std::optional<CardId> BrokerImpl::FindCard(const std::string& uuid) const {
  for (const auto& [id, card] : core_.tables.cards) {
    if (card.device.uuid == uuid) return id;
  }
  return std::nullopt;
}

std::vector<LogicalId> BrokerImpl::DevicesOn(LeaseKey lease, CardId card) const {
  std::vector<LogicalId> devices;
  for (const auto& [id, device] : core_.tables.devices) {
    if (device.spec.lease == lease && device.spec.card == card && !device.removed) devices.push_back(id);
  }
  return devices;
}

std::size_t BrokerImpl::IndexOf(LeaseKey lease, CardId card) const {
  std::set<CardId> before;
  for (const auto& [id, device] : core_.tables.devices) {
    if (device.spec.lease != lease) continue;
    if (device.spec.card == card) break;
    before.insert(device.spec.card);
  }
  return before.size();
}

void BrokerImpl::ShareAllowances(SessionId session, std::shared_ptr<Allowances> allowances) {
  BrokerLock lock(core_);
  StopTrimming(session);
  core_.tables.sessions.at(session).allowances = std::move(allowances);
}

absl::StatusOr<Waiter> BrokerImpl::CheckCharge(const ChargeSpec& spec) const {
  const auto session = core_.tables.sessions.find(spec.session);
  if (session == core_.tables.sessions.end() || !session->second.lease) {
    return absl::FailedPreconditionError(
        "memory was charged before the session was attached to a lease; send "
        "Attach first");
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
                 .at_least = RoundUp(spec.bytes, core_.tables.cards.at(*card).device.granularity),
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

BrokerImpl::GrowAnswer BrokerImpl::ChargeCard(const ChargeSpec& spec) {
  GrowAnswer answer;
  GrowId id;
  Waiter mine;
  std::optional<Making> making;
  // Memory that the ledger does not know of yet is foreign from here on.
  if (spec.driver_refusals > 0) ObserveCard(spec.card_uuid);
  {
    BrokerLock lock(core_);
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
      ++core_.tables.counters.refusals;
      return answer;
    }
    id = GrowId{++core_.tables.last_waiter};
    const CardId card = mine.charge->card;
    SessionEntry& session = core_.tables.sessions.at(spec.session);
    if (!session.charges.contains(card)) session.charges[card].index = IndexOf(session.lease, card);
    if (core_.tables.queues.at(card).IsTurnOver(core_.now())) Serve(card);
    making = Place(id, mine, answer);
  }
  return making ? Make(id, std::move(mine), *making) : LoggedCharge(std::move(answer));
}

Ledger::Split BrokerImpl::SplitOf(const Waiter& waiter) const {
  const LeaseKey lease = core_.tables.sessions.at(waiter.spec.session).lease;
  return core_.tables.ledger.CheckSplit(DevicesOn(lease, waiter.charge->card), waiter.spec.at_least);
}

Bytes BrokerImpl::NeedOf(const Waiter& waiter) const {
  return waiter.charge ? SplitOf(waiter).need
                       : core_.tables.ledger.NeedOf(waiter.spec.device, waiter.spec.at_least);
}

void BrokerImpl::ChargeSplit(GrowId id, Waiter& waiter) {
  const CardId card = waiter.charge->card;
  SessionEntry& session = core_.tables.sessions.at(waiter.spec.session);
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
  const bool held_back = !is_short() && core_.tables.queues.at(card).turn() && !split.need.is_zero();
  if (held_back) split.verdict.shortage = Ledger::Shortage::kCard;
  const TimePoint now = core_.now();
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
      if (now < last && (missing.is_zero() || AskUnderLimit(waiter, missing))) {
        waiter.phase = Waiter::Phase::kLimit;
        core_.tables.devices.at(waiter.spec.device).limit_waiters.push_back(id);
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
        core_.tables.queues.at(card).Join(id, core_.tables.devices.at(waiter.spec.device).spec.owner);
      } else {
        Refuse(waiter, {.reason = RefusalReason::kCard});
      }
      return;
  }
}

void BrokerImpl::Book(SessionId id, CardId card, Bytes bytes,
                      const std::vector<std::pair<LogicalId, Bytes>>& parts) {
  SessionEntry& session = core_.tables.sessions.at(id);
  CardCharge& charge = session.charges.at(card);
  for (const auto& [logical, part] : parts) {
    LGPU_CHECK(core_.tables.ledger.Request(logical, part).shortage == Ledger::Shortage::kNone);
    DeviceEntry& device = core_.tables.devices.at(logical);
    charge.held[logical] += part;
    device.lent += part;
    device.held_by[id] += part;
    device.last_charge = core_.now();
    session.held += part;
  }
  charge.lent += bytes;
  core_.tables.charging.emplace(card, id);
  FitCharge(id, session, card);
  LogCharge(id, charge);
}

void BrokerImpl::DropHeld(SessionId id, SessionEntry& session, LogicalId logical, Bytes bytes) {
  DeviceEntry& device = core_.tables.devices.at(logical);
  device.lent -= bytes;
  session.held -= bytes;
  Bytes& held = device.held_by.at(id);
  held -= bytes;
  if (held.is_zero()) device.held_by.erase(id);
}

bool BrokerImpl::FitCharge(SessionId id, SessionEntry& session, CardId card) {
  CardCharge& charge = session.charges.at(card);
  const Bytes before = SumOf(charge.held);
  Bytes excess = SaturatingSub(before, RoundUp(charge.lent, core_.tables.cards.at(card).device.granularity));
  const bool gives = !excess.is_zero();
  while (!excess.is_zero()) {
    const auto last = std::prev(charge.held.end());
    const Bytes part = std::min(excess, last->second);
    core_.tables.ledger.Refund(last->first, part);
    DropHeld(id, session, last->first, part);
    last->second -= part;
    if (last->second.is_zero()) charge.held.erase(last);
    excess -= part;
  }
  if (charge.held.empty()) core_.tables.charging.erase({card, id});
  return gives;
}

void BrokerImpl::LogCharge(SessionId id, CardCharge& charge) {
  for (const auto& [device, bytes] : charge.held) {
    Bytes& logged = charge.logged[device];
    if (bytes <= logged) continue;
    logged = bytes;
    core_.log.NoteCharged({.session = id, .device = device, .bytes = bytes});
  }
}

bool BrokerImpl::TakeAllowance(SessionId id, SessionEntry& session, CardId card) {
  CardCharge& charge = session.charges.at(card);
  if (session.allowances == nullptr || charge.leaving) return false;
  session.allowances->Keep(charge.index).store(0, std::memory_order_relaxed);
  const Bytes left(session.allowances->Free(charge.index).exchange(0, std::memory_order_acq_rel));
  charge.lent -= std::min(left, charge.lent);
  return FitCharge(id, session, card);
}

bool BrokerImpl::TakeAllowances(CardId card, LeaseKey lease) {
  std::vector<SessionId> sessions;
  for (auto at = core_.tables.charging.lower_bound({card, SessionId()});
       at != core_.tables.charging.end() && at->first == card; ++at) {
    if (!lease || core_.tables.sessions.at(at->second).lease == lease) sessions.push_back(at->second);
  }
  bool taken = false;
  for (const SessionId id : sessions) taken |= TakeAllowance(id, core_.tables.sessions.at(id), card);
  return taken;
}

Bytes BrokerImpl::AllowanceOf(LeaseKey lease, CardId card) const {
  Bytes limits;
  for (const LogicalId device : DevicesOn(lease, card)) limits += core_.tables.ledger.View(device).limit;
  std::uint64_t processes = 0;
  for (auto at = core_.tables.charging.lower_bound({card, SessionId()});
       at != core_.tables.charging.end() && at->first == card; ++at) {
    processes += core_.tables.sessions.at(at->second).lease == lease ? 1 : 0;
  }
  const Bytes share(limits.count() / kAllowanceShare / std::max<std::uint64_t>(processes, 1));
  return RoundDown(std::min(share, kMostAllowance), core_.tables.cards.at(card).device.granularity);
}

BrokerImpl::Lent BrokerImpl::Lend(const Waiter& waiter) {
  const CardId card = waiter.charge->card;
  const SessionId id = waiter.spec.session;
  const SessionEntry& session = core_.tables.sessions.at(id);
  const CardCharge& charge = session.charges.at(card);
  Lent lent{.session = id,
            .card = card,
            .bytes = waiter.charge->bytes,
            .refill = {},
            .keep = {},
            .allowances = session.allowances,
            .index = charge.index};
  const std::vector<LogicalId> devices = DevicesOn(session.lease, card);
  // While a request waits for the card or for a limit of the lease, no
  // allowance is lent.
  const bool others_wait = !core_.tables.queues.at(card).empty() ||
                           std::any_of(devices.begin(), devices.end(), [&](LogicalId device) {
                             core_.mutex.AssertHeld();
                             return !core_.tables.devices.at(device).limit_waiters.empty();
                           });
  if (lent.allowances == nullptr || others_wait || devices.empty()) return lent;
  lent.keep = AllowanceOf(session.lease, card);
  const Bytes free(lent.allowances->Free(lent.index).load(std::memory_order_relaxed));
  const Bytes granularity = core_.tables.cards.at(card).device.granularity;
  Bytes refill = RoundDown(SaturatingSub(lent.keep, free), granularity);
  for (; !refill.is_zero(); refill = RoundDown(Bytes(refill.count() / 2), granularity)) {
    const Ledger::Split split = core_.tables.ledger.CheckSplit(devices, refill);
    if (split.verdict.shortage != Ledger::Shortage::kNone) continue;
    Book(id, card, refill, split.parts);
    lent.refill = refill;
    break;
  }
  return lent;
}

BrokerImpl::GrowAnswer BrokerImpl::LoggedCharge(GrowAnswer answer) {
  if (!answer.lent) return answer;
  const Lent& lent = *answer.lent;
  if (absl::Status committed = core_.log.Commit(); !committed.ok()) {
    {
      BrokerLock lock(core_);
      UnchargeLocked(lent.session, lent.card, lent.bytes + lent.refill);
      --core_.tables.counters.charges;
      ++core_.tables.counters.refusals;
    }
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

void BrokerImpl::UnchargeLocked(SessionId id, CardId card, Bytes bytes) {
  const auto session = core_.tables.sessions.find(id);
  if (session == core_.tables.sessions.end()) return;
  const auto charge = session->second.charges.find(card);
  if (charge == session->second.charges.end() || charge->second.leaving) return;
  charge->second.lent -= std::min(bytes, charge->second.lent);
  if (FitCharge(id, session->second, card)) Serve(card);
}

absl::Status BrokerImpl::Uncharge(SessionId session, const std::string& card_uuid, Bytes bytes) {
  {
    BrokerLock lock(core_);
    const std::optional<CardId> card = FindCard(card_uuid);
    const auto found = core_.tables.sessions.find(session);
    if (!card || found == core_.tables.sessions.end() || !found->second.charges.contains(*card)) {
      return absl::InvalidArgumentError(
          absl::StrCat("Uncharge of card \"", card_uuid, "\", of which the session has charged nothing"));
    }
    UnchargeLocked(session, *card, bytes);
  }
  return absl::OkStatus();
}

std::vector<BrokerImpl::Charged> BrokerImpl::ChargesOf(SessionId session) const {
  std::vector<Charged> charges;
  MutexLock lock(core_.mutex);
  const auto found = core_.tables.sessions.find(session);
  if (found == core_.tables.sessions.end()) return charges;
  for (const auto& [card, charge] : found->second.charges) {
    Charged& out = charges.emplace_back(Charged{.card_uuid = core_.tables.cards.at(card).device.uuid,
                                                .index = charge.index,
                                                .lent = charge.lent,
                                                .used = charge.lent});
    if (Allowances* const words = found->second.allowances.get(); words != nullptr && !charge.leaving) {
      out.used = SaturatingSub(charge.lent, Bytes(words->Free(charge.index).load(std::memory_order_relaxed)));
    }
  }
  return charges;
}

void BrokerImpl::StartLeavingCharges(SessionEntry& session, std::set<CardId>& touched) {
  session.allowances.reset();
  for (auto& [card, charge] : session.charges) {
    if (std::exchange(charge.leaving, true)) continue;
    for (const auto& [device, bytes] : charge.held) core_.tables.ledger.StartLeaving(device, bytes);
    touched.insert(card);
  }
}

void BrokerImpl::EndCharges(const std::vector<SessionId>& sessions) {
  {
    BrokerLock lock(core_);
    std::set<CardId> touched;
    for (const SessionId id : sessions) {
      const auto session = core_.tables.sessions.find(id);
      if (session == core_.tables.sessions.end()) continue;
      for (auto& [card, charge] : session->second.charges) {
        if (!charge.leaving) continue;
        EndCharge(id, session->second, card, Bytes());
        touched.insert(card);
      }
    }
    for (const CardId card : touched) Serve(card);
  }
}

void BrokerImpl::LowerCharges(SessionId id, const std::map<std::string, Bytes>& by_card) {
  {
    BrokerLock lock(core_);
    const auto session = core_.tables.sessions.find(id);
    if (session == core_.tables.sessions.end()) return;
    for (auto& [card, charge] : session->second.charges) {
      if (!charge.leaving) continue;
      const auto rest = by_card.find(core_.tables.cards.at(card).device.uuid);
      EndCharge(id, session->second, card, rest == by_card.end() ? Bytes() : rest->second);
      Serve(card);
    }
  }
}

void BrokerImpl::EndCharge(SessionId id, SessionEntry& session, CardId card, Bytes rest) {
  CardCharge& charge = session.charges.at(card);
  charge.lent = std::min(charge.lent, rest);
  Bytes excess =
      SaturatingSub(SumOf(charge.held), RoundUp(charge.lent, core_.tables.cards.at(card).device.granularity));
  while (!excess.is_zero()) {
    const auto last = std::prev(charge.held.end());
    const LogicalId device = last->first;
    const Bytes part = std::min(excess, last->second);
    core_.tables.ledger.ConfirmFree(device, part);
    DropHeld(id, session, device, part);
    last->second -= part;
    if (last->second.is_zero()) charge.held.erase(last);
    ForgetIfEmpty(device);
    excess -= part;
  }
  if (charge.held.empty()) core_.tables.charging.erase({card, id});
}

std::vector<ChunkId> BrokerImpl::TakeBallast(const std::vector<LogicalId>& devices, Bytes bytes) {
  Bytes spare;
  for (const LogicalId logical : devices) spare += core_.tables.devices.at(logical).spare_bytes;
  if (spare < bytes) return {};
  // Small ones first, so that little more goes than is needed.
  std::vector<ChunkId> taken;
  Bytes sum;
  for (const LogicalId logical : devices) {
    const auto& by_size = core_.tables.devices.at(logical).spare;
    for (auto size = by_size.rbegin(); size != by_size.rend(); ++size) {
      for (auto chunk = size->second.begin(); chunk != size->second.end() && sum < bytes; ++chunk) {
        taken.push_back(*chunk);
        sum += size->first;
      }
    }
  }
  for (const ChunkId id : taken) {
    ChunkEntry& chunk = core_.tables.chunks.at(id);
    TakeFromSpare(id, chunk);
    StartLeaving(chunk, ChunkEntry::State::kReturning);
  }
  return taken;
}

BrokerImpl::GrowAnswer BrokerImpl::FreeBallast(GrowId id, Waiter mine) {
  std::vector<MemoryHandle> memories;
  {
    BrokerLock lock(core_);
    for (const ChunkId chunk : mine.ballast) memories.push_back(core_.tables.chunks.at(chunk).memory);
  }
  std::vector<absl::Status> freed;
  for (const MemoryHandle& memory : memories) freed.push_back(core_.backend.Reclaim(memory));
  GrowAnswer answer;
  std::optional<Making> making;
  {
    BrokerLock lock(core_);
    MissingChunks missing;  // of others: these chunks were no session's
    for (std::size_t i = 0; i < freed.size(); ++i) Settle(mine.ballast[i], freed[i], missing);
    mine.ballast.clear();
    mine.phase = Waiter::Phase::kNew;
    // Before waiting requests are looked at: the freed memory belongs to this
    // charge.
    making = Place(id, mine, answer);
    Serve(mine.charge->card);
  }
  return making ? Make(id, std::move(mine), *making) : LoggedCharge(std::move(answer));
}

Refusal BrokerImpl::MakeChargeRefusal(const Waiter& waiter, RefusalCause cause) const {
  cause.asked = waiter.charge->bytes;
  const LogicalId first = waiter.spec.device;
  Refusal refusal = MakeRefusal(core_.tables.devices.at(first), first, cause);
  refusal.what = waiter.charge->what;
  Bytes limit, held;
  const LeaseKey lease = core_.tables.sessions.at(waiter.spec.session).lease;
  for (const LogicalId logical : DevicesOn(lease, waiter.charge->card)) {
    const Ledger::LogicalView view = core_.tables.ledger.View(logical);
    limit += view.limit;
    held += view.held() - core_.tables.devices.at(logical).spare_bytes;
  }
  if (cause.reason == RefusalReason::kLimit) {
    refusal.advice = {absl::StrCat("give the lease a higher memory_limit than ", FormatBytes(limit),
                                   ", or free memory in its programs")};
  }
  refusal.limit = limit;
  refusal.held = held;
  return refusal;
}

absl::Status BrokerImpl::CheckCharges() const {
  std::map<LogicalId, Bytes> lent;
  for (const auto& [id, session] : core_.tables.sessions) {
    for (const auto& [card, charge] : session.charges) {
      const Bytes held = SumOf(charge.held);
      if (held != RoundUp(charge.lent, core_.tables.cards.at(card).device.granularity) ||
          core_.tables.charging.contains({card, id}) == charge.held.empty()) {
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
  for (const auto& [id, device] : core_.tables.devices) {
    if (device.lent != lent[id]) {
      return absl::InternalError(absl::StrCat("device ", id.value, " has lent ", device.lent.count(),
                                              " bytes, its sessions have ", lent[id].count()));
    }
  }
  return absl::OkStatus();
}

}  // namespace lgpu
