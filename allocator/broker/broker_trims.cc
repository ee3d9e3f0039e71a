// Sessions are asked to return idle chunks, for requests that are short of
// memory and for people.

#include <algorithm>
#include <map>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "allocator/broker/broker_impl.h"

namespace lgpu {
std::vector<TrimOrder> BrokerImpl::TakeTrims(SessionId session) {
  BrokerLock lock(core_);
  return trims_.Take(session);
}

absl::Status BrokerImpl::Trimmed(SessionId session, TrimId trim, bool pending) {
  {
    BrokerLock lock(core_);
    const absl::StatusOr<LogicalId> answered = trims_.Answer(session, trim, pending, core_.now());
    if (!answered.ok()) {
      return answered.status();
    }
    if (const auto device = core_.tables.devices.find(*answered); device != core_.tables.devices.end()) {
      Serve(device->second.spec.card);
    }
  }
  return absl::OkStatus();
}

Bytes BrokerImpl::LentOf(std::span<const LogicalId> devices) const {
  Bytes sum;
  for (const LogicalId id : devices) {
    const auto device = core_.tables.devices.find(id);
    sum += device == core_.tables.devices.end() || device->second.spec.preallocate ? Bytes()
                                                                                   : device->second.lent;
  }
  return sum;
}

Bytes BrokerImpl::TakeAllowancesOf(std::span<const LogicalId> devices) {
  const Bytes before = LentOf(devices);
  if (before.is_zero()) {
    return Bytes();
  }
  for (const LogicalId id : devices) {
    const auto device = core_.tables.devices.find(id);
    if (device != core_.tables.devices.end() &&
        TakeAllowances(device->second.spec.card, device->second.spec.lease)) {
      Serve(device->second.spec.card);
    }
  }
  return SaturatingSub(before, LentOf(devices));
}

BrokerImpl::TrimRequest BrokerImpl::StartTrim(std::span<const LogicalId> devices) {
  TrimRequest request;
  {
    BrokerLock lock(core_);
    request.allowances = TakeAllowancesOf(devices);
    std::map<SessionId, TrimRequest::Asked> asked;
    std::set<SessionId> unasked;
    for (const LogicalId id : devices) {
      const auto device = core_.tables.devices.find(id);
      if (device == core_.tables.devices.end() || device->second.spec.preallocate) {
        continue;
      }
      for (const auto& [session, held] : device->second.held_by) {
        const SessionEntry& holder = core_.tables.sessions.at(session);
        if (!holder.trims) {
          if (holder.charges.empty()) unasked.insert(session);
          continue;
        }
        TrimRequest::Asked& entry = asked[session];
        entry.session = session;
        entry.returned_before = holder.returned;
        AskPart(entry, entry.parts.emplace_back(TrimRequest::Part{.device = id}));
      }
    }
    for (auto& [session, entry] : asked) request.sessions.push_back(std::move(entry));
    request.unasked.assign(unasked.begin(), unasked.end());
    request.is_done = request.sessions.empty();
  }
  return request;
}

void BrokerImpl::AskPart(TrimRequest::Asked& asked, TrimRequest::Part& part) {
  const auto session = core_.tables.sessions.find(asked.session);
  const auto device = core_.tables.devices.find(part.device);
  const bool is_holder = session != core_.tables.sessions.end() && session->second.trims &&
                         device != core_.tables.devices.end() &&
                         device->second.held_by.contains(asked.session);
  if (!is_holder) {
    part.answered = part.done = true;  // it has nothing that it could give back
    return;
  }
  const Bytes held = device->second.held_by.at(asked.session);
  part.order =
      trims_.AskAlso({.session = asked.session, .device = part.device, .bytes = held}, held, core_.now());
  if (part.order) {
    core_.tables.wakes.push_back(session->second.waker);
  }
}

void BrokerImpl::ContinueTrim(TrimRequest& request) {
  {
    BrokerLock lock(core_);
    request.is_done = true;
    for (TrimRequest::Asked& asked : request.sessions) {
      if (const auto session = core_.tables.sessions.find(asked.session);
          session != core_.tables.sessions.end()) {
        asked.returned = SaturatingSub(session->second.returned, asked.returned_before);
      }
      for (TrimRequest::Part& part : asked.parts) {
        const auto answer =
            part.done || !part.order ? std::nullopt : trims_.AnswerTo(asked.session, part.device, part.order);
        if (answer) {
          part.answered = true;
          part.done = !answer->pending;
        }
        if (!part.done && (answer || !part.order)) {
          AskPart(asked, part);
        }
        request.is_done = request.is_done && part.done;
      }
    }
  }
}

std::vector<BrokerImpl::IgnoredTrim> BrokerImpl::TakeIgnoredTrims() {
  std::map<SessionId, IgnoredTrim> found;
  BrokerLock lock(core_);
  const TimePoint now = core_.now();
  for (const TrimTable::Overdue& overdue : trims_.TakeOverdue(now)) {
    SessionEntry& session = core_.tables.sessions.at(overdue.session);
    ++core_.tables.counters.trims_ignored;
    ++session.trims_ignored;
    const bool was_told = session.ignored_told != TimePoint() && !found.contains(overdue.session);
    if (was_told && now < session.ignored_told + kTellIgnoredEvery) {
      continue;
    }
    session.ignored_told = now;
    IgnoredTrim& ignored = found[overdue.session];
    ignored.session = overdue.session;
    ignored.asked += overdue.asked;
    ignored.ignored = session.trims_ignored;
  }
  std::vector<IgnoredTrim> told;
  for (const auto& [session, ignored] : found) told.push_back(ignored);
  return told;
}

BrokerImpl::TrimRecord BrokerImpl::TrimsOf(SessionId session) const {
  MutexLock lock(core_.mutex);
  const auto found = core_.tables.sessions.find(session);
  if (found == core_.tables.sessions.end()) {
    return {};
  }
  return {.ignored = found->second.trims_ignored, .ignores_now = trims_.Ignores(session)};
}

void BrokerImpl::StopTrimming(SessionId session) {
  core_.tables.sessions.at(session).trims = false;
  trims_.Forget(session);
}

std::vector<TrimTable::Holder> BrokerImpl::LimitHolders(LogicalId logical, SessionId except) const {
  std::vector<TrimTable::Holder> holders;
  for (const auto& [session, held] : core_.tables.devices.at(logical).held_by) {
    if (session != except && core_.tables.sessions.at(session).trims) {
      holders.push_back({.session = session, .device = logical, .bytes = held});
    }
  }
  return holders;
}

std::vector<TrimTable::Holder> BrokerImpl::CardHolders(CardId card, LogicalId device,
                                                       SessionId session) const {
  std::vector<TrimTable::Holder> holders;
  for (const LogicalId logical : core_.tables.ledger.LogicalsOf(card)) {
    const auto found = core_.tables.devices.find(logical);
    // Preallocated memory, and what lies inside a guarantee, stays set aside
    // when it comes back.
    if (found == core_.tables.devices.end() || found->second.spec.preallocate) {
      continue;
    }
    const Ledger::LogicalView view = core_.tables.ledger.View(logical);
    const Bytes surplus = SaturatingSub(view.held(), view.guarantee);
    for (TrimTable::Holder& holder : LimitHolders(logical, logical == device ? session : SessionId())) {
      holder.bytes = std::min(holder.bytes, surplus);
      if (!holder.bytes.is_zero()) {
        holders.push_back(holder);
      }
    }
  }
  return holders;
}

bool BrokerImpl::AskToTrim(TrimTable::Need& need, std::vector<TrimTable::Holder> holders, Bytes missing) {
  const TrimTable::Asked asked = trims_.Ask(need, std::move(holders), missing, core_.now());
  if (asked.session) {
    core_.tables.wakes.push_back(core_.tables.sessions.at(*asked.session).waker);
  }
  return asked.hope;
}

bool BrokerImpl::AskUnderLimit(Waiter& waiter, Bytes missing) {
  std::vector<TrimTable::Holder> holders = LimitHolders(waiter.spec.device, waiter.spec.session);
  if (waiter.charge) {
    for (const LogicalId device :
         DevicesOn(core_.tables.sessions.at(waiter.spec.session).lease, waiter.charge->card)) {
      if (device == waiter.spec.device) continue;
      const std::vector<TrimTable::Holder> more = LimitHolders(device, waiter.spec.session);
      holders.insert(holders.end(), more.begin(), more.end());
    }
  }
  return AskToTrim(waiter.need, std::move(holders), missing);
}

bool BrokerImpl::MayAsk(Waiter& waiter) const {
  const TimePoint now = core_.now();
  if (now < waiter.spec.deadline) {
    return true;
  }
  if (waiter.in_grace || waiter.spec.ahead || now >= waiter.spec.asked_at + kGrace) {
    return false;
  }
  waiter.in_grace = true;
  waiter.spec.deadline = waiter.spec.asked_at + kGrace;
  return true;
}

bool BrokerImpl::MayTrim(const Waiter& waiter) const {
  const CardId card = core_.tables.devices.at(waiter.spec.device).spec.card;
  return !CardHolders(card, waiter.spec.device, waiter.spec.session).empty();
}

void BrokerImpl::AskForExcess(LogicalId logical) {
  const Ledger::LogicalView view = core_.tables.ledger.View(logical);
  const Bytes granularity = core_.tables.cards.at(view.card).device.granularity;
  const Bytes excess = SaturatingSub(view.granted, RoundUp(view.limit, granularity));
  if (excess.is_zero()) {
    return;
  }
  for (const TrimTable::Holder& holder : LimitHolders(logical, SessionId())) {
    if (trims_.AskAlso(holder, excess, core_.now())) {
      core_.tables.wakes.push_back(core_.tables.sessions.at(holder.session).waker);
    }
  }
}

}  // namespace lgpu
