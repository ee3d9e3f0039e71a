#include "allocator/broker/charge_table.h"

#include <algorithm>
#include <iterator>

#include "base/check.h"

namespace lgpu {
namespace {

// The most that a program may have lent and unused.
// Of the limit, for all processes of a lease together.
constexpr std::uint64_t kAllowanceShare = 8;

}  // namespace

Ledger::Split ChargeTable::SplitOf(const Waiter& waiter) const {
  const CardId card = waiter.charge->card;
  const SessionEntry& session = tables_.sessions.at(waiter.spec.session);
  const CardCharge& charge = session.charges.at(card);
  const Bytes granules = RoundUp(SaturatingAdd(charge.lent, waiter.charge->bytes), tables_.GranuleOf(card));
  const Bytes lacking = SaturatingSub(granules, charge.HeldInAll());
  if (lacking.is_zero()) return {};
  return tables_.ledger.CheckSplit(tables_.DevicesOn(session.lease, card), lacking);
}

CardCharge& ChargeTable::Open(SessionId id, CardId card) {
  SessionEntry& session = tables_.sessions.at(id);
  const auto [charge, is_new] = session.charges.try_emplace(card);
  if (is_new) charge->second.index = tables_.IndexOf(session.lease, card);
  return charge->second;
}

void ChargeTable::Hold(SessionId id, LogicalId logical, Bytes bytes) {
  DeviceEntry& device = tables_.devices.at(logical);
  device.lent += bytes;
  device.held_by[id] += bytes;
  tables_.sessions.at(id).held += bytes;
}

void ChargeTable::Book(SessionId id, CardId card, Bytes bytes,
                       const std::vector<std::pair<LogicalId, Bytes>>& parts) {
  CardCharge& charge = tables_.sessions.at(id).charges.at(card);
  for (const auto& [logical, part] : parts) {
    LGPU_CHECK(tables_.ledger.Request(logical, part).shortage == Ledger::Shortage::kNone);
    charge.held[logical] += part;
    Hold(id, logical, part);
    tables_.devices.at(logical).last_charge = tables_.now();
  }
  charge.lent += bytes;
  tables_.charging.emplace(card, id);
  Fit(id, card);
  LogMore(id, charge);
}

template <typename GiveBack>
bool ChargeTable::DropExcess(SessionId id, CardId card, GiveBack give_back) {
  SessionEntry& session = tables_.sessions.at(id);
  CardCharge& charge = session.charges.at(card);
  Bytes excess = SaturatingSub(charge.HeldInAll(), RoundUp(charge.lent, tables_.GranuleOf(card)));
  const bool gives = !excess.is_zero();
  while (!excess.is_zero()) {
    const auto last = std::prev(charge.held.end());
    const LogicalId logical = last->first;
    const Bytes part = std::min(excess, last->second);
    DeviceEntry& device = tables_.devices.at(logical);
    device.lent -= part;
    session.held -= part;
    Bytes& held = device.held_by.at(id);
    held -= part;
    if (held.is_zero()) device.held_by.erase(id);
    last->second -= part;
    if (last->second.is_zero()) charge.held.erase(last);
    give_back(logical, part);
    excess -= part;
  }
  if (charge.held.empty()) tables_.charging.erase({card, id});
  return gives;
}

bool ChargeTable::Fit(SessionId id, CardId card) {
  return DropExcess(id, card,
                    [this](LogicalId device, Bytes bytes) { tables_.ledger.Refund(device, bytes); });
}

void ChargeTable::EndBeyond(SessionId id, CardId card, Bytes rest) {
  CardCharge& charge = tables_.sessions.at(id).charges.at(card);
  charge.lent = std::min(charge.lent, rest);
  DropExcess(id, card, [this](LogicalId device, Bytes bytes) {
    tables_.ledger.ConfirmFree(device, bytes);
    tables_.ForgetIfEmpty(device);
  });
}

void ChargeTable::LogMore(SessionId id, CardCharge& charge) {
  for (const auto& [device, bytes] : charge.held) {
    Bytes& logged = charge.logged[device];
    if (bytes <= logged) continue;
    logged = bytes;
    tables_.log.NoteCharged({.session = id, .device = device, .bytes = bytes});
  }
}

void ChargeTable::LogLess() {
  for (auto& [id, session] : tables_.sessions) {
    for (auto& [card, charge] : session.charges) {
      for (auto& [device, logged] : charge.logged) {
        const auto held = charge.held.find(device);
        const Bytes now = held == charge.held.end() ? Bytes() : held->second;
        if (now >= logged) continue;
        logged = now;
        tables_.log.NoteCharged({.session = id, .device = device, .bytes = now});
      }
    }
  }
}

bool ChargeTable::TakeAllowance(SessionId id, CardId card) {
  SessionEntry& session = tables_.sessions.at(id);
  CardCharge& charge = session.charges.at(card);
  if (session.allowances == nullptr || charge.leaving) return false;
  session.allowances->Keep(charge.index).store(0, std::memory_order_relaxed);
  const Bytes left(session.allowances->Free(charge.index).exchange(0, std::memory_order_acq_rel));
  return Lower(id, card, SaturatingSub(charge.lent, left));
}

bool ChargeTable::TakeAllowances(CardId card, LeaseKey lease) {
  bool taken = false;
  for (const SessionId id : tables_.ChargingOn(card, lease)) taken |= TakeAllowance(id, card);
  return taken;
}

Bytes ChargeTable::UnusedOf(SessionId id, CardId card) const {
  const SessionEntry& session = tables_.sessions.at(id);
  const CardCharge& charge = session.charges.at(card);
  if (session.allowances == nullptr || charge.leaving) return Bytes();
  const Bytes left(session.allowances->Free(charge.index).load(std::memory_order_relaxed));
  return std::min(left, charge.lent);
}

Bytes ChargeTable::AllowanceOf(LeaseKey lease, CardId card) const {
  Bytes limits;
  for (const LogicalId device : tables_.DevicesOn(lease, card)) limits += tables_.ledger.View(device).limit;
  const std::uint64_t processes = tables_.ChargingOn(card, lease).size();
  const Bytes share(limits.count() / kAllowanceShare / std::max<std::uint64_t>(processes, 1));
  return RoundDown(std::min(share, kMostAllowance), tables_.GranuleOf(card));
}

Broker::Lent ChargeTable::Lend(const Waiter& waiter, bool card_is_waited_for) {
  const CardId card = waiter.charge->card;
  const SessionId id = waiter.spec.session;
  const SessionEntry& session = tables_.sessions.at(id);
  Broker::Lent lent{.session = id,
                    .card = card,
                    .bytes = waiter.charge->bytes,
                    .refill = {},
                    .keep = {},
                    .allowances = session.allowances,
                    .index = session.charges.at(card).index};
  const std::vector<LogicalId> devices = tables_.DevicesOn(session.lease, card);
  // While a request waits for the card or for a limit of the lease, no allowance is lent; nor to a session
  // that gets no more memory since the charge was granted, or whose lease is suspended since then.
  const bool others_wait =
      card_is_waited_for || std::any_of(devices.begin(), devices.end(), [&](LogicalId device) {
        return !tables_.devices.at(device).limit_waiters.empty();
      });
  if (lent.allowances == nullptr || others_wait || devices.empty() || !tables_.CheckMayGrow(session).ok() ||
      tables_.suspensions.contains(session.lease)) {
    return lent;
  }
  lent.keep = AllowanceOf(session.lease, card);
  const Bytes free(lent.allowances->Free(lent.index).load(std::memory_order_relaxed));
  const Bytes granule = tables_.GranuleOf(card);
  Bytes refill = RoundDown(SaturatingSub(lent.keep, free), granule);
  for (; !refill.is_zero(); refill = RoundDown(Bytes(refill.count() / 2), granule)) {
    const Ledger::Split split = tables_.ledger.CheckSplit(devices, refill);
    if (split.verdict.shortage != Ledger::Shortage::kNone) continue;
    Book(id, card, refill, split.parts);
    lent.refill = refill;
    break;
  }
  return lent;
}

bool ChargeTable::Lower(SessionId id, CardId card, Bytes lent) {
  tables_.sessions.at(id).charges.at(card).lent = lent;
  return Fit(id, card);
}

bool ChargeTable::Uncharge(SessionId id, CardId card, Bytes bytes) {
  CardCharge& charge = tables_.sessions.at(id).charges.at(card);
  if (!charge.parked.lent.is_zero()) {
    charge.parked.lent = SaturatingSub(charge.parked.lent, bytes);
    return false;
  }
  return !charge.leaving && Lower(id, card, SaturatingSub(charge.lent, bytes));
}

void ChargeTable::Park(SessionId id, CardId card) {
  TakeAllowance(id, card);
  CardCharge& charge = tables_.sessions.at(id).charges.at(card);
  if (charge.leaving) return;
  charge.parked = {.lent = charge.lent, .held = charge.held};
  Lower(id, card, Bytes());
}

void ChargeTable::Unpark(SessionId id, CardId card) {
  CardCharge& charge = tables_.sessions.at(id).charges.at(card);
  const ParkedCharge parked = std::exchange(charge.parked, {});
  if (charge.leaving || parked.lent.is_zero()) return;
  for (const auto& [device, bytes] : parked.held) {
    tables_.ledger.Adopt(device, bytes);
    charge.held[device] += bytes;
    Hold(id, device, bytes);
  }
  charge.lent += parked.lent;
  tables_.charging.emplace(card, id);
  Fit(id, card);
  LogMore(id, charge);
}

void ChargeTable::RestoreParked(SessionId id, LogicalId device, Bytes bytes) {
  if (bytes.is_zero()) return;
  CardCharge& charge = Open(id, tables_.CardOf(device));
  charge.parked.lent += bytes;
  charge.parked.held[device] = bytes;
}

std::set<CardId> ChargeTable::StartLeaving(SessionEntry& session) {
  std::set<CardId> cards;
  session.allowances.reset();
  for (auto& [card, charge] : session.charges) {
    if (std::exchange(charge.leaving, true)) continue;
    for (const auto& [device, bytes] : charge.held) tables_.ledger.StartLeaving(device, bytes);
    charge.parked = {};
    cards.insert(card);
  }
  return cards;
}

void ChargeTable::Restore(SessionId id, LogicalId device, Bytes bytes) {
  if (bytes.is_zero()) return;
  const CardId card = tables_.CardOf(device);
  CardCharge& charge = Open(id, card);
  charge.lent += bytes;
  charge.held[device] = bytes;
  charge.logged[device] = bytes;
  tables_.charging.emplace(card, id);
  Hold(id, device, bytes);
  tables_.ledger.Adopt(device, bytes);
}

}  // namespace lgpu
