// Real cards report what processes use. Memory outside chunks is charged to the process that has it.

#include <unistd.h>

#include <algorithm>
#include <set>
#include <utility>

#include "allocator/broker/broker.h"
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

void Broker::ObserveCards() {
  std::vector<std::pair<CardId, int>> cards;
  {
    MutexLock lock(mutex_);
    for (const auto& [id, card] : cards_) {
      if (!card.device.simulated) cards.emplace_back(id, card.backend_device);
    }
    // What programs gave back since the last look: the next broker need not charge it.
    for (auto& [id, session] : sessions_) {
      for (auto& [card, charge] : session.charges) {
        for (auto& [device, logged] : charge.logged) {
          const auto held = charge.held.find(device);
          const Bytes now = held == charge.held.end() ? Bytes() : held->second;
          if (now < logged) {
            logged = now;
            log_.NoteCharged({.session = id, .device = device, .bytes = now});
          }
        }
      }
    }
  }
  Wakes wakes;
  for (const auto& [card, backend_device] : cards) {
    const std::optional<CardReport> report = CardReport::Take(backend_, backend_device);
    if (!report) continue;
    MutexLock lock(mutex_);
    NoteUncharged(card, *report, Observe(card, *report));
    Serve(card, wakes);
  }
  WakeAll(wakes);
}

void Broker::NoteUncharged(CardId card, const CardReport& report,
                           const std::map<std::int64_t, Bytes>& beside) {
  const BrokerCard& about = cards_.at(card);
  if (about.overhead_allowance.is_zero() || about.device.uuid.starts_with("MIG-")) return;
  bool is_any = false;
  for (const auto& [pid, bytes] : beside) {
    if (pid == ::getpid() || bytes <= about.overhead_allowance + kUnchargedSlack) continue;
    Beyond& beyond = uncharged_[{card, pid}];
    ++beyond.readings;
    beyond.beside = bytes;
    is_any = true;
  }
  std::erase_if(uncharged_, [&](const auto& entry) {
    const auto now = beside.find(entry.first.second);
    return entry.first.first == card &&
           (now == beside.end() || now->second <= about.overhead_allowance + kUnchargedSlack);
  });
  listed_.erase(card);
  if (!is_any) return;
  for (const DeviceMemory::ProcessMemory& process : report.processes) listed_[card].insert(process.pid);
}

std::vector<Broker::Uncharged> Broker::UnchargedUse() const {
  constexpr int kReadings = 2;
  std::vector<Uncharged> found;
  MutexLock lock(mutex_);
  for (const auto& [where, beyond] : uncharged_) {
    if (beyond.readings < kReadings) continue;
    found.push_back({.pid = where.second,
                     .card_index = cards_.at(where.first).index,
                     .beside = beyond.beside,
                     .listed = listed_.at(where.first)});
  }
  return found;
}

void Broker::SetStopped(LeaseKey lease, bool is_stopped) {
  Wakes wakes;
  {
    MutexLock lock(mutex_);
    if (!is_stopped) {
      stopped_.erase(lease);
      return;
    }
    stopped_.insert(lease);
    for (const auto& [card, about] : cards_) {
      if (TakeAllowances(card, lease)) Serve(card, wakes);
    }
  }
  WakeAll(wakes);
}

void Broker::ObserveCard(const std::string& uuid) {
  std::optional<CardId> card;
  int backend_device = 0;
  {
    MutexLock lock(mutex_);
    card = FindCard(uuid);
    if (!card || cards_.at(*card).device.simulated || now_() < observed_at_[*card] + kBackendRetry) return;
    observed_at_[*card] = now_();
    backend_device = cards_.at(*card).backend_device;
  }
  const std::optional<CardReport> report = CardReport::Take(backend_, backend_device);
  if (!report) return;
  Wakes wakes;
  {
    MutexLock lock(mutex_);
    Observe(*card, *report);
    Serve(*card, wakes);
  }
  WakeAll(wakes);
}

