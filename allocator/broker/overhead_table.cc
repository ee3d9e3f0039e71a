#include "allocator/broker/overhead_table.h"

#include <unistd.h>

#include <algorithm>
#include <utility>

#include "allocator/broker/card_observer.h"
#include "allocator/broker/card_use.h"
#include "base/check.h"

namespace lgpu {
namespace {

// A context takes 200 to 600 MiB of real GPUs; where nothing was said of it, so much is no memory of an
// earlier session of the process.
constexpr Bytes kUnmeasuredContext(std::uint64_t{600} << 20);

// Beyond the overhead allowance: what drivers round, and what a library takes besides.
constexpr Bytes kUnchargedSlack(std::uint64_t{64} << 20);

}  // namespace

void OverheadTable::Charge(SessionEntry& session) {
  for (const auto& [id, device] : tables_.devices) {
    const CardId card = device.spec.card;
    if (device.spec.lease != session.lease || device.removed || !session.on_cards.insert(card).second) {
      continue;
    }
    Overhead& overhead = overheads_[{session.pid, card}];
    if (overhead.sessions++ == 0) {
      const BrokerCard& about = tables_.cards.at(card);
      if (!about.lists_processes) overhead.wanted = about.overhead_allowance;
      Charge(card, overhead);
    }
  }
}

void OverheadTable::Charge(CardId card, Overhead& overhead) {
  overhead.charged = std::min(overhead.wanted, tables_.ledger.View(card).free());
  LGPU_CHECK(tables_.ledger.ChargeOverhead(card, overhead.charged).ok());
}

std::set<CardId> OverheadTable::Refund(SessionEntry& session) {
  std::set<CardId> freed;
  for (const CardId card : std::exchange(session.on_cards, {})) {
    const auto found = overheads_.find({session.pid, card});
    if (--found->second.sessions > 0) continue;
    const Bytes charged = found->second.charged;
    overheads_.erase(found);
    if (charged.is_zero()) continue;
    tables_.ledger.RefundOverhead(card, charged);
    freed.insert(card);
  }
  return freed;
}

Bytes OverheadTable::WantedBy(std::int64_t pid, CardId card) const {
  const auto found = overheads_.find({pid, card});
  return found == overheads_.end() ? Bytes() : found->second.wanted;
}

void OverheadTable::Expect(std::int64_t pid, CardId card, Bytes wanted) {
  Overhead& overhead = overheads_.at({pid, card});
  if (wanted <= overhead.wanted) return;
  tables_.ledger.RefundOverhead(card, std::exchange(overhead.charged, Bytes()));
  overhead.wanted = wanted;
  Charge(card, overhead);
}

std::map<std::int64_t, Bytes> OverheadTable::BesideChunksOf(CardId card, const CardReport& report) const {
  const Ledger::CardView view = tables_.ledger.View(card);
  ChunkUse chunks{.total = view.total, .existing = tables_.InChunks(card), .granted = {}};
  for (const auto& [id, device] : tables_.devices) {
    if (device.spec.card != card) continue;
    for (const auto& [session, held] : device.held_by) {
      chunks.granted[tables_.sessions.at(session).pid] += held;
    }
  }
  std::map<std::int64_t, Bytes> charged;
  for (const SessionId id : tables_.ChargingOn(card)) {
    const SessionEntry& session = tables_.sessions.at(id);
    const Bytes held = session.charges.at(card).HeldInAll();
    charged[session.pid] += held;
    chunks.granted[session.pid] -= held;
  }
  return BesideChunks(WithoutCharges(report, std::move(charged)), chunks);
}

std::map<std::int64_t, Bytes> OverheadTable::Observe(CardId card, const CardReport& report) {
  std::map<std::int64_t, Bytes> beside = BesideChunksOf(card, report);
  std::vector<DeviceMemory::ProcessMemory>& outsiders = outsiders_[card];
  outsiders.clear();
  for (const auto& [pid, bytes] : beside) {
    if (pid != ::getpid() && !overheads_.contains({pid, card})) outsiders.push_back({pid, bytes});
  }
  // All is given up first: what one program has less of makes room for another's.
  Bytes wanted;
  for (auto& [where, overhead] : overheads_) {
    if (where.second != card) continue;
    if (const auto measured = beside.find(where.first); measured != beside.end()) {
      overhead.wanted = measured->second;
    } else if (tables_.cards.at(card).lists_processes) {
      overhead.wanted = UnlistedOf(card, where.first);
    }
    wanted += overhead.wanted;
    tables_.ledger.RefundOverhead(card, std::exchange(overhead.charged, Bytes()));
  }
  // Chunks that are being made count as ours: a moment of too little is better than one of too much.
  const Ledger::CardView view = tables_.ledger.View(card);
  const auto unexplained = [&](Bytes overhead) {
    return SaturatingSub(SaturatingSub(view.total, report.free), view.held + overhead);
  };
  tables_.ledger.SetForeign(card, unexplained(wanted));
  for (auto& [where, overhead] : overheads_) {
    if (where.second == card) Charge(card, overhead);
  }
  // Overhead that the card has no room for stays foreign.
  tables_.ledger.SetForeign(card, unexplained(tables_.ledger.View(card).overhead));
  return beside;
}

Bytes OverheadTable::UnlistedOf(CardId card, std::int64_t pid) const {
  const std::map<std::int64_t, Bytes> held = HeldOn(card);
  const bool has_memory = held.contains(pid) && !held.at(pid).is_zero();
  return has_memory ? tables_.cards.at(card).overhead_allowance : Bytes();
}

std::map<std::int64_t, Bytes> OverheadTable::HeldOn(CardId card) const {
  std::map<std::int64_t, Bytes> held;
  for (const auto& [id, device] : tables_.devices) {
    if (device.spec.card != card) continue;
    for (const auto& [session, bytes] : device.held_by) held[tables_.sessions.at(session).pid] += bytes;
  }
  return held;
}

void OverheadTable::NoteUncharged(CardId card, const CardReport& report, std::map<std::int64_t, Bytes> beside,
                                  std::map<std::int64_t, Bytes> held) {
  const BrokerCard& about = tables_.cards.at(card);
  if (about.watched_overhead.is_zero() || about.device.uuid.starts_with("MIG-")) return;
  std::map<std::int64_t, Bytes> now = HeldOn(card);
  std::map<std::int64_t, Bytes>& before = charged_before_[card];
  for (auto& [pid, bytes] : beside) {
    const Bytes recent = std::max(held[pid], before[pid]);
    bytes = SaturatingSub(bytes, SaturatingSub(recent, now[pid]));
  }
  before = std::move(now);
  const Bytes most = about.watched_overhead + kUnchargedSlack;
  bool is_any = false;
  for (const auto& [pid, bytes] : beside) {
    if (pid == ::getpid() || bytes <= most) continue;
    Beyond& beyond = uncharged_[{card, pid}];
    ++beyond.readings;
    beyond.beside = bytes;
    is_any = true;
  }
  std::erase_if(uncharged_, [&](const auto& entry) {
    const auto still = beside.find(entry.first.second);
    return entry.first.first == card && (still == beside.end() || still->second <= most);
  });
  listed_.erase(card);
  if (!is_any) return;
  for (const DeviceMemory::ProcessMemory& process : report.processes) listed_[card].insert(process.pid);
}

std::vector<CardObserver::Uncharged> OverheadTable::Uncharged() const {
  constexpr int kReadings = 2;
  std::vector<CardObserver::Uncharged> found;
  for (const auto& [where, beyond] : uncharged_) {
    if (beyond.readings < kReadings) continue;
    found.push_back({.pid = where.second,
                     .card_index = tables_.cards.at(where.first).index,
                     .beside = beyond.beside,
                     .allowed = tables_.cards.at(where.first).watched_overhead,
                     .listed = listed_.at(where.first)});
  }
  return found;
}

Bytes OverheadTable::AccountedTo(std::int64_t pid, CardId card) const {
  Bytes sum;
  bool has_context = false;
  for (const auto& [id, session] : tables_.sessions) {
    if (session.pid != pid) continue;
    const auto charge = session.charges.find(card);
    if (charge != session.charges.end() && charge->second.leaving) continue;
    for (const auto& [logical, device] : tables_.devices) {
      if (device.spec.card != card) continue;
      if (const auto held = device.held_by.find(id); held != device.held_by.end()) sum += held->second;
    }
    has_context |= session.on_cards.contains(card);
  }
  // The sessions share the process's context, which has its overhead.
  if (has_context) sum += std::max(tables_.cards.at(card).overhead_allowance, kUnmeasuredContext);
  return sum;
}

CardObserver::Overheads OverheadTable::Overheads() const {
  CardObserver::Overheads sums;
  std::set<std::pair<LeaseKey, std::pair<std::int64_t, CardId>>> counted;
  for (const auto& [id, session] : tables_.sessions) {
    for (const CardId card : session.on_cards) {
      const Bytes bytes = overheads_.at({session.pid, card}).wanted;
      sums.of_session[id] += bytes;
      if (counted.insert({session.lease, {session.pid, card}}).second) {
        sums.of_lease[{session.lease, card}] += bytes;
      }
    }
  }
  return sums;
}

const std::vector<DeviceMemory::ProcessMemory>* OverheadTable::OutsidersOf(CardId card) const {
  const auto found = outsiders_.find(card);
  return found == outsiders_.end() ? nullptr : &found->second;
}

}  // namespace lgpu
