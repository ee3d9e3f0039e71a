// Sessions, and the driver memory that their processes take beside chunks.

#include <algorithm>
#include <utility>

#include "allocator/broker/broker.h"
#include "base/check.h"

namespace lgpu {

void Broker::AddSession(SessionId session, SessionSpec spec) {
  MutexLock lock(mutex_);
  Session& entry = sessions_[session];
  entry.pid = spec.pid;
  entry.waker = std::move(spec.waker);
  entry.trims = spec.trims;
}

void Broker::AttachSession(SessionId session, LeaseKey lease) {
  MutexLock lock(mutex_);
  const auto found = sessions_.find(session);
  if (found != sessions_.end()) {
    found->second.lease = lease;
    ChargeOverhead(found->second);
  }
}

void Broker::RemoveSession(SessionId session) {
  Wakes wakes;
  {
    MutexLock lock(mutex_);
    const auto found = sessions_.find(session);
    if (found == sessions_.end()) {
      return;
    }
    LGPU_CHECK(found->second.chunks.empty() && found->second.waiting.empty() && found->second.held.is_zero());
    StopTrimming(session);
    RefundOverhead(found->second, wakes);
    sessions_.erase(found);
  }
  WakeAll(wakes);
}

void Broker::ChargeRestoredOverhead() {
  MutexLock lock(mutex_);
  for (auto& [id, session] : sessions_) {
    ChargeOverhead(session);
  }
}

// A program takes its driver's memory whether the card has room or not. So the session is never refused for
// it: as much as there is room for is charged. A later report says how much it really is.
void Broker::ChargeOverhead(Session& session) {
  for (const auto& [id, device] : devices_) {
    const CardId card = device.spec.card;
    if (device.spec.lease != session.lease || device.removed || session.on_cards.contains(card)) {
      continue;
    }
    session.on_cards.insert(card);
    Overhead& overhead = overheads_[{session.pid, card}];
    if (overhead.sessions++ == 0) {
      overhead.wanted = cards_.at(card).overhead_allowance;
      ChargeOverhead(card, overhead);
    }
  }
}

void Broker::RefundOverhead(Session& session, Wakes& wakes) {
  for (const CardId card : std::exchange(session.on_cards, {})) {
    const auto found = overheads_.find({session.pid, card});
    if (--found->second.sessions == 0) {
      const Bytes charged = found->second.charged;
      overheads_.erase(found);
      if (!charged.is_zero()) {
        ledger_.RefundOverhead(card, charged);
        Serve(card, wakes);
      }
    }
  }
}

}  // namespace lgpu
