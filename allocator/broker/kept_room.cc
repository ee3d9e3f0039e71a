#include "allocator/broker/kept_room.h"

#include <map>

#include "allocator/broker/card_needs.h"

namespace lgpu {
bool KeptRoom::IsFrom(const Waiter& waiter) const {
  if (waiter.guarantee) return waiter.guarantee->spec.preemptible == Broker::Preemptible::kNever;
  return !preemptible_.Contains(tables_.sessions.at(waiter.spec.session).lease);
}

Bytes KeptRoom::YieldOf(CardId card) const {
  Bytes sum;
  for (const LeaseKey lease : preemptible_.Movable()) sum += preemptible_.YieldOf(lease, card);
  // What is set aside for such a lease: it may be the one that is to come back.
  for (const auto& [id, device] : waiting_.set_aside) {
    const auto waiter = waiting_.waiters.find(id);
    if (waiter == waiting_.waiters.end() || waiter->second.card != card) continue;
    if (!IsFrom(waiter->second)) sum += tables_.ledger.View(device).guarantee;
  }
  return sum;
}

KeptRoom::Kept KeptRoom::On(CardId card) const {
  Bytes most;
  LeaseKey of;
  for (const auto& [lease, suspension] : tables_.suspensions) {
    if (!suspension.is_parked || !suspension.keeps_room || suspension.has_failed) continue;
    const std::map<CardId, Bytes> needs = CardNeeds(tables_, lease);
    const auto need = needs.find(card);
    if (need == needs.end() || need->second <= most) continue;
    most = need->second;
    of = lease;
  }
  if (most.is_zero()) return {};
  return {.bytes = SaturatingSub(most, YieldOf(card)), .lease_name = tables_.NameOf(of)};
}

}  // namespace lgpu
