// Sessions are asked to return idle chunks for requests that are short of memory.

#include <algorithm>
#include <utility>

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
