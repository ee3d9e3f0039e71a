// The calls of a Broker about sessions: what they may use, and what they have charged.

#include <utility>

#include "absl/strings/str_cat.h"
#include "allocator/broker/broker_parts.h"
#include "base/check.h"

namespace lgpu {

void Broker::AddSession(SessionId session, SessionSpec spec) {
  BrokerCore& core = parts_->core;
  BrokerLock lock(core);
  SessionEntry& entry = core.tables.sessions[session];
  entry.pid = spec.pid;
  entry.waker = std::move(spec.waker);
  entry.trims = spec.trims;
  entry.waits_longer = spec.waits_longer;
  entry.suspends_itself = spec.suspends_itself;
  entry.runs_release = spec.runs_release;
}

void Broker::AttachSession(SessionId session, LeaseKey lease) {
  BrokerCore& core = parts_->core;
  BrokerLock lock(core);
  if (SessionEntry* const entry = core.tables.FindSession(session)) {
    entry->lease = lease;
    core.overheads.Charge(*entry);
  }
}

void Broker::RemoveSession(SessionId session) {
  BrokerCore& core = parts_->core;
  BrokerLock lock(core);
  SessionEntry* const entry = core.tables.FindSession(session);
  if (entry == nullptr) return;
  LGPU_CHECK(entry->chunks.empty() && entry->waiting.empty() && entry->held.is_zero());
  core.trims.Stop(session);
  const LeaseKey lease = entry->lease;
  auto freed = core.overheads.Refund(*entry);
  core.tables.sessions.erase(session);
  // A suspended lease needs less without it, and less room is kept.
  if (core.tables.suspensions.contains(lease)) {
    for (const auto& [id, device] : core.tables.devices) {
      if (device.spec.lease == lease) freed.insert(device.spec.card);
    }
  }
  for (const CardId card : freed) core.scheduler.Serve(card);
}

Bytes Broker::Held(SessionId session) const {
  BrokerCore& core = parts_->core;
  BrokerLock lock(core);
  const SessionEntry* const entry = core.tables.FindSession(session);
  return entry == nullptr ? Bytes() : entry->held;
}

void Broker::SetStopped(LeaseKey lease, bool is_stopped) {
  BrokerCore& core = parts_->core;
  BrokerLock lock(core);
  if (!is_stopped) {
    core.tables.stopped.erase(lease);
    return;
  }
  core.tables.stopped.insert(lease);
  for (const auto& [card, about] : core.tables.cards) {
    core.charges.TakeAllowances(card, lease);
    core.scheduler.Serve(card);  // refuses the lease's requests that wait
  }
}

// Charges.

void Broker::ShareAllowances(SessionId session, std::shared_ptr<Allowances> allowances) {
  BrokerCore& core = parts_->core;
  BrokerLock lock(core);
  core.trims.Stop(session);
  core.tables.sessions.at(session).allowances = std::move(allowances);
}

absl::Status Broker::Uncharge(SessionId session, const std::string& card_uuid, Bytes bytes) {
  BrokerCore& core = parts_->core;
  BrokerLock lock(core);
  const std::optional<CardId> card = core.tables.FindCard(card_uuid);
  const SessionEntry* const entry = core.tables.FindSession(session);
  if (!card || entry == nullptr || !entry->charges.contains(*card)) {
    return absl::InvalidArgumentError(
        absl::StrCat("Uncharge of card \"", card_uuid, "\", of which the session has charged nothing"));
  }
  // Without a granule for other sessions, the rest of the last one may be enough for a request of this one.
  if (core.charges.Uncharge(session, *card, bytes) || !entry->waiting.empty()) core.scheduler.Serve(*card);
  return absl::OkStatus();
}

std::vector<Broker::Charged> Broker::ChargesOf(SessionId session) const {
  std::vector<Charged> charges;
  BrokerCore& core = parts_->core;
  BrokerLock lock(core);
  const SessionEntry* const entry = core.tables.FindSession(session);
  if (entry == nullptr) return charges;
  for (const auto& [card, charge] : entry->charges) {
    Charged& out = charges.emplace_back(Charged{.card_uuid = core.tables.cards.at(card).device.uuid,
                                                .index = charge.index,
                                                .lent = charge.lent,
                                                .used = charge.lent});
    if (Allowances* const words = entry->allowances.get(); words != nullptr && !charge.leaving) {
      out.used = SaturatingSub(charge.lent, Bytes(words->Free(charge.index).load(std::memory_order_relaxed)));
    }
  }
  return charges;
}

void Broker::LowerCharges(SessionId session, const std::map<std::string, Bytes>& by_card) {
  BrokerCore& core = parts_->core;
  BrokerLock lock(core);
  const SessionEntry* const entry = core.tables.FindSession(session);
  if (entry == nullptr) return;
  for (const auto& [card, charge] : entry->charges) {
    if (!charge.leaving) continue;
    const auto rest = by_card.find(core.tables.cards.at(card).device.uuid);
    core.charges.EndBeyond(session, card, rest == by_card.end() ? Bytes() : rest->second);
    core.scheduler.Serve(card);
  }
}

}  // namespace lgpu
