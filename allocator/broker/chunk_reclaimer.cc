#include "allocator/broker/chunk_reclaimer.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "base/check.h"

namespace lgpu {
namespace {

// How often the machine's processes are looked through for memory that an earlier daemon granted.
constexpr std::chrono::milliseconds kLostRetry{250};

}  // namespace

void ChunkReclaimer::Reclaim(const std::vector<ChunkId>& chunks) {
  const Results lost = ReclaimLost(chunks);
  for (std::size_t start = 0; start < chunks.size(); start += kBatch) {
    const std::size_t count = std::min(kBatch, chunks.size() - start);
    ReclaimBatch(std::span(chunks).subspan(start, count), lost);
  }
}

void ChunkReclaimer::ReclaimBatch(std::span<const ChunkId> chunks, const Results& lost) {
  std::vector<MemoryHandle> memories;
  {
    BrokerLock lock(core_);
    for (const ChunkId id : chunks) memories.push_back(core_.tables.chunks.at(id).memory);
  }
  const std::vector<ChunkId> batch(chunks.begin(), chunks.end());
  const std::map<CardId, CardReport> before = ReportBefore(batch);
  std::vector<absl::Status> results;
  results.reserve(batch.size());
  for (std::size_t i = 0; i < batch.size(); ++i) {
    const auto found = lost.find(batch[i]);
    results.push_back(found == lost.end() ? core_.backend.Reclaim(memories[i]) : found->second);
  }
  for (const auto& [card, report] : before) {
    int backend_device = 0;
    {
      BrokerLock lock(core_);
      backend_device = core_.tables.cards.at(card).backend_device;
    }
    const std::optional<CardReport> after = CardReport::Take(core_.backend, backend_device);
    if (!after) continue;
    BrokerLock lock(core_);
    core_.unreturned.Doubt(card, report, *after, batch, results);
  }
  ChunkTable::Missing missing;
  {
    BrokerLock lock(core_);
    Settle(chunks, results, missing);
  }
  MakeAgain(missing);
}

void ChunkReclaimer::Settle(std::span<const ChunkId> chunks, std::span<const absl::Status> results,
                            ChunkTable::Missing& missing) {
  std::set<CardId> touched;
  for (std::size_t i = 0; i < chunks.size(); ++i) {
    touched.insert(core_.tables.CardOf(core_.tables.chunks.at(chunks[i])));
    core_.unreturned.EndRelease(chunks[i]);
    core_.chunks.Settle(chunks[i], results[i], missing);
  }
  for (const CardId card : touched) core_.scheduler.Serve(card);
}

// A device that cannot have its chunks now lacks them: the next request that needs them makes them.
void ChunkReclaimer::MakeAgain(const ChunkTable::Missing& missing) {
  for (const auto& [device, sizes] : missing) {
    Bytes bytes;
    for (const Bytes size : sizes) bytes += size;
    Reclaim(spare_.Make({.device = device, .bytes = bytes, .sizes = sizes, .deadline = core_.now()}).leaving);
  }
}

ChunkReclaimer::Results ChunkReclaimer::ReclaimLost(const std::vector<ChunkId>& chunks) {
  std::vector<ChunkId> lost;
  std::vector<std::uint64_t> identities;
  Results results;
  {
    BrokerLock lock(core_);
    for (const ChunkId id : chunks) {
      const ChunkEntry& chunk = core_.tables.chunks.at(id);
      if (chunk.lost && chunk.identity != 0) {
        lost.push_back(id);
        identities.push_back(chunk.identity);
      } else if (chunk.lost) {
        results.emplace(id, absl::UnavailableError("an earlier lgpud granted it"));
      }
    }
  }
  if (lost.empty()) return results;
  const std::vector<absl::Status> answers = core_.backend.ReclaimLost(identities);
  LGPU_CHECK_OP(answers.size(), ==, lost.size());
  for (std::size_t i = 0; i < lost.size(); ++i) results.emplace(lost[i], answers[i]);
  return results;
}

std::map<CardId, CardReport> ChunkReclaimer::ReportBefore(const std::vector<ChunkId>& chunks) {
  std::map<CardId, CardReport> reports;
  if (!core_.leaves_process) return reports;
  std::map<CardId, int> cards;
  {
    BrokerLock lock(core_);
    cards = core_.unreturned.RealCardsOf(chunks);
  }
  if (cards.empty()) return reports;
  for (const auto& [card, backend_device] : cards) {
    if (std::optional<CardReport> report = CardReport::Take(core_.backend, backend_device)) {
      reports.emplace(card, *std::move(report));
    }
  }
  BrokerLock lock(core_);
  core_.unreturned.StartRelease(chunks, reports);
  return reports;
}

std::set<ChunkId> ChunkReclaimer::LookAtCards() {
  std::set<ChunkId> back;
  std::vector<std::pair<CardId, int>> cards;
  {
    BrokerLock lock(core_);
    cards = core_.unreturned.CardsToLookAt();
  }
  for (const auto& [card, backend_device] : cards) {
    const std::optional<CardReport> report = CardReport::Take(core_.backend, backend_device);
    BrokerLock lock(core_);
    back.merge(core_.unreturned.Back(card, report ? &*report : nullptr));
  }
  return back;
}

bool ChunkReclaimer::LooksFree(const ChunkEntry& chunk) {
  int backend_device = 0;
  Bytes expected;
  {
    BrokerLock lock(core_);
    const CardId card = core_.tables.CardOf(chunk);
    if (core_.unreturned.Watches(card)) return false;  // a watch knows better
    const Ledger::CardView view = core_.tables.ledger.View(card);
    backend_device = core_.tables.cards.at(card).backend_device;
    Bytes exists = view.held + view.overhead + view.foreign;
    for (const auto& [id, device] : core_.tables.devices) {
      if (device.spec.card == card) exists -= device.charged;  // no chunk was made for it yet
    }
    expected = SaturatingSub(view.total, exists) + chunk.bytes;
  }
  const std::optional<Bytes> free = core_.backend.FreeMemory(backend_device);
  return free && *free >= expected;
}

ChunkReclaimer::Pending ChunkReclaimer::TakePending() {
  Pending pending;
  const Broker::TimePoint now = core_.now();
  const bool ask_for_lost = now >= lost_retry_at_;
  for (const ChunkId id : core_.tables.unconfirmed) {
    const ChunkEntry& chunk = core_.tables.chunks.at(id);
    if (chunk.lost && chunk.identity != 0) {
      if (!ask_for_lost) continue;
      pending.lost.push_back(id);
      lost_retry_at_ = now + kLostRetry;
    }
    pending.chunks.emplace_back(id, chunk);
  }
  return pending;
}

bool ChunkReclaimer::RetryUnconfirmed() {
  Pending pending;
  {
    BrokerLock lock(core_);
    if (retrying_) return false;
    if (core_.tables.unconfirmed.empty() && core_.unreturned.is_idle()) return true;
    retrying_ = true;
    pending = TakePending();
  }
  const Results answers = ReclaimLost(pending.lost);
  const std::set<ChunkId> back = LookAtCards();
  ChunkTable::Missing missing;
  for (const auto& [id, chunk] : pending.chunks) {
    absl::Status result;
    if (const auto answer = answers.find(id); answer != answers.end()) {
      result = answer->second;
    } else if (chunk.lost) {
      // A real card's, of an earlier daemon: only its program had it, which gave it back or is gone.
      result = absl::OkStatus();
    } else if (!chunk.reference_gone) {
      result = core_.backend.Reclaim(chunk.memory);
    } else if (!back.contains(id) && !LooksFree(chunk)) {
      result = absl::UnavailableError("another process pins it");
    }
    BrokerLock lock(core_);
    if (const SessionEntry* const session = core_.tables.FindSession(chunk.session)) {
      core_.tables.wakes.push_back(session->waker);  // it may wait for this to close
    }
    Settle({&id, 1}, {&result, 1}, missing);
  }
  MakeAgain(missing);
  BrokerLock lock(core_);
  retrying_ = false;
  return core_.tables.unconfirmed.empty();
}

}  // namespace lgpu
