#include "allocator/broker/request_clock.h"

#include <algorithm>
#include <set>
#include <vector>

namespace lgpu {
namespace {

// A request of a suspended lease is told that it waits longer this long before its time is over.
constexpr std::chrono::minutes kToldBefore{5};

}  // namespace

Broker::TimePoint RequestClock::Tick() {
  for (const auto& [card, queue] : waiting_.queues) {
    if (tables_.now() >= queues_.NextChange(card)) queues_.Serve(card);
  }
  std::vector<WaiterId> ids;
  for (const auto& [id, waiter] : waiting_.waiters) ids.push_back(id);
  for (const WaiterId id : ids) Look(id, waiting_.waiters.at(id));
  waiting_.times_changed = false;
  return Next();
}

Broker::TimePoint RequestClock::Next() const {
  Broker::TimePoint next = Broker::TimePoint::max();
  for (const auto& [card, queue] : waiting_.queues) next = std::min(next, queues_.NextChange(card));
  for (const auto& [id, waiter] : waiting_.waiters) next = std::min(next, NextOf(waiter));
  return next;
}

Broker::TimePoint RequestClock::NextOf(const Waiter& waiter) const {
  if (waiter.phase == Waiter::Phase::kBackend) return std::min(waiter.retry_at, waiter.spec.deadline);
  if (waiter.phase == Waiter::Phase::kSuspended) return waiter.spec.deadline - kToldBefore;
  if (!waiter.IsQueued()) return Broker::TimePoint::max();
  // Where the chunks for it are being made, the thread that makes them ends its wait.
  const bool is_being_made = admission_.IsBeingMade(waiter);
  const bool asks = waiter.phase == Waiter::Phase::kLimit && waiter.need.round != 0;
  if (is_being_made) return asks ? waiter.need.look_again : Broker::TimePoint::max();
  return asks ? std::min(waiter.need.look_again, waiter.spec.deadline) : waiter.spec.deadline;
}

void RequestClock::Look(WaiterId id, Waiter& waiter) {
  if (tables_.now() < NextOf(waiter)) return;
  if (waiter.phase == Waiter::Phase::kSuspended) {
    admission_.HoldBack(id, waiter);
  } else if (waiter.phase == Waiter::Phase::kBackend) {
    TryAgain(id, waiter);
  } else if (waiter.phase == Waiter::Phase::kLimit && waiter.need.round != 0) {
    // All requests of its line are admitted again, so that each keeps its place there.
    const LogicalId device = waiter.spec.device;
    queues_.Serve(waiter.card);
    // Where no session had to be asked, because what is missing is on its way.
    for (const WaiterId other : tables_.devices.at(device).limit_waiters) {
      TrimTable::Need& need = waiting_.waiters.at(other).need;
      need.look_again = std::max(need.look_again, tables_.now() + TrimTable::kPatience);
    }
  }
  if (waiter.IsQueued() && tables_.now() >= waiter.spec.deadline) EndLate(id, waiter);
}

void RequestClock::TryAgain(WaiterId id, Waiter& waiter) {
  waiter.phase = Waiter::Phase::kNew;
  admission_.Admit(id, waiter);
  if (waiter.phase == Waiter::Phase::kCard) queues_.Serve(waiter.card);
  if (!waiter.Waits()) waiting_.Wake(waiter);
}

void RequestClock::EndLate(WaiterId id, Waiter& waiter) {
  if (admission_.IsBeingMade(waiter)) return;
  RefusalCause cause{.reason = RefusalReason::kLimit};
  if (waiter.phase == Waiter::Phase::kCard) {
    cause.reason = RefusalReason::kCard;
    cause.turns = waiting_.QueueOf(waiter).TurnsOf(id);
  }
  admission_.RefuseWaiting(id, waiter, cause);
  queues_.Serve(waiter.card);
}

void RequestClock::EndGuarantees() {
  std::set<CardId> touched;
  for (auto& [id, waiter] : waiting_.waiters) {
    if (!waiter.guarantee || !waiter.Waits()) continue;
    if (waiter.phase == Waiter::Phase::kBackend) {
      TryAgain(id, waiter);
    } else {
      admission_.RefuseWaiting(id, waiter, {.reason = RefusalReason::kCard});
      touched.insert(waiter.card);
    }
  }
  for (const CardId card : touched) queues_.Serve(card);
}

void RequestClock::Withdraw(WaiterId id) {
  const auto found = waiting_.waiters.find(id);
  if (found == waiting_.waiters.end() || !found->second.Waits()) return;
  Waiter& waiter = found->second;
  admission_.Cancel(id, waiter);
  queues_.Serve(waiter.card);
}

}  // namespace lgpu
