#include "allocator/broker/card_observer.h"

#include <cstdint>
#include <map>
#include <optional>
#include <utility>

#include "allocator/broker/broker_core.h"

namespace lgpu {

void CardObserver::ObserveCards() {
  std::vector<std::pair<CardId, int>> cards;
  {
    BrokerLock lock(core_);
    for (const auto& [id, card] : core_.tables.cards) {
      if (!card.device.simulated) cards.emplace_back(id, card.backend_device);
    }
    core_.charges.LogLess();
  }
  for (const auto& [card, backend_device] : cards) {
    std::map<std::int64_t, Bytes> held;
    {
      BrokerLock lock(core_);
      held = core_.overheads.HeldOn(card);
    }
    const std::optional<CardReport> report = CardReport::Take(core_.backend, backend_device);
    if (!report) continue;
    BrokerLock lock(core_);
    core_.overheads.NoteUncharged(card, *report, core_.overheads.Observe(card, *report), std::move(held));
    core_.scheduler.Serve(card);
  }
}

void CardObserver::ObserveCard(const std::string& uuid) {
  std::optional<CardId> card;
  {
    BrokerLock lock(core_);
    card = core_.tables.FindCard(uuid);
  }
  if (card) ObserveCard(*card);
}

void CardObserver::ObserveCard(CardId card) {
  int backend_device = 0;
  {
    BrokerLock lock(core_);
    const BrokerCard& about = core_.tables.cards.at(card);
    if (about.device.simulated) return;
    Broker::TimePoint& observed_at = core_.tables.observed_at[card];
    if (core_.now() < observed_at + BrokerTables::kBackendRetry) return;
    observed_at = core_.now();
    backend_device = about.backend_device;
  }
  const std::optional<CardReport> report = CardReport::Take(core_.backend, backend_device);
  if (!report) return;
  BrokerLock lock(core_);
  core_.overheads.Observe(card, *report);
  core_.scheduler.Serve(card);
}

bool CardObserver::IsStillListed(SessionId id) {
  std::int64_t pid = 0;
  std::vector<std::pair<CardId, int>> cards;
  {
    BrokerLock lock(core_);
    const SessionEntry* const session = core_.tables.FindSession(id);
    if (session == nullptr) return false;
    pid = session->pid;
    for (const auto& [card, charge] : session->charges) {
      const BrokerCard& about = core_.tables.cards.at(card);
      if (!charge.leaving || charge.held.empty() || about.device.simulated) continue;
      cards.emplace_back(card, about.backend_device);
    }
  }
  for (const auto& [card, backend_device] : cards) {
    Bytes used;
    for (const DeviceMemory::ProcessMemory& process : core_.backend.ProcessesOn(backend_device)) {
      if (process.pid == pid) used += process.used;
    }
    BrokerLock lock(core_);
    if (!used.is_zero() && used > core_.overheads.AccountedTo(pid, card)) return true;
  }
  return false;
}

void CardObserver::SetForeign(CardId card, Bytes bytes) {
  BrokerLock lock(core_);
  if (core_.tables.ledger.View(card).foreign == bytes) return;
  core_.tables.ledger.SetForeign(card, bytes);
  core_.scheduler.Serve(card);
}

CardObserver::Overheads CardObserver::overheads() const {
  BrokerLock lock(core_);
  return core_.overheads.Overheads();
}

void CardObserver::SumUnusedLocked() {
  core_.mutex.AssertHeld();
  unused_ = {.of_lease = {}, .of_session = {}, .at = core_.now()};
  for (const auto& [card, session] : core_.tables.charging) {
    const Bytes bytes = core_.charges.UnusedOf(session, card);
    if (bytes.is_zero()) continue;
    unused_.of_session[{session, card}] = bytes;
    unused_.of_lease[{core_.tables.sessions.at(session).lease, card}] += bytes;
  }
}

void CardObserver::SumUnused() {
  BrokerLock lock(core_);
  SumUnusedLocked();
}

Bytes CardObserver::UnusedByOthers(SessionId session, CardId card) {
  BrokerLock lock(core_);
  if (core_.now() >= unused_.at + kUnusedAge) SumUnusedLocked();
  const SessionEntry* const entry = core_.tables.FindSession(session);
  if (entry == nullptr) return Bytes();
  const auto all = unused_.of_lease.find({entry->lease, card});
  const auto own = unused_.of_session.find({session, card});
  if (all == unused_.of_lease.end()) return Bytes();
  return own == unused_.of_session.end() ? all->second : SaturatingSub(all->second, own->second);
}

std::vector<CardObserver::Uncharged> CardObserver::UnchargedUse() const {
  BrokerLock lock(core_);
  return core_.overheads.Uncharged();
}

Bytes CardObserver::UnreturnedBy(SessionId session) const {
  BrokerLock lock(core_);
  const SessionEntry* const entry = core_.tables.FindSession(session);
  return entry == nullptr ? Bytes() : entry->unreturned;
}

std::vector<CardObserver::Unreturned> CardObserver::TakeUnreturned() {
  BrokerLock lock(core_);
  return core_.unreturned.TakeUnreturned();
}

}  // namespace lgpu
