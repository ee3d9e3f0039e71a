// Sessions are asked to return idle chunks, for requests that are short of memory and for people.

#include <algorithm>
#include <map>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "allocator/broker/broker.h"

namespace lgpu {
std::vector<TrimOrder> Broker::TakeTrims(SessionId session) {
  MutexLock lock(mutex_);
  return trims_.Take(session);
}

absl::Status Broker::Trimmed(SessionId session, TrimId trim, bool pending) {
  Wakes wakes;
  {
    MutexLock lock(mutex_);
    const absl::StatusOr<LogicalId> answered = trims_.Answer(session, trim, pending, now_());
    if (!answered.ok()) {
      return answered.status();
    }
    if (const auto device = devices_.find(*answered); device != devices_.end()) {
      Serve(device->second.spec.card, wakes);
    }
  }
  WakeAll(wakes);
  return absl::OkStatus();
}

Bytes Broker::LentOf(std::span<const LogicalId> devices) const {
  Bytes sum;
  for (const LogicalId id : devices) {
    const auto device = devices_.find(id);
    sum += device == devices_.end() || device->second.spec.preallocate ? Bytes() : device->second.lent;
  }
  return sum;
}

Bytes Broker::TakeAllowancesOf(std::span<const LogicalId> devices, Wakes& wakes) {
  const Bytes before = LentOf(devices);
  if (before.is_zero()) {
    return Bytes();
  }
  for (const LogicalId id : devices) {
    const auto device = devices_.find(id);
    if (device != devices_.end() && TakeAllowances(device->second.spec.card, device->second.spec.lease)) {
      Serve(device->second.spec.card, wakes);
    }
  }
  return SaturatingSub(before, LentOf(devices));
}

Broker::TrimRequest Broker::StartTrim(std::span<const LogicalId> devices) {
  TrimRequest request;
  Wakes wakes;
  {
    MutexLock lock(mutex_);
    request.allowances = TakeAllowancesOf(devices, wakes);
    std::map<SessionId, TrimRequest::Asked> asked;
    std::set<SessionId> unasked;
    for (const LogicalId id : devices) {
      const auto device = devices_.find(id);
      if (device == devices_.end() || device->second.spec.preallocate) {
        continue;
      }
      for (const auto& [session, held] : device->second.held_by) {
        const Session& holder = sessions_.at(session);
        if (!holder.trims) {
          if (holder.charges.empty()) unasked.insert(session);
          continue;
        }
        TrimRequest::Asked& entry = asked[session];
        entry.session = session;
        entry.returned_before = holder.returned;
        AskPart(entry, entry.parts.emplace_back(TrimRequest::Part{.device = id}), wakes);
      }
    }
    for (auto& [session, entry] : asked) request.sessions.push_back(std::move(entry));
    request.unasked.assign(unasked.begin(), unasked.end());
    request.is_done = request.sessions.empty();
  }
  WakeAll(wakes);
  return request;
}

void Broker::AskPart(TrimRequest::Asked& asked, TrimRequest::Part& part, Wakes& wakes) {
  const auto session = sessions_.find(asked.session);
  const auto device = devices_.find(part.device);
  const bool is_holder = session != sessions_.end() && session->second.trims && device != devices_.end() &&
                         device->second.held_by.contains(asked.session);
  if (!is_holder) {
    part.answered = part.done = true;  // it has nothing that it could give back
    return;
  }
  const Bytes held = device->second.held_by.at(asked.session);
  part.order = trims_.AskAlso({.session = asked.session, .device = part.device, .bytes = held}, held, now_());
  if (part.order) {
    wakes.push_back(session->second.waker);
  }
}

void Broker::ContinueTrim(TrimRequest& request) {
  Wakes wakes;
  {
    MutexLock lock(mutex_);
    request.is_done = true;
    for (TrimRequest::Asked& asked : request.sessions) {
      if (const auto session = sessions_.find(asked.session); session != sessions_.end()) {
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
          AskPart(asked, part, wakes);
        }
        request.is_done = request.is_done && part.done;
      }
    }
  }
  WakeAll(wakes);
}

