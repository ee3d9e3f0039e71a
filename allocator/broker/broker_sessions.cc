// Sessions, and the driver memory that their processes take beside chunks.

#include <algorithm>
#include <utility>

#include "allocator/broker/broker_impl.h"
#include "base/check.h"

namespace lgpu {

void BrokerImpl::AddSession(SessionId session, SessionSpec spec) {
  BrokerLock lock(core_);
  SessionEntry& entry = core_.tables.sessions[session];
  entry.pid = spec.pid;
  entry.waker = std::move(spec.waker);
  entry.trims = spec.trims;
}

void BrokerImpl::AttachSession(SessionId session, LeaseKey lease) {
  BrokerLock lock(core_);
  const auto found = core_.tables.sessions.find(session);
  if (found != core_.tables.sessions.end()) {
    found->second.lease = lease;
    ChargeOverhead(found->second);
  }
}

void BrokerImpl::RemoveSession(SessionId session) {
  {
    BrokerLock lock(core_);
    const auto found = core_.tables.sessions.find(session);
    if (found == core_.tables.sessions.end()) {
      return;
    }
    LGPU_CHECK(found->second.chunks.empty() && found->second.waiting.empty() && found->second.held.is_zero());
    StopTrimming(session);
    RefundOverhead(found->second);
    core_.tables.sessions.erase(found);
  }
}

void BrokerImpl::ChargeRestoredOverhead() {
  BrokerLock lock(core_);
  for (auto& [id, session] : core_.tables.sessions) {
    ChargeOverhead(session);
  }
}

// A program takes its driver's memory whether the card has room or not. So the
// session is never refused for it: as much as there is room for is charged. A
// later report says how much it really is.
void BrokerImpl::ChargeOverhead(SessionEntry& session) {
  for (const auto& [id, device] : core_.tables.devices) {
    const CardId card = device.spec.card;
    if (device.spec.lease != session.lease || device.removed || session.on_cards.contains(card)) {
      continue;
    }
    session.on_cards.insert(card);
    Overhead& overhead = overheads_[{session.pid, card}];
    if (overhead.sessions++ == 0) {
      overhead.wanted = core_.tables.cards.at(card).overhead_allowance;
      ChargeOverhead(card, overhead);
    }
  }
}

void BrokerImpl::RefundOverhead(SessionEntry& session) {
  for (const CardId card : std::exchange(session.on_cards, {})) {
    const auto found = overheads_.find({session.pid, card});
    if (--found->second.sessions == 0) {
      const Bytes charged = found->second.charged;
      overheads_.erase(found);
      if (!charged.is_zero()) {
        core_.tables.ledger.RefundOverhead(card, charged);
        Serve(card);
      }
    }
  }
}

}  // namespace lgpu
