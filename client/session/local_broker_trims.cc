// Memory that lies idle in one device of the process, for another one that is short of the card.

#include <algorithm>
#include <utility>

#include "client/session/local_broker.h"

namespace lgpu {
namespace {

using Clock = std::chrono::steady_clock;

constexpr HolderId kThisProcess{1};

}  // namespace

std::vector<LocalBroker::TrimOrder> LocalBroker::TakeTrims() {
  std::vector<TrimOrder> orders;
  MutexLock lock(mutex_);
  for (const TrimTable::Order& order : trims_.Take(kThisProcess)) {
    const auto device = devices_.find(order.device);
    orders.push_back({.id = order.id,
                      .index = device == devices_.end() ? 0 : device->second.spec.index,
                      .bytes = order.bytes});
  }
  return orders;
}

void LocalBroker::Trimmed(TrimId id, bool pending) {
  MutexLock lock(mutex_);
  const absl::StatusOr<LogicalId> device = trims_.Answer(kThisProcess, id, pending, Clock::now());
  if (device.ok() && devices_.contains(*device)) Serve(ledger_.View(*device).card);
}

std::vector<TrimTable::Holder> LocalBroker::CardHolders(CardId card, LogicalId except) const {
  std::vector<TrimTable::Holder> holders;
  if (maintenance_ == nullptr) return holders;
  for (const LogicalId logical : ledger_.LogicalsOf(card)) {
    const auto device = devices_.find(logical);
    // Preallocated memory, and what lies inside a guarantee, stays set aside when it comes back.
    if (logical == except || device == devices_.end() || device->second.spec.preallocate) continue;
    const Ledger::LogicalView view = ledger_.View(logical);
    const Bytes surplus = std::min(view.granted, SaturatingSub(view.held(), view.guarantee));
    if (!surplus.is_zero()) holders.push_back({.who = kThisProcess, .device = logical, .bytes = surplus});
  }
  return holders;
}

void LocalBroker::AskForCard(CardId card) {
  const std::vector<WaiterId> queue = ledger_.QueueOf(card);
  if (queue.empty()) return;
  Waiter& head = waiters_.at(queue.front());
  const Ledger::LogicalView view = ledger_.View(head.device);
  const Bytes promise = std::max(view.guarantee, view.held());
  const Bytes growth = std::max(view.guarantee, view.held() + head.bytes) - promise;
  const Bytes missing = SaturatingSub(growth, ledger_.View(card).free());
  if (missing.is_zero()) return;
  if (trims_.Ask(head.need, CardHolders(card, head.device), missing, Clock::now()).whom) maintenance_->Wake();
}

bool LocalBroker::CardIsHopeful(CardId card) const {
  const std::vector<WaiterId> queue = ledger_.QueueOf(card);
  if (queue.empty()) return false;
  const Waiter& head = waiters_.at(queue.front());
  return trims_.IsHopeful(head.need, CardHolders(card, head.device));
}

}  // namespace lgpu
