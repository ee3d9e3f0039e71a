#include "allocator/broker/preemptible_leases.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <utility>

namespace lgpu {
namespace {

bool IsPreemptible(const DeviceEntry& device) {
  return device.spec.preemptible != Broker::Preemptible::kNever && !device.removed;
}

}  // namespace

bool PreemptibleLeases::Contains(LeaseKey lease) const {
  return std::any_of(tables_.devices.begin(), tables_.devices.end(), [lease](const auto& entry) {
    const DeviceEntry& device = entry.second;
    return device.spec.lease == lease && IsPreemptible(device);
  });
}

bool PreemptibleLeases::IsEmpty() const {
  return std::none_of(tables_.devices.begin(), tables_.devices.end(),
                      [](const auto& entry) { return IsPreemptible(entry.second); });
}

std::set<LeaseKey> PreemptibleLeases::Movable() const {
  std::set<LeaseKey> leases;
  for (const auto& [id, device] : tables_.devices) {
    if (IsPreemptible(device)) leases.insert(device.spec.lease);
  }
  for (const auto& [id, device] : tables_.devices) {
    if (device.spec.preallocate) leases.erase(device.spec.lease);
  }
  std::map<LeaseKey, std::set<std::int64_t>> with_chunks;  // processes
  for (const auto& [id, session] : tables_.sessions) {
    if (session.chunks.empty()) continue;
    with_chunks[session.lease].insert(session.pid);
    if (!session.suspends_itself || with_chunks[session.lease].size() > 1) leases.erase(session.lease);
  }
  std::erase_if(leases, [this](LeaseKey lease) {
    const auto suspension = tables_.suspensions.find(lease);
    return suspension != tables_.suspensions.end() && suspension->second.is_parked;
  });
  return leases;
}

bool PreemptibleLeases::IsMovable(LeaseKey lease) const {
  if (!Contains(lease)) return false;
  for (const auto& [id, device] : tables_.devices) {
    if (device.spec.lease == lease && device.spec.preallocate) return false;
  }
  std::set<std::int64_t> with_chunks;  // processes
  for (const auto& [id, session] : tables_.sessions) {
    if (session.lease != lease || session.chunks.empty()) continue;
    with_chunks.insert(session.pid);
    if (!session.suspends_itself || with_chunks.size() > 1) return false;
  }
  const auto suspension = tables_.suspensions.find(lease);
  return suspension == tables_.suspensions.end() || !suspension->second.is_parked;
}

std::set<LeaseKey> PreemptibleLeases::MovableNow() const {
  std::set<LeaseKey> leases = Movable();
  for (const auto& [id, device] : tables_.devices) {
    if (!device.booked.is_zero()) leases.erase(device.spec.lease);
  }
  return leases;
}

bool PreemptibleLeases::SuspendsItself(LeaseKey lease) const {
  return std::any_of(tables_.sessions.begin(), tables_.sessions.end(), [lease](const auto& entry) {
    const SessionEntry& session = entry.second;
    return session.lease == lease && session.suspends_itself && !session.chunks.empty();
  });
}

PreemptibleLeases::Later PreemptibleLeases::YieldLater(const Waiter& waiter) const {
  Later later;
  const LeaseKey own = waiter.spec.session ? tables_.sessions.at(waiter.spec.session).lease : LeaseKey();
  for (const LeaseKey lease : Movable()) {
    if (lease == own || tables_.now() < tables_.FindPreempted(lease)->rests_until) continue;
    const Bytes yield = YieldOf(lease, waiter.card);
    later.likely += yield;
    if (GivesWayAtWork(lease)) later.certain += yield;
  }
  return later;
}

bool PreemptibleLeases::CanBeTakenBack(const Waiter& waiter) const {
  if (waiter.guarantee) return waiter.guarantee->spec.preemptible != Broker::Preemptible::kNever;
  const SessionEntry& session = tables_.sessions.at(waiter.spec.session);
  return (waiter.charge || session.suspends_itself) && IsMovable(session.lease);
}

bool PreemptibleLeases::MayPreempt(const Waiter& waiter) const {
  if (!CanBeTakenBack(waiter)) return false;
  if (waiter.guarantee) {
    return waiter.guarantee->what == GuaranteeWish::For::kReservation && waiter.guarantee->spec.lease;
  }
  const ReleaseRecord* const record = tables_.FindPreempted(tables_.sessions.at(waiter.spec.session).lease);
  return record != nullptr && tables_.now() >= record->rests_until;
}

bool PreemptibleLeases::GivesWayAtWork(LeaseKey lease) const {
  return std::any_of(tables_.devices.begin(), tables_.devices.end(), [lease](const auto& entry) {
    return entry.second.spec.lease == lease && IsPreemptible(entry.second) &&
           entry.second.spec.preemptible == Broker::Preemptible::kAlways;
  });
}

Bytes PreemptibleLeases::YieldOf(LeaseKey lease, CardId card) const {
  const auto suspension = tables_.suspensions.find(lease);
  if (suspension != tables_.suspensions.end() && suspension->second.is_parked) return Bytes();
  return YieldOf(std::set<LeaseKey>{lease}, card);
}

Bytes PreemptibleLeases::YieldOfAll(CardId card) const { return YieldOf(Movable(), card); }

Bytes PreemptibleLeases::YieldOf(const std::set<LeaseKey>& leases, CardId card) const {
  Bytes sum;
  for (const auto& [id, device] : tables_.devices) {
    if (device.spec.card != card || !leases.contains(device.spec.lease)) continue;
    const Ledger::LogicalView view = tables_.ledger.View(id);
    sum += std::max(view.held(), view.guarantee);
  }
  std::set<std::int64_t> pids;  // a process may have several sessions
  for (const auto& [id, session] : tables_.sessions) {
    if (!leases.contains(session.lease)) continue;
    const auto charge = session.charges.find(card);
    const bool is_moved = charge != session.charges.end() && !charge->second.lent.is_zero();
    if (is_moved && pids.insert(session.pid).second) sum += overheads_.WantedBy(session.pid, card);
  }
  return sum;
}

}  // namespace lgpu