std::map<std::int64_t, Bytes> Broker::Observe(CardId card, const CardReport& report) {
  const Ledger::CardView view = ledger_.View(card);
  ChunkUse chunks{.total = view.total, .existing = view.held, .granted = {}};
  for (const auto& [id, device] : devices_) {
    if (device.spec.card != card) continue;
    chunks.existing -= device.charged + device.lent;
    for (const auto& [session, held] : device.held_by) chunks.granted[sessions_.at(session).pid] += held;
  }
  std::map<std::int64_t, Bytes> charged;
  for (auto at = charging_.lower_bound({card, SessionId()}); at != charging_.end() && at->first == card;
       ++at) {
    const Session& session = sessions_.at(at->second);
    for (const auto& [device, held] : session.charges.at(card).held) {
      charged[session.pid] += held;
      chunks.granted[session.pid] -= held;
    }
  }
  std::map<std::int64_t, Bytes> beside = BesideChunks(WithoutCharges(report, charged), chunks);
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
    }
    wanted += overhead.wanted;
    ledger_.RefundOverhead(card, std::exchange(overhead.charged, Bytes()));
  }
  // Chunks that are being made count as ours: a moment of too little is better than one of too much.
  const auto unexplained = [&](Bytes overhead) {
    return SaturatingSub(SaturatingSub(view.total, report.free), view.held + overhead);
  };
  ledger_.SetForeign(card, unexplained(wanted));
  for (auto& [where, overhead] : overheads_) {
    if (where.second == card) ChargeOverhead(card, overhead);
  }
  // Overhead that the card has no room for stays foreign.
  ledger_.SetForeign(card, unexplained(ledger_.View(card).overhead));
  return beside;
}

Bytes Broker::AccountedTo(std::int64_t pid, CardId card) const {
  Bytes sum;
  for (const auto& [id, session] : sessions_) {
    if (session.pid != pid) continue;
    const auto charge = session.charges.find(card);
    if (charge != session.charges.end() && charge->second.leaving) continue;
    for (const auto& [logical, device] : devices_) {
      if (device.spec.card != card) continue;
      if (const auto held = device.held_by.find(id); held != device.held_by.end()) sum += held->second;
    }
    // Its context, which has the process's overhead.
    sum += std::max(cards_.at(card).overhead_allowance, kUnmeasuredContext);
  }
  return sum;
}

std::set<SessionId> Broker::StillListed(const std::vector<SessionId>& ids) {
  struct Place {
    SessionId session;
    CardId card;
    std::int64_t pid;
    int backend_device;
  };
  std::vector<Place> places;
  {
    MutexLock lock(mutex_);
    for (const SessionId id : ids) {
      const auto session = sessions_.find(id);
      if (session == sessions_.end()) continue;
      for (const auto& [card, charge] : session->second.charges) {
        const BrokerCard& about = cards_.at(card);
        if (!charge.leaving || charge.held.empty() || about.device.simulated) continue;
        places.push_back({id, card, session->second.pid, about.backend_device});
      }
    }
  }
  std::set<SessionId> listed;
  for (const Place& place : places) {
    Bytes used;
    for (const DeviceMemory::ProcessMemory& process : backend_.ProcessesOn(place.backend_device)) {
      if (process.pid == place.pid) used += process.used;
    }
    if (used.is_zero()) continue;
    MutexLock lock(mutex_);
    if (used > AccountedTo(place.pid, place.card)) listed.insert(place.session);
  }
  return listed;
}

void Broker::ChargeOverhead(CardId card, Overhead& overhead) {
  overhead.charged = std::min(overhead.wanted, ledger_.View(card).free());
  LGPU_CHECK(ledger_.ChargeOverhead(card, overhead.charged).ok());
}

Broker::Overheads Broker::overheads() const {
  Overheads sums;
  std::set<std::pair<LeaseKey, std::pair<std::int64_t, CardId>>> counted;
  MutexLock lock(mutex_);
  for (const auto& [id, session] : sessions_) {
    for (const CardId card : session.on_cards) {
      const Bytes bytes = overheads_.at({session.pid, card}).wanted;
      sums.of_session[id] += bytes;
      if (counted.insert({session.lease, {session.pid, card}}).second)
        sums.of_lease[{session.lease, card}] += bytes;
    }
  }
  return sums;
}

}  // namespace lgpu
