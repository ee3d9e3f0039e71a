#include "allocator/broker/pending_requests.h"

#include <algorithm>
#include <set>
#include <utility>

#include "allocator/broker/chunk_sizes.h"

namespace lgpu {

bool PendingRequests::Settle(WaiterId id, Waiter& mine) {
  admission_.Admit(id, mine);
  if (!mine.Waits()) return true;
  const CardId card = mine.card;
  const bool waits_for_card = mine.phase == Waiter::Phase::kCard;
  Park(id, std::move(mine));
  if (waits_for_card) queues_.Serve(card);
  return Take(id, mine);
}

bool PendingRequests::Take(WaiterId id, Waiter& mine) {
  Waiter& waiter = waiting_.waiters.at(id);
  if (waiter.Waits()) return false;
  mine = std::move(waiter);
  Forget(id);
  return true;
}

std::optional<Making> PendingRequests::Place(WaiterId id, Waiter& mine, Broker::Answer& answer) {
  if (Settle(id, mine)) return Conclude(mine, answer);
  answer.wait = id;
  return std::nullopt;
}

std::optional<Making> PendingRequests::Continue(WaiterId id, Waiter& mine, Broker::Answer& answer) {
  if (!waiting_.waiters.contains(id)) {
    answer.status = absl::FailedPreconditionError("the session has ended");
    return std::nullopt;
  }
  if (Take(id, mine)) return Conclude(mine, answer);
  answer.wait = id;
  return std::nullopt;
}

void PendingRequests::Park(WaiterId id, Waiter waiter) {
  waiting_.times_changed = true;
  if (waiter.spec.session) tables_.sessions.at(waiter.spec.session).waiting.insert(id);
  waiting_.waiters.emplace(id, std::move(waiter));
}

void PendingRequests::Forget(WaiterId id) {
  const auto found = waiting_.waiters.find(id);
  const SessionId session = found->second.spec.session;
  if (session) tables_.sessions.at(session).waiting.erase(id);
  waiting_.waiters.erase(found);
}

void PendingRequests::PutOff(WaiterId id, Waiter waiter) {
  waiter.phase = Waiter::Phase::kBackend;
  waiter.retry_at = tables_.now() + BrokerTables::kBackendRetry;
  Park(id, std::move(waiter));
}

std::optional<Making> PendingRequests::Conclude(Waiter& mine, Broker::Answer& answer) {
  if (mine.phase == Waiter::Phase::kBallast) return Making();
  if (mine.phase == Waiter::Phase::kBooked) {
    const Broker::DeviceSpec& spec = tables_.devices.at(mine.spec.device).spec;
    const BrokerCard& card = tables_.cards.at(spec.card);
    if (spec.preallocate) {
      return Making{.sizes = ChunkSizesForPreallocation(card.device, mine.booked),
                    .backend_device = card.backend_device};
    }
    const Ledger::LogicalView device = tables_.ledger.View(mine.spec.device);
    return Making{.sizes = ChunkSizesForGrowth(card.device, {.needed = mine.spec.at_least,
                                                             .granted = mine.booked,
                                                             .held = device.held(),
                                                             .limit = device.limit}),
                  .backend_device = card.backend_device};
  }
  if (mine.charge && mine.phase == Waiter::Phase::kServed) {
    ++tables_.counters.charges;
    answer.lent = charges_.Lend(
        mine, !waiting_.QueueOf(mine).empty() || !admission_.LeavesRoom(mine, ChargeTable::kMostAllowance));
    return std::nullopt;
  }
  answer.ahead = mine.spec.ahead;
  answer.status = std::move(mine.refusal);
  answer.chunks = std::move(mine.taken);
  if (answer.status.ok()) {
    ++tables_.counters.grants;
  } else if (!mine.spec.ahead && !absl::IsCancelled(answer.status)) {
    ++tables_.counters.refusals;
  }
  return std::nullopt;
}

void PendingRequests::Drop(SessionId session) {
  std::set<CardId> touched;
  const std::set<WaiterId> waiting = tables_.sessions.at(session).waiting;
  for (const WaiterId id : waiting) {
    Waiter& waiter = waiting_.waiters.at(id);
    touched.insert(waiter.card);
    // The request that was to free them is gone.
    for (const ChunkId chunk : std::exchange(waiter.ballast, {})) tables_.NoteUnconfirmed(chunk);
    admission_.Leave(id, waiter);
    Forget(id);
  }
  for (const CardId card : touched) queues_.Serve(card);
}

}  // namespace lgpu
