#include "allocator/broker/reservations.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "allocator/broker/broker_core.h"

namespace lgpu {

WaiterId Reservations::Queue(const Reservations::Request& spec) {
  BrokerLock lock(core_);
  Waiter waiter;
  waiter.spec = {.session = {},
                 .device = {},
                 .at_least = RoundUp(spec.bytes, core_.tables.GranuleOf(spec.card)),
                 .wanted = {},
                 .asked_at = core_.now(),
                 .deadline = spec.at_once ? core_.now() : Broker::TimePoint::max()};
  waiter.card = spec.card;
  waiter.user = spec.owner;
  waiter.waker = spec.waker;
  waiter.guarantee = {.what = GuaranteeWish::For::kReservation,
                      .spec = {.card = spec.card,
                               .limit = spec.bytes,
                               .lease = spec.lease,
                               .lease_name = spec.lease_name,
                               .owner = spec.owner,
                               .preemptible = spec.preemptible},
                      .pid = spec.pid,
                      .size = {.limit = spec.bytes, .guarantee = spec.bytes}};
  const WaiterId id = core_.waiting.NewWaiter();
  core_.admission.Admit(id, waiter);
  if (waiter.Waits()) {
    core_.requests.Park(id, std::move(waiter));
    core_.scheduler.Serve(spec.card);
  } else {
    core_.waiting.Wake(waiter);
    core_.requests.Park(id, std::move(waiter));
  }
  return id;
}

std::optional<Reservations::Place> Reservations::View(WaiterId id) const {
  BrokerLock lock(core_);
  const auto found = core_.waiting.waiters.find(id);
  if (found == core_.waiting.waiters.end() || !found->second.Waits()) return std::nullopt;
  const std::vector<WaiterId> order = core_.waiting.QueueOf(found->second).Order();
  const auto place = static_cast<std::size_t>(std::find(order.begin(), order.end(), id) - order.begin());
  return Reservations::Place{
      .text = core_.refusals.OfWaitingLease(id, place == 0 ? WaiterId() : order[place - 1],
                                            core_.kept.Beside(found->second).bytes),
      .place = place + 1,
      .waiting = order.size()};
}

void Reservations::Leave(WaiterId id, bool is_served) {
  BrokerLock lock(core_);
  const auto found = core_.waiting.waiters.find(id);
  if (found != core_.waiting.waiters.end()) {
    Waiter& waiter = found->second;
    const CardId card = waiter.card;
    const std::optional<CardQueue::Turn>& turn = core_.waiting.queues.at(card).turn();
    // A request that held nothing back, and that no lease gives way for, stood in the way of none.
    const bool held_back = (turn && turn->of == id) || !waiter.aside.is_zero() || core_.giving_way.IsHead(id);
    if (waiter.Waits()) core_.admission.Leave(id, waiter);
    core_.requests.Forget(id);
    core_.giving_way.Close(id, is_served);
    if (held_back) core_.scheduler.Serve(card);
  }
  if (const auto aside = core_.waiting.set_aside.find(id); aside != core_.waiting.set_aside.end()) {
    const CardId card = core_.tables.CardOf(aside->second);
    core_.guarantees.Free(id);
    core_.scheduler.Serve(card);
  }
}

}  // namespace lgpu
