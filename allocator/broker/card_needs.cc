#include "allocator/broker/card_needs.h"

#include <algorithm>
#include <cstdint>
#include <set>

namespace lgpu {
namespace {

// As the ledger rounds a guarantee.
Bytes NeededOf(const BrokerTables& tables, LogicalId device, Bytes bytes) {
  return RoundUp(std::min(bytes, tables.ledger.View(device).limit), tables.GranuleOf(tables.CardOf(device)));
}

}  // namespace

std::vector<SessionId> MovedSessions(const BrokerTables& tables, LeaseKey lease) {
  std::vector<SessionId> found;
  const auto suspension = tables.suspensions.find(lease);
  if (suspension == tables.suspensions.end()) return found;
  for (const SessionId id : suspension->second.sessions) {
    const auto session = tables.sessions.find(id);
    if (session == tables.sessions.end()) continue;
    const bool is_ending = std::any_of(session->second.charges.begin(), session->second.charges.end(),
                                       [](const auto& entry) { return entry.second.leaving; });
    if (!is_ending) found.push_back(id);
  }
  return found;
}

std::map<CardId, Bytes> CardNeeds(const BrokerTables& tables, LeaseKey lease) {
  std::map<LogicalId, Bytes> parked;
  std::set<std::int64_t> pids;
  for (const SessionId id : MovedSessions(tables, lease)) {
    pids.insert(tables.sessions.at(id).pid);
    for (const auto& [card, charge] : tables.sessions.at(id).charges) {
      for (const auto& [device, bytes] : charge.parked.held) parked[device] += bytes;
    }
  }
  const Suspension& suspension = tables.suspensions.at(lease);
  for (const auto& [device, bytes] : suspension.needs) {
    const bool is_needed = !pids.empty() && tables.devices.contains(device);
    if (is_needed) parked[device] += NeededOf(tables, device, bytes);
  }
  std::map<CardId, Bytes> need;
  for (const auto& [device, guarantee] : suspension.guarantees) {
    const CardId card = tables.CardOf(device);
    const Bytes held = tables.ledger.View(device).held();
    const Bytes all = std::max(RoundUp(guarantee, tables.GranuleOf(card)), held + parked[device]);
    need[card] += SaturatingSub(all, held);
  }
  for (const auto& [of, bytes] : suspension.overheads) {
    if (!pids.contains(of.second)) continue;  // it has ended meanwhile
    need[of.first] += RoundUp(bytes, tables.GranuleOf(of.first));
  }
  std::erase_if(need, [](const auto& entry) { return entry.second.is_zero(); });
  return need;
}

}  // namespace lgpu
