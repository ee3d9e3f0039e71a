// Who may hold memory, and what its process takes beside it.

#include <set>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "allocator/check.h"
#include "daemon/broker.h"

namespace lgpu::daemon {

void Broker::AddSession(SessionId session, SessionSpec spec) {
  MutexLock lock(mutex_);
  Session& entry = sessions_[session];
  entry.pid = spec.pid;
  entry.waker = std::move(spec.waker);
  entry.trims = spec.trims;
}

absl::Status Broker::AttachSession(SessionId session, LeaseKey lease) {
  MutexLock lock(mutex_);
  const auto found = sessions_.find(session);
  if (found == sessions_.end() || found->second.lease) {
    return absl::OkStatus();
  }
  absl::Status charged = ChargeOverhead(found->second, lease, Shortage::kRefuse);
  if (charged.ok()) {
    found->second.lease = lease;
  }
  return charged;
}

void Broker::RemoveSession(SessionId session) {
  Wakes wakes;
  {
    MutexLock lock(mutex_);
    const auto found = sessions_.find(session);
    if (found == sessions_.end()) {
      return;
    }
    LGPU_CHECK(found->second.chunks.empty() && found->second.waiting.empty());
    StopTrimming(session);
    RefundOverhead(found->second, wakes);
    sessions_.erase(found);
  }
  WakeAll(wakes);
}

absl::Status Broker::ChargeOverhead(Session& session, LeaseKey lease, Shortage shortage) {
  std::set<CardId> cards;
  for (const auto& [id, device] : devices_) {
    if (device.spec.lease == lease && !device.removed) {
      cards.insert(device.spec.card);
    }
  }
  for (const CardId card : cards) {
    const BrokerCard& about = cards_.at(card);
    const Bytes free = ledger_.View(card).free();
    const Bytes charge = shortage == Shortage::kTakeWhatIs ? std::min(about.overhead_allowance, free)
                                                           : about.overhead_allowance;
    if (charge.is_zero()) {
      continue;
    }
    if (!ledger_.ChargeOverhead(card, charge).ok()) {
      Wakes nobody;  // who waits for this card was not helped
      RefundOverhead(session, nobody);
      return absl::ResourceExhaustedError(
          absl::StrCat("GPU ", about.index, " has ", FormatBytes(free),
                       " left, and the driver memory of one more program takes ", FormatBytes(charge),
                       " (memory.overhead_allowance)\n  try: lgpu ls shows who holds the rest; another GPU"));
    }
    session.overhead.emplace_back(card, charge);
  }
  return absl::OkStatus();
}

void Broker::RefundOverhead(Session& session, Wakes& wakes) {
  for (const auto& [card, bytes] : std::exchange(session.overhead, {})) {
    ledger_.RefundOverhead(card, bytes);
    Serve(card, wakes);
  }
}

}  // namespace lgpu::daemon
