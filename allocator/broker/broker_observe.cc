// Real cards report what processes use. Memory outside chunks is charged to the
// process that has it.

#include <unistd.h>

#include <algorithm>
#include <set>
#include <utility>

#include "allocator/broker/broker_impl.h"
#include "allocator/broker/card_use.h"
#include "base/check.h"

namespace lgpu {
namespace {

// A context takes 200 to 600 MiB of real GPUs; where nothing was said of it, so
// much is no memory of an earlier session of the process.
constexpr Bytes kUnmeasuredContext(std::uint64_t{600} << 20);

// Beyond the overhead allowance: what drivers round, and what a library takes
// besides.
constexpr Bytes kUnchargedSlack(std::uint64_t{64} << 20);

}  // namespace

void BrokerImpl::ObserveCards() {
  std::vector<std::pair<CardId, int>> cards;
  {
    BrokerLock lock(core_);
    for (const auto& [id, card] : core_.tables.cards) {
      if (!card.device.simulated) cards.emplace_back(id, card.backend_device);
    }
    // What programs gave back since the last look: the next broker need not
    // charge it.
    for (auto& [id, session] : core_.tables.sessions) {
      for (auto& [card, charge] : session.charges) {
        for (auto& [device, logged] : charge.logged) {
          const auto held = charge.held.find(device);
          const Bytes now = held == charge.held.end() ? Bytes() : held->second;
          if (now < logged) {
            logged = now;
            core_.log.NoteCharged({.session = id, .device = device, .bytes = now});
          }
        }
      }
    }
  }
  for (const auto& [card, backend_device] : cards) {
    const std::optional<CardReport> report = CardReport::Take(core_.backend, backend_device);
    if (!report) continue;
    BrokerLock lock(core_);
    NoteUncharged(card, *report, Observe(card, *report));
    Serve(card);
  }
}

void BrokerImpl::NoteUncharged(CardId card, const CardReport& report,
                               const std::map<std::int64_t, Bytes>& beside) {
  const BrokerCard& about = core_.tables.cards.at(card);
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

std::vector<BrokerImpl::Uncharged> BrokerImpl::UnchargedUse() const {
  constexpr int kReadings = 2;
  std::vector<Uncharged> found;
  MutexLock lock(core_.mutex);
  for (const auto& [where, beyond] : uncharged_) {
    if (beyond.readings < kReadings) continue;
    found.push_back({.pid = where.second,
                     .card_index = core_.tables.cards.at(where.first).index,
                     .beside = beyond.beside,
                     .listed = listed_.at(where.first)});
  }
  return found;
}

void BrokerImpl::SetStopped(LeaseKey lease, bool is_stopped) {
  {
    BrokerLock lock(core_);
    if (!is_stopped) {
      core_.tables.stopped.erase(lease);
      return;
    }
    core_.tables.stopped.insert(lease);
    for (const auto& [card, about] : core_.tables.cards) {
      if (TakeAllowances(card, lease)) Serve(card);
    }
  }
}

void BrokerImpl::ObserveCard(const std::string& uuid) {
  std::optional<CardId> card;
  int backend_device = 0;
  {
    BrokerLock lock(core_);
    card = FindCard(uuid);
    if (!card || core_.tables.cards.at(*card).device.simulated ||
        core_.now() < observed_at_[*card] + kBackendRetry)
      return;
    observed_at_[*card] = core_.now();
    backend_device = core_.tables.cards.at(*card).backend_device;
  }
  const std::optional<CardReport> report = CardReport::Take(core_.backend, backend_device);
  if (!report) return;
  {
    BrokerLock lock(core_);
    Observe(*card, *report);
    Serve(*card);
  }
}

std::map<std::int64_t, Bytes> BrokerImpl::Observe(CardId card, const CardReport& report) {
  const Ledger::CardView view = core_.tables.ledger.View(card);
  ChunkUse chunks{.total = view.total, .existing = view.held, .granted = {}};
  for (const auto& [id, device] : core_.tables.devices) {
    if (device.spec.card != card) continue;
    chunks.existing -= device.charged + device.lent;
    for (const auto& [session, held] : device.held_by)
      chunks.granted[core_.tables.sessions.at(session).pid] += held;
  }
  std::map<std::int64_t, Bytes> charged;
  for (auto at = core_.tables.charging.lower_bound({card, SessionId()});
       at != core_.tables.charging.end() && at->first == card; ++at) {
    const SessionEntry& session = core_.tables.sessions.at(at->second);
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
  // All is given up first: what one program has less of makes room for
  // another's.
  Bytes wanted;
  for (auto& [where, overhead] : overheads_) {
    if (where.second != card) continue;
    if (const auto measured = beside.find(where.first); measured != beside.end()) {
      overhead.wanted = measured->second;
    }
    wanted += overhead.wanted;
    core_.tables.ledger.RefundOverhead(card, std::exchange(overhead.charged, Bytes()));
  }
  // Chunks that are being made count as ours: a moment of too little is better
  // than one of too much.
  const auto unexplained = [&](Bytes overhead) {
    return SaturatingSub(SaturatingSub(view.total, report.free), view.held + overhead);
  };
  core_.tables.ledger.SetForeign(card, unexplained(wanted));
  for (auto& [where, overhead] : overheads_) {
    if (where.second == card) ChargeOverhead(card, overhead);
  }
  // Overhead that the card has no room for stays foreign.
  core_.tables.ledger.SetForeign(card, unexplained(core_.tables.ledger.View(card).overhead));
  return beside;
}

Bytes BrokerImpl::AccountedTo(std::int64_t pid, CardId card) const {
  Bytes sum;
  for (const auto& [id, session] : core_.tables.sessions) {
    if (session.pid != pid) continue;
    const auto charge = session.charges.find(card);
    if (charge != session.charges.end() && charge->second.leaving) continue;
    for (const auto& [logical, device] : core_.tables.devices) {
      if (device.spec.card != card) continue;
      if (const auto held = device.held_by.find(id); held != device.held_by.end()) sum += held->second;
    }
    // Its context, which has the process's overhead.
    sum += std::max(core_.tables.cards.at(card).overhead_allowance, kUnmeasuredContext);
  }
  return sum;
}

std::set<SessionId> BrokerImpl::StillListed(const std::vector<SessionId>& ids) {
  struct Place {
    SessionId session;
    CardId card;
    std::int64_t pid;
    int backend_device;
  };
  std::vector<Place> places;
  {
    BrokerLock lock(core_);
    for (const SessionId id : ids) {
      const auto session = core_.tables.sessions.find(id);
      if (session == core_.tables.sessions.end()) continue;
      for (const auto& [card, charge] : session->second.charges) {
        const BrokerCard& about = core_.tables.cards.at(card);
        if (!charge.leaving || charge.held.empty() || about.device.simulated) continue;
        places.push_back({id, card, session->second.pid, about.backend_device});
      }
    }
  }
  std::set<SessionId> listed;
  for (const Place& place : places) {
    Bytes used;
    for (const DeviceMemory::ProcessMemory& process : core_.backend.ProcessesOn(place.backend_device)) {
      if (process.pid == place.pid) used += process.used;
    }
    if (used.is_zero()) continue;
    BrokerLock lock(core_);
    if (used > AccountedTo(place.pid, place.card)) listed.insert(place.session);
  }
  return listed;
}

void BrokerImpl::ChargeOverhead(CardId card, Overhead& overhead) {
  overhead.charged = std::min(overhead.wanted, core_.tables.ledger.View(card).free());
  LGPU_CHECK(core_.tables.ledger.ChargeOverhead(card, overhead.charged).ok());
}

BrokerImpl::Overheads BrokerImpl::overheads() const {
  Overheads sums;
  std::set<std::pair<LeaseKey, std::pair<std::int64_t, CardId>>> counted;
  MutexLock lock(core_.mutex);
  for (const auto& [id, session] : core_.tables.sessions) {
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