std::vector<Broker::IgnoredTrim> Broker::TakeIgnoredTrims() {
  std::map<SessionId, IgnoredTrim> found;
  MutexLock lock(mutex_);
  const TimePoint now = now_();
  for (const TrimTable::Overdue& overdue : trims_.TakeOverdue(now)) {
    Session& session = sessions_.at(overdue.session);
    ++counters_.trims_ignored;
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

Broker::TrimRecord Broker::TrimsOf(SessionId session) const {
  MutexLock lock(mutex_);
  const auto found = sessions_.find(session);
  if (found == sessions_.end()) {
    return {};
  }
  return {.ignored = found->second.trims_ignored, .ignores_now = trims_.Ignores(session)};
}

void Broker::StopTrimming(SessionId session) {
  sessions_.at(session).trims = false;
  trims_.Forget(session);
}

std::vector<TrimTable::Holder> Broker::LimitHolders(LogicalId logical, SessionId except) const {
  std::vector<TrimTable::Holder> holders;
  for (const auto& [session, held] : devices_.at(logical).held_by) {
    if (session != except && sessions_.at(session).trims) {
      holders.push_back({.session = session, .device = logical, .bytes = held});
    }
  }
  return holders;
}

std::vector<TrimTable::Holder> Broker::CardHolders(CardId card, LogicalId device, SessionId session) const {
  std::vector<TrimTable::Holder> holders;
  for (const LogicalId logical : ledger_.LogicalsOf(card)) {
    const auto found = devices_.find(logical);
    // Preallocated memory, and what lies inside a guarantee, stays set aside when it comes back.
    if (found == devices_.end() || found->second.spec.preallocate) {
      continue;
    }
    const Ledger::LogicalView view = ledger_.View(logical);
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

bool Broker::AskToTrim(TrimTable::Need& need, std::vector<TrimTable::Holder> holders, Bytes missing,
                       Wakes& wakes) {
  const TrimTable::Asked asked = trims_.Ask(need, std::move(holders), missing, now_());
  if (asked.session) {
    wakes.push_back(sessions_.at(*asked.session).waker);
  }
  return asked.hope;
}

bool Broker::AskUnderLimit(Waiter& waiter, Bytes missing, Wakes& wakes) {
  std::vector<TrimTable::Holder> holders = LimitHolders(waiter.spec.device, waiter.spec.session);
  if (waiter.charge) {
    for (const LogicalId device : DevicesOn(sessions_.at(waiter.spec.session).lease, waiter.charge->card)) {
      if (device == waiter.spec.device) continue;
      const std::vector<TrimTable::Holder> more = LimitHolders(device, waiter.spec.session);
      holders.insert(holders.end(), more.begin(), more.end());
    }
  }
  return AskToTrim(waiter.need, std::move(holders), missing, wakes);
}

bool Broker::MayAsk(Waiter& waiter) const {
  const TimePoint now = now_();
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

bool Broker::MayTrim(const Waiter& waiter) const {
  const CardId card = devices_.at(waiter.spec.device).spec.card;
  return !CardHolders(card, waiter.spec.device, waiter.spec.session).empty();
}

void Broker::AskForExcess(LogicalId logical, Wakes& wakes) {
  const Ledger::LogicalView view = ledger_.View(logical);
  const Bytes granularity = cards_.at(view.card).device.granularity;
  const Bytes excess = SaturatingSub(view.granted, RoundUp(view.limit, granularity));
  if (excess.is_zero()) {
    return;
  }
  for (const TrimTable::Holder& holder : LimitHolders(logical, SessionId())) {
    if (trims_.AskAlso(holder, excess, now_())) {
      wakes.push_back(sessions_.at(holder.session).waker);
    }
  }
}

}  // namespace lgpu
