#include "allocator/broker/queue_scheduler.h"

#include <algorithm>
#include <set>
#include <utility>

namespace lgpu {

void QueueScheduler::Serve(CardId card) {
  served_at_[card] = tables_.now();
  waiting_.times_changed = true;
  // What programs have not used of what was lent to them is free for requests that wait.
  if (!waiting_.queues.at(card).empty()) charges_.TakeAllowances(card, LeaseKey());
  giving_way_.WaitForLeases(card);
  do {
    giving_way_.Collect(card);
    ServeQueue(card);
    for (const LogicalId logical : tables_.ledger.LogicalsOf(card)) admission_.AdmitUnderLimit(logical);
  } while (MoveTurnOn(card) || giving_way_.MoveOn(card));
  giving_way_.WaitForLeases(card);  // asks that were in vain have ended
}

Broker::TimePoint QueueScheduler::NextChange(CardId card) const {
  const CardQueue& queue = waiting_.queues.at(card);
  if (queue.empty()) return Broker::TimePoint::max();
  const auto served = served_at_.find(card);
  const Broker::TimePoint since = served == served_at_.end() ? Broker::TimePoint() : served->second;
  // At the latest: sessions that hold memory may have begun to answer trims.
  Broker::TimePoint next = since + waiting_.max_drain;
  next = std::min(next, queue.NextChange(since).value_or(next));
  next = std::min(next, giving_way_.NextChange(card, since));
  if (queue.turn()) {
    const TrimTable::Need& need = waiting_.waiters.at(queue.turn()->of).need;
    return need.round == 0 ? next : std::min(next, std::max(need.look_again, since + TrimTable::kPatience));
  }
  for (const WaiterId id : queue.Order()) {
    const TrimTable::Need& need = waiting_.waiters.at(id).need;
    if (need.next_round && *need.next_round > since) next = std::min(next, *need.next_round);
  }
  return next;
}

void QueueScheduler::ServeQueue(CardId card) {
  CardQueue& queue = waiting_.queues.at(card);
  if (queue.IsTurnOver(tables_.now())) queue.EndTurn(tables_.now());
  // A grant can end a turn, or leave another request of its device above the limit.
  for (bool again = !queue.empty(); again;) {
    again = false;
    const bool held_back = queue.turn().has_value();
    Bytes kept = admission_.KeptOn(card);
    for (const WaiterId id : queue.Order()) {
      if (admission_.AdmitFromQueue(id, waiting_.waiters.at(id), kept)) {
        again = true;
        kept = admission_.KeptOn(card);
      }
      if (held_back && !queue.turn()) break;  // those before it are held back no more
    }
  }
}

bool QueueScheduler::MoveTurnOn(CardId card) {
  CardQueue& queue = waiting_.queues.at(card);
  if (queue.empty()) return false;
  const Reach reach = ReachOf(card);
  if (queue.turn()) {
    const WaiterId id = queue.turn()->of;
    AskForCard(id, card, reach);
    if (MayBeServed(id, card, reach)) return false;
    queue.EndTurn(tables_.now());
    // No more of what is idle or on its way back comes.
    Waiter& waiter = waiting_.waiters.at(id);
    if (!waiter.is_patient) admission_.RefuseWaiting(id, waiter, {.reason = RefusalReason::kCard});
    return true;
  }
  const std::vector<WaiterId> order = queue.Order();
  for (const WaiterId id : order) {
    if (!MayBeServed(id, card, reach)) continue;
    const bool starts = queue.MayStartTurn(tables_.now());
    if (starts) queue.StartTurn(id, tables_.now());
    return starts;
  }
  // As things are, no request can be served.
  for (const WaiterId id : order) {
    Waiter& waiter = waiting_.waiters.at(id);
    if (waiter.is_patient) continue;
    admission_.RefuseWaiting(id, waiter, {.reason = RefusalReason::kCard});
    return true;
  }
  const std::optional<WaiterId> victim = DeadlockVictim(card);
  if (victim) {
    admission_.RefuseWaiting(*victim, waiting_.waiters.at(*victim), {.reason = RefusalReason::kDeadlock});
  }
  return victim.has_value();
}

QueueScheduler::Wish QueueScheduler::WishOf(WaiterId id, Bytes kept) {
  Waiter& waiter = waiting_.waiters.at(id);
  return {.need = admission_.FreeFor(waiter, kept),
          .trims = waiter.need,
          .device = waiter.spec.device,
          .session = waiter.spec.session,
          .patient = waiter.is_patient};
}

QueueScheduler::Reach QueueScheduler::ReachOf(CardId card) const {
  // A session that waits on a device returns nothing of it meanwhile. On its other devices it may.
  std::set<std::pair<LogicalId, SessionId>> waiting;
  for (const WaiterId id : waiting_.queues.at(card).Order()) {
    const Broker::GrowSpec& spec = waiting_.waiters.at(id).spec;
    waiting.emplace(spec.device, spec.session);
  }
  const Bytes free = tables_.ledger.View(card).free();
  Reach reach{
      .free = free, .coming_back = tables_.ComingBack(card), .most = free, .kept = admission_.KeptOn(card)};
  for (const LogicalId logical : tables_.ledger.LogicalsOf(card)) {
    const DeviceEntry& device = tables_.devices.at(logical);
    const Ledger::LogicalView view = tables_.ledger.View(logical);
    Bytes kept;
    for (const auto& [session, held] : device.held_by) {
      const bool trims = tables_.sessions.at(session).trims && !device.spec.preallocate;
      reach.idle = reach.idle || (trims && view.held() > view.guarantee);
      if (!waiting.contains({logical, session})) continue;
      const auto leaving = device.leaving_by.find(session);
      kept += held - (leaving == device.leaving_by.end() ? Bytes() : leaving->second);
    }
    reach.most += std::min(SaturatingSub(view.held(), view.guarantee), SaturatingSub(view.held(), kept));
  }
  return reach;
}

bool QueueScheduler::MayBeServed(WaiterId id, CardId card, const Reach& reach) {
  const Wish wish = WishOf(id, reach.kept);
  if (wish.need <= (wish.patient ? reach.most : reach.free + reach.coming_back)) return true;
  const CardQueue& queue = waiting_.queues.at(card);
  if (queue.turn() && queue.turn()->of == id) {
    return trims_.IsHopeful(wish.trims, card, wish.device, wish.session);
  }
  return reach.idle && (!wish.trims.next_round || tables_.now() >= *wish.trims.next_round);
}

void QueueScheduler::AskForCard(WaiterId id, CardId card, const Reach& reach) {
  const Wish wish = WishOf(id, reach.kept);
  const Bytes missing = SaturatingSub(wish.need, reach.free + reach.coming_back);
  if (!missing.is_zero()) trims_.AskOnCard(wish.trims, card, wish.device, wish.session, missing);
}

// A session counts as waiting if it returns nothing to the card before it is served: it waits on each of its
// devices that has memory beyond the guarantee.
std::optional<WaiterId> QueueScheduler::DeadlockVictim(CardId card) {
  // A lease gives memory up while its program waits.
  if (giving_way_.HasHead(card) || giving_way_.WaitForLeases(card)) return std::nullopt;
  const Ledger::CardView memory = tables_.ledger.View(card);
  const Bytes kept = admission_.KeptOn(card);
  std::map<SessionId, WaiterId> youngest;  // of each session that waits for the card
  std::set<std::pair<LogicalId, SessionId>> waiting;
  for (const WaiterId id : waiting_.queues.at(card).Order()) {
    const Waiter& waiter = waiting_.waiters.at(id);
    const Broker::GrowSpec& spec = waiter.spec;
    if (!spec.session) continue;  // it holds nothing
    // It waits for one that gave way, and not for memory of another that waits.
    if (admission_.NeedOf(waiter) <= memory.free() && !kept.is_zero()) return std::nullopt;
    // The user said how long a charge waits, and programs outside lgpu may end in that time.
    const bool foreign_serves =
        !memory.foreign.is_zero() && SaturatingSub(WishOf(id, kept).need, memory.free()) <= memory.foreign;
    if (waiter.charge && foreign_serves) return std::nullopt;
    youngest[spec.session] = std::max(youngest[spec.session], id);
    waiting.emplace(spec.device, spec.session);
  }
  if (youngest.empty() || !tables_.Leaving(card).is_zero()) return std::nullopt;
  std::optional<WaiterId> victim;
  for (const LogicalId logical : tables_.ledger.LogicalsOf(card)) {
    const DeviceEntry& device = tables_.devices.at(logical);
    // Charged memory is about to be a session's that does not wait.
    if (!device.booked.is_zero()) return std::nullopt;
    const Ledger::LogicalView view = tables_.ledger.View(logical);
    const bool lends = view.held() > view.guarantee;
    for (const auto& [session, held] : device.held_by) {
      const auto waits = youngest.find(session);
      if (waits == youngest.end() || (lends && !waiting.contains({logical, session}))) return std::nullopt;
      victim = std::max(victim, std::optional(waits->second));
    }
  }
  return victim;
}

std::vector<Broker::Queued> QueueScheduler::QueueOf(CardId card) const {
  const CardQueue& queue = waiting_.queues.at(card);
  const Bytes kept = admission_.KeptOn(card);
  const Bytes free = tables_.ledger.View(card).free();
  std::vector<Broker::Queued> infos;
  for (const WaiterId id : queue.Order()) {
    Broker::Queued& info =
        infos.emplace_back(Broker::Queued{.id = id, .since = {}, .turns = queue.TurnsOf(id)});
    if (queue.turn() && queue.turn()->of == id) info.turn_ends = queue.turn()->ends;
    const Waiter& waiter = waiting_.waiters.at(id);
    info.waits_for_kept = admission_.FreeFor(waiter, kept) > free && admission_.NeedOf(waiter) <= free;
    info.owner = waiter.user;
    info.asked = waiter.spec.at_least;
    info.since = waiter.spec.asked_at;
    if (waiter.guarantee) {
      info.lease_name = waiter.guarantee->spec.lease_name;
      info.pid = waiter.guarantee->pid;
      continue;
    }
    const Broker::DeviceSpec& device = tables_.devices.at(waiter.spec.device).spec;
    info.lease_name = device.lease_name;
    info.device_name = device.device_name;
    info.pid = tables_.sessions.at(waiter.spec.session).pid;
    if (waiter.charge) info.what = waiter.charge->what;
  }
  return infos;
}

}  // namespace lgpu
