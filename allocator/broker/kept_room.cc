#include "allocator/broker/kept_room.h"

#include <algorithm>
#include <map>

#include "allocator/broker/card_needs.h"

namespace lgpu {
Bytes KeptRoom::YieldOf(CardId card) const {
  Bytes sum = preemptible_.YieldOfAll(card);
  // The lease that it is set aside for may be the one that is to come back.
  for (const auto& [id, aside] : waiting_.set_aside) {
    const DeviceEntry& device = tables_.devices.at(aside);
    const bool gives_way = device.spec.card == card && device.is_aside_for_preemptible;
    if (gives_way) sum += tables_.ledger.View(aside).guarantee;
  }
  return sum;
}

KeptRoom::Kept KeptRoom::On(CardId card) const {
  Kept kept;
  for (const auto& [lease, suspension] : tables_.suspensions) {
    if (!suspension.is_parked || !suspension.keeps_room || suspension.has_failed) continue;
    const std::map<CardId, Bytes> needs = CardNeeds(tables_, lease);
    const auto need = needs.find(card);
    if (need == needs.end()) continue;
    const auto held = suspension.held_before.find(card);
    const Bytes bytes =
        held == suspension.held_before.end() ? need->second : std::min(need->second, held->second);
    if (bytes > kept.bytes) kept = {.bytes = bytes, .lease = lease};
  }
  if (!kept.bytes.is_zero()) kept.bytes = SaturatingSub(kept.bytes, YieldOf(card));
  return kept;
}

}  // namespace lgpu
