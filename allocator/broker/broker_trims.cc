// Memory that lies idle in one session, for those who are short of it.

#include <algorithm>
#include <utility>

#include "allocator/broker/broker.h"

namespace lgpu {
namespace {

using Clock = std::chrono::steady_clock;

}  // namespace

std::vector<TrimOrder> Broker::TakeTrims(SessionId session) {
  MutexLock lock(mutex_);
  return trims_.Take(session);
}

absl::Status Broker::Trimmed(SessionId session, TrimId trim, bool pending) {
  Wakes wakes;
  {
    MutexLock lock(mutex_);
    const absl::StatusOr<LogicalId> answered = trims_.Answer(session, trim, pending, Clock::now());
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
  const TrimTable::Asked asked = trims_.Ask(need, std::move(holders), missing, Clock::now());
  if (asked.session) {
    wakes.push_back(sessions_.at(*asked.session).waker);
  }
  return asked.hope;
}

bool Broker::AskUnderLimit(Waiter& waiter, Bytes missing, Wakes& wakes) {
  return AskToTrim(waiter.need, LimitHolders(waiter.spec.device, waiter.spec.session), missing, wakes);
}

bool Broker::MayAsk(Waiter& waiter) {
  const TimePoint now = Clock::now();
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

bool Broker::OthersMayHelp(const Waiter& waiter) const {
  const CardId card = devices_.at(waiter.spec.device).spec.card;
  return !HeadOf(card) && !CardHolders(card, waiter.spec.device, waiter.spec.session).empty();
}

bool Broker::RefuseInGrace(CardId card, Wakes& wakes) {
  const std::optional<GrowId> head = HeadOf(card);
  const auto found = head ? waiters_.find(*head) : waiters_.end();
  if (found == waiters_.end() || !found->second.in_grace || CardIsHopeful(card) || !Leaving(card).is_zero()) {
    return false;
  }
  Waiter& waiter = found->second;
  LeaveQueues(*head, waiter);
  Refuse(waiter, {.reason = RefusalReason::kCard});
  wakes.push_back(sessions_.at(waiter.spec.session).waker);
  return true;
}

std::optional<GrowId> Broker::HeadOf(CardId card) const {
  const std::vector<WaiterId> queue = ledger_.QueueOf(card);
  return queue.empty() ? std::nullopt : std::optional(queued_.at(queue.front()));
}

void Broker::AskForCard(CardId card, Wakes& wakes) {
  const std::optional<GrowId> head = HeadOf(card);
  const auto found = head ? waiters_.find(*head) : waiters_.end();
  if (found == waiters_.end()) {
    return;
  }
  Waiter& waiter = found->second;
  const GrowSpec& spec = waiter.spec;
  const Ledger::LogicalView view = ledger_.View(spec.device);
  const Bytes promise = std::max(view.guarantee, view.held());
  const Bytes growth = std::max(view.guarantee, view.held() + spec.at_least) - promise;
  const Bytes missing = SaturatingSub(growth, ledger_.View(card).free() + Leaving(card));
  if (missing.is_zero()) {
    return;
  }
  const TimePoint before = waiter.need.look_again;
  AskToTrim(waiter.need, CardHolders(card, spec.device, spec.session), missing, wakes);
  if (waiter.need.look_again != before) {
    wakes.push_back(sessions_.at(spec.session).waker);  // it is to look sooner than it meant to
  }
}

bool Broker::CardIsHopeful(CardId card) const {
  const std::optional<GrowId> head = HeadOf(card);
  const auto found = head ? waiters_.find(*head) : waiters_.end();
  if (found == waiters_.end()) {
    return false;
  }
  const Waiter& waiter = found->second;
  return trims_.IsHopeful(waiter.need, CardHolders(card, waiter.spec.device, waiter.spec.session));
}

void Broker::AskForExcess(LogicalId logical, Wakes& wakes) {
  const Ledger::LogicalView view = ledger_.View(logical);
  const Bytes granularity = cards_.at(view.card).device.granularity;
  const Bytes excess = SaturatingSub(view.granted, RoundUp(view.limit, granularity));
  if (excess.is_zero()) {
    return;
  }
  for (const TrimTable::Holder& holder : LimitHolders(logical, SessionId())) {
    if (trims_.AskAlso(holder, excess, Clock::now())) {
      wakes.push_back(sessions_.at(holder.session).waker);
    }
  }
}

absl::Status Broker::MakeRoom(CardId card, Bytes guarantee, TimePoint deadline,
                              absl::FunctionRef<absl::Status()> attempt) {
  TrimTable::Need need;
  absl::Status status = attempt();
  const auto entry = making_room_.insert(card);
  while (absl::IsResourceExhausted(status) && !stopping_ && Clock::now() < deadline) {
    Wakes wakes;
    const Bytes leaving = Leaving(card);
    const Bytes missing = SaturatingSub(guarantee, ledger_.View(card).free() + leaving);
    const bool hope =
        !missing.is_zero() && AskToTrim(need, CardHolders(card, LogicalId(), SessionId()), missing, wakes);
    if (!hope && leaving.is_zero()) {
      break;
    }
    mutex_.Unlock();
    WakeAll(wakes);
    mutex_.Lock();
    status = attempt();  // not to miss what happened meanwhile
    if (absl::IsResourceExhausted(status)) {
      freed_.WaitUntil(mutex_, hope ? std::min(deadline, need.look_again) : deadline);
      status = attempt();
    }
  }
  making_room_.erase(entry);
  return status;
}

}  // namespace lgpu
