// What real cards report of their use: what lies in no chunk is charged to whoever has it.

#include <algorithm>
#include <utility>

#include "allocator/check.h"
#include "daemon/broker.h"
#include "daemon/card_use.h"

namespace lgpu::daemon {

void Broker::ObserveCards() {
  std::vector<std::pair<CardId, int>> cards;
  {
    MutexLock lock(mutex_);
    for (const auto& [id, card] : cards_) {
      if (!card.device.simulated) cards.emplace_back(id, card.backend_device);
    }
  }
  Wakes wakes;
  for (const auto& [card, backend_device] : cards) {
    const std::optional<CardReport> report = CardReport::Take(backend_, backend_device);
    if (!report) continue;
    MutexLock lock(mutex_);
    Observe(card, *report);
    Serve(card, wakes);
  }
  WakeAll(wakes);
}

void Broker::Observe(CardId card, const CardReport& report) {
  const Ledger::CardView view = ledger_.View(card);
  // Chunks that are being made count as ours: a moment of too little is better than one of too much.
  ChunkUse chunks{.total = view.total, .held = view.held, .granted = {}};
  for (const auto& [id, session] : sessions_) {
    for (const ChunkId chunk : session.chunks) {
      if (devices_.at(chunks_.at(chunk).device).spec.card == card) {
        chunks.granted[session.pid] += chunks_.at(chunk).bytes;
      }
    }
  }
  const std::map<std::int64_t, Bytes> beside = BesideChunks(report, chunks);
  std::vector<DeviceBackend::ProcessMemory>& outsiders = outsiders_[card];
  outsiders.clear();
  for (const auto& [pid, bytes] : beside) {
    if (!overheads_.contains({pid, card})) outsiders.push_back({pid, bytes});
  }
  // All is given up first: what one program has less of makes room for another's.
  Bytes wanted;
  for (auto& [where, overhead] : overheads_) {
    if (where.second != card) continue;
    if (const auto measured = beside.find(where.first); measured != beside.end()) {
      overhead.wanted = measured->second;
    }
    wanted += overhead.wanted;
    ledger_.RefundOverhead(card, std::exchange(overhead.charged, Bytes()));
  }
  const auto unexplained = [&](Bytes overhead) {
    return SaturatingSub(SaturatingSub(view.total, report.free), view.held + overhead);
  };
  ledger_.SetForeign(card, unexplained(wanted));
  for (auto& [where, overhead] : overheads_) {
    if (where.second == card) ChargeOverhead(card, overhead);
  }
  // What there was no room for stays what it was: somebody else's use of the card.
  ledger_.SetForeign(card, unexplained(ledger_.View(card).overhead));
}

void Broker::ChargeOverhead(CardId card, Overhead& overhead) {
  overhead.charged = std::min(overhead.wanted, ledger_.View(card).free());
  LGPU_CHECK(ledger_.ChargeOverhead(card, overhead.charged).ok());
}

Bytes Broker::OverheadOf(SessionId session) const {
  MutexLock lock(mutex_);
  const auto found = sessions_.find(session);
  if (found == sessions_.end()) return Bytes();
  Bytes sum;
  for (const CardId card : found->second.on_cards) sum += overheads_.at({found->second.pid, card}).wanted;
  return sum;
}

Bytes Broker::OverheadOf(LeaseKey lease, CardId card) const {
  std::set<std::int64_t> processes;
  for (const auto& [id, session] : sessions_) {
    if (session.lease == lease && session.on_cards.contains(card)) processes.insert(session.pid);
  }
  Bytes sum;
  for (const std::int64_t pid : processes) sum += overheads_.at({pid, card}).wanted;
  return sum;
}

}  // namespace lgpu::daemon
