#include "allocator/broker/pending_requests.h"

#include <algorithm>
#include <set>
#include <utility>

#include "allocator/broker/chunk_sizes.h"

namespace lgpu {

std::optional<Making> PendingRequests::Place(WaiterId id, Waiter& mine, Broker::GrowAnswer& answer) {
  admission_.Admit(id, mine);
  if (mine.IsQueued()) {
    const CardId card = tables_.CardOf(mine.spec.device);
    const bool waits_for_card = mine.phase == Waiter::Phase::kCard;
    Park(id, std::move(mine));
    if (waits_for_card) queues_.Serve(card);
    if (!TakeIfSettled(id, mine, answer)) return std::nullopt;
  }
  return Conclude(mine, answer);
}

std::optional<Making> PendingRequests::Continue(WaiterId id, Waiter& mine, Broker::GrowAnswer& answer) {
  if (!tables_.waiters.contains(id)) {
    answer.status = absl::FailedPreconditionError("the session has ended");
    return std::nullopt;
  }
  return TakeIfSettled(id, mine, answer) ? Conclude(mine, answer) : std::nullopt;
}

void PendingRequests::Withdraw(WaiterId id) {
  const auto found = tables_.waiters.find(id);
  if (found == tables_.waiters.end()) return;
  Waiter& waiter = found->second;
  waiter.is_withdrawn = true;
  waiter.in_grace = true;
  waiter.spec.deadline = tables_.now();
}

void PendingRequests::Park(WaiterId id, Waiter waiter) {
  tables_.sessions.at(waiter.spec.session).waiting.insert(id);
  tables_.waiters.emplace(id, std::move(waiter));
}

void PendingRequests::Forget(WaiterId id) {
  const auto found = tables_.waiters.find(id);
  tables_.sessions.at(found->second.spec.session).waiting.erase(id);
  tables_.waiters.erase(found);
}

void PendingRequests::PutOff(WaiterId id, Waiter waiter, Broker::GrowAnswer& answer) {
  waiter.phase = Waiter::Phase::kBackend;
  // Not sooner, whatever wakes the session: what this attempt gives back wakes it too.
  waiter.retry_at = tables_.now() + BrokerTables::kBackendRetry;
  answer.wait = id;
  answer.next_look = std::min(waiter.spec.deadline, waiter.retry_at);
  Park(id, std::move(waiter));
}

bool PendingRequests::TakeIfSettled(WaiterId id, Waiter& mine, Broker::GrowAnswer& answer) {
  Waiter& waiter = tables_.waiters.at(id);
  const CardId card = tables_.CardOf(waiter.spec.device);
  const Broker::TimePoint now = tables_.now();
  if (waiter.phase == Waiter::Phase::kBackend && !waiter.IsPutOff(now)) {
    waiter.phase = Waiter::Phase::kNew;
    admission_.Admit(id, waiter);
    if (waiter.phase == Waiter::Phase::kCard) queues_.Serve(card);
  }
  if (waiter.phase == Waiter::Phase::kLimit && now < waiter.spec.deadline) LookForIdle(waiter);
  if (waiter.phase == Waiter::Phase::kCard && now >= waiter.next_look) queues_.Serve(card);
  if (waiter.IsQueued() && now >= waiter.spec.deadline && !admission_.IsBeingMade(waiter)) {
    RefusalCause cause{.reason = RefusalReason::kLimit};
    if (waiter.phase == Waiter::Phase::kCard) {
      cause.reason = RefusalReason::kCard;
      cause.turns = tables_.queues.at(card).TurnsOf(id);
    }
    admission_.Leave(id, waiter);
    admission_.Refuse(waiter, cause);
    queues_.Serve(card);
  }
  if (waiter.IsQueued() || waiter.IsPutOff(now)) {
    waiter.next_look = NextLook(id, waiter, now);
    answer.wait = id;
    answer.next_look = waiter.next_look;
    return false;
  }
  mine = std::move(waiter);
  Forget(id);
  return true;
}

void PendingRequests::LookForIdle(Waiter& waiter) {
  if (waiter.need.round == 0 || tables_.now() < waiter.need.look_again) return;
  // All requests of its line are admitted again, so that each keeps its place there.
  queues_.Serve(tables_.CardOf(waiter.spec.device));
  // Where nothing had to be asked, because what is missing is on its way.
  waiter.need.look_again = std::max(waiter.need.look_again, tables_.now() + TrimTable::kPatience);
}

Broker::TimePoint PendingRequests::NextLook(WaiterId id, const Waiter& waiter, Broker::TimePoint now) const {
  if (waiter.IsPutOff(now)) return std::min(waiter.spec.deadline, waiter.retry_at);
  if (now >= waiter.spec.deadline) return now + BrokerTables::kBackendRetry;
  const CardQueue& queue = tables_.QueueOf(waiter);
  const bool waits_for_card = waiter.phase == Waiter::Phase::kCard;
  Broker::TimePoint next = waiter.spec.deadline;
  if (waits_for_card) {
    // So that a turn ends in time, even one that starts before this request looks again and whose own session
    // is slow.
    next = std::min({next, now + tables_.max_drain, queue.NextChange(now).value_or(next)});
  }
  const bool asks = !waits_for_card || (queue.turn() && queue.turn()->of == id);
  if (!asks || waiter.need.round == 0) return next;
  const Broker::TimePoint look_again = waiter.need.look_again;
  return std::min(next, look_again > now ? look_again : now + TrimTable::kPatience);
}

std::optional<Making> PendingRequests::Conclude(Waiter& mine, Broker::GrowAnswer& answer) {
  if (mine.phase == Waiter::Phase::kBallast) return Making();
  if (mine.phase == Waiter::Phase::kCharged) {
    const Broker::DeviceSpec& spec = tables_.devices.at(mine.spec.device).spec;
    const BrokerCard& card = tables_.cards.at(spec.card);
    if (spec.preallocate) {
      return Making{.sizes = ChunkSizesForPreallocation(card.device, mine.charged),
                    .backend_device = card.backend_device};
    }
    // What is wanted beyond the need is to lie in chunks of its own: it may have to go again.
    const Bytes needed = std::min(mine.spec.at_least, mine.charged);
    Making making{.sizes = ChunkSizesForGrowth(card.device, needed), .backend_device = card.backend_device};
    const std::vector<Bytes> more = ChunkSizesForGrowth(card.device, mine.charged - needed);
    making.sizes.insert(making.sizes.end(), more.begin(), more.end());
    return making;
  }
  if (mine.charge && mine.phase == Waiter::Phase::kServed) {
    ++tables_.counters.charges;
    answer.lent = charges_.Lend(mine);
    return std::nullopt;
  }
  answer.ahead = mine.spec.ahead;
  answer.status = std::move(mine.refusal);
  answer.chunks = std::move(mine.taken);
  if (answer.status.ok()) {
    ++tables_.counters.grants;
  } else if (!mine.spec.ahead && !mine.is_withdrawn) {
    ++tables_.counters.refusals;
  }
  return std::nullopt;
}

void PendingRequests::Drop(SessionId session) {
  std::set<CardId> touched;
  const std::set<WaiterId> waiting = tables_.sessions.at(session).waiting;
  for (const WaiterId id : waiting) {
    Waiter& waiter = tables_.waiters.at(id);
    touched.insert(tables_.CardOf(waiter.spec.device));
    // The request that was to free them is gone.
    for (const ChunkId chunk : std::exchange(waiter.ballast, {})) tables_.NoteUnconfirmed(chunk);
    admission_.Leave(id, waiter);
    Forget(id);
  }
  for (const CardId card : touched) queues_.Serve(card);
}

}  // namespace lgpu
