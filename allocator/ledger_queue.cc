#include "allocator/ledger.h"
#include "base/check.h"

namespace lgpu {

WaiterId Ledger::Enqueue(LogicalId logical, Bytes bytes) {
  Logical& waiting = LogicalOf(logical);
  Card& card = CardOf(waiting.card);
  LGPU_CHECK(!bytes.is_zero() && RoundDown(bytes, card.options.granularity) == bytes);
  const WaiterId id{++last_waiter_};
  waiters_.emplace(id, Waiter{logical, bytes});
  card.queue.insert(card.queue.end(), id);
  ++waiting.waiters;
  return id;
}

void Ledger::TakeOut(Card& card, WaiterId waiter) {
  const auto found = waiters_.find(waiter);
  --LogicalOf(found->second.logical).waiters;
  card.queue.erase(waiter);
  waiters_.erase(found);
}

void Ledger::Leave(WaiterId waiter) {
  LGPU_CHECK(waiter && waiter.value <= last_waiter_);
  const auto found = waiters_.find(waiter);
  if (found == waiters_.end()) return;
  TakeOut(CardOf(LogicalOf(found->second.logical).card), waiter);
}

Ledger::Served Ledger::ServeQueue(CardId card) {
  Card& on = CardOf(card);
  Served served;
  bool blocked = false;  // a waiter further ahead stays
  for (auto next = on.queue.begin(); next != on.queue.end();) {
    const WaiterId id = *next++;
    const Waiter waiter = waiters_.at(id);
    Logical& waiting = LogicalOf(waiter.logical);
    const Bytes need = Need(waiting, waiter.bytes);
    if (!blocked && !FitsLimit(on, waiting, waiter.bytes)) {
      TakeOut(on, id);
      served.failed.push_back(id);
    } else if (need.is_zero() || (!blocked && need <= Free(on))) {
      TakeOut(on, id);
      Charge(waiting, waiter.bytes);
      served.granted.push_back(id);
      // What the others of this logical device wait for may now be above its limit.
      if (blocked && waiting.waiters > 0) {
        next = on.queue.begin();
        blocked = false;
      }
    } else {
      blocked = true;
    }
  }
  return served;
}

std::vector<WaiterId> Ledger::QueueOf(CardId card) const {
  const Card& on = CardOf(card);
  return {on.queue.begin(), on.queue.end()};
}

}  // namespace lgpu
