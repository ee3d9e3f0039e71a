#include "allocator/broker/trim_requests.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "allocator/broker/session_trims.h"

namespace lgpu {
namespace {

// A session that ignores orders is named at most this often.
constexpr std::chrono::seconds kTellIgnoredEvery{10};

}  // namespace

std::vector<TrimTable::Holder> TrimRequests::LimitHolders(LogicalId logical, SessionId except) const {
  std::vector<TrimTable::Holder> holders;
  for (const auto& [session, held] : tables_.devices.at(logical).held_by) {
    if (session != except && tables_.sessions.at(session).trims) {
      holders.push_back({.session = session, .device = logical, .bytes = held});
    }
  }
  return holders;
}

std::vector<TrimTable::Holder> TrimRequests::CardHolders(CardId card, LogicalId device,
                                                         SessionId session) const {
  std::vector<TrimTable::Holder> holders;
  for (const LogicalId logical : tables_.ledger.LogicalsOf(card)) {
    // Preallocated memory, and what lies inside a guarantee, stays set aside when it comes back.
    if (tables_.devices.at(logical).spec.preallocate) continue;
    const Ledger::LogicalView view = tables_.ledger.View(logical);
    const Bytes surplus = SaturatingSub(view.held(), view.guarantee);
    if (surplus.is_zero()) continue;
    for (TrimTable::Holder& holder : LimitHolders(logical, logical == device ? session : SessionId())) {
      holder.bytes = std::min(holder.bytes, surplus);
      holders.push_back(holder);
    }
  }
  return holders;
}

bool TrimRequests::Ask(TrimTable::Need& need, std::vector<TrimTable::Holder> holders, Bytes missing) {
  const TrimTable::Asked asked = orders_.Ask(need, std::move(holders), missing, tables_.now());
  if (asked.session) tables_.Wake(*asked.session);
  return asked.hope;
}

bool TrimRequests::AskUnderLimit(Waiter& waiter, Bytes missing) {
  std::vector<TrimTable::Holder> holders = LimitHolders(waiter.spec.device, waiter.spec.session);
  if (waiter.charge) {
    const LeaseKey lease = tables_.sessions.at(waiter.spec.session).lease;
    for (const LogicalId device : tables_.DevicesOn(lease, waiter.charge->card)) {
      if (device == waiter.spec.device) continue;
      const std::vector<TrimTable::Holder> more = LimitHolders(device, waiter.spec.session);
      holders.insert(holders.end(), more.begin(), more.end());
    }
  }
  return Ask(waiter.need, std::move(holders), missing);
}

void TrimRequests::AskOnCard(TrimTable::Need& need, CardId card, LogicalId device, SessionId session,
                             Bytes missing) {
  Ask(need, CardHolders(card, device, session), missing);
}

bool TrimRequests::IsHopeful(const TrimTable::Need& need, CardId card, LogicalId device,
                             SessionId session) const {
  return orders_.IsHopeful(need, CardHolders(card, device, session));
}

bool TrimRequests::HasHolders(const Waiter& waiter) const {
  return !CardHolders(tables_.CardOf(waiter.spec.device), waiter.spec.device, waiter.spec.session).empty();
}

void TrimRequests::AskForExcess(LogicalId device) {
  const Bytes excess = SaturatingSub(tables_.ledger.View(device).granted, tables_.LimitOf(device));
  if (excess.is_zero()) return;
  for (const TrimTable::Holder& holder : LimitHolders(device, SessionId())) {
    if (orders_.AskAlso(holder, excess, tables_.now())) tables_.Wake(holder.session);
  }
}

void TrimRequests::Start(std::span<const LogicalId> devices, SessionTrims::Request& request) {
  std::map<SessionId, SessionTrims::Request::Asked> asked;
  std::set<SessionId> unasked;
  for (const LogicalId id : devices) {
    const auto device = tables_.devices.find(id);
    if (device == tables_.devices.end() || device->second.spec.preallocate) continue;
    for (const auto& [session, held] : device->second.held_by) {
      const SessionEntry& holder = tables_.sessions.at(session);
      if (!holder.trims) {
        if (holder.charges.empty()) unasked.insert(session);
        continue;
      }
      SessionTrims::Request::Asked& entry = asked[session];
      entry.session = session;
      entry.returned_before = holder.returned;
      AskPart(entry, entry.parts.emplace_back(SessionTrims::Request::Part{.device = id}));
    }
  }
  for (auto& [session, entry] : asked) request.sessions.push_back(std::move(entry));
  request.unasked.assign(unasked.begin(), unasked.end());
  request.is_done = request.sessions.empty();
}

void TrimRequests::AskPart(SessionTrims::Request::Asked& asked, SessionTrims::Request::Part& part) {
  const SessionEntry* const session = tables_.FindSession(asked.session);
  const auto device = tables_.devices.find(part.device);
  const bool is_holder = session != nullptr && session->trims && device != tables_.devices.end() &&
                         device->second.held_by.contains(asked.session);
  if (!is_holder) {
    part.answered = part.done = true;  // it has nothing that it could give back
    return;
  }
  const Bytes held = device->second.held_by.at(asked.session);
  part.order =
      orders_.AskAlso({.session = asked.session, .device = part.device, .bytes = held}, held, tables_.now());
  if (part.order) tables_.Wake(asked.session);
}

void TrimRequests::Continue(SessionTrims::Request& request) {
  request.is_done = true;
  for (SessionTrims::Request::Asked& asked : request.sessions) {
    if (const SessionEntry* const session = tables_.FindSession(asked.session)) {
      asked.returned = SaturatingSub(session->returned, asked.returned_before);
    }
    for (SessionTrims::Request::Part& part : asked.parts) {
      const auto answer =
          part.done || !part.order ? std::nullopt : orders_.AnswerTo(asked.session, part.device, part.order);
      if (answer) {
        part.answered = true;
        part.done = !answer->pending;
      }
      if (!part.done && (answer || !part.order)) AskPart(asked, part);
      request.is_done = request.is_done && part.done;
    }
  }
}

std::vector<SessionTrims::Ignored> TrimRequests::TakeIgnored() {
  std::map<SessionId, SessionTrims::Ignored> found;
  const Broker::TimePoint now = tables_.now();
  for (const TrimTable::Overdue& overdue : orders_.TakeOverdue(now)) {
    SessionEntry& session = tables_.sessions.at(overdue.session);
    ++tables_.counters.trims_ignored;
    ++session.trims_ignored;
    const bool was_told = session.ignored_told != Broker::TimePoint() && !found.contains(overdue.session);
    if (was_told && now < session.ignored_told + kTellIgnoredEvery) continue;
    session.ignored_told = now;
    SessionTrims::Ignored& ignored = found[overdue.session];
    ignored.session = overdue.session;
    ignored.asked += overdue.asked;
    ignored.ignored = session.trims_ignored;
  }
  std::vector<SessionTrims::Ignored> told;
  for (const auto& [session, ignored] : found) told.push_back(ignored);
  return told;
}

void TrimRequests::Stop(SessionId session) {
  SessionEntry& entry = tables_.sessions.at(session);
  entry.trims = false;
  entry.runs_release = false;
  orders_.Forget(session);
}

}  // namespace lgpu
