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

bool ChunkReclaimer::NeedsCard(const ChunkEntry& chunk) const {
  return core_.leaves_process && core_.unreturned.IsReal(chunk);
}

ChunkReclaimer::Batch ChunkReclaimer::Take(std::span<const ChunkId> chunks, bool comes_first) {
  Batch batch;
  std::set<CardId> others;
  for (const ChunkId id : chunks) {
    const ChunkEntry& chunk = core_.tables.chunks.at(id);
    const CardId card = core_.tables.CardOf(chunk);
    if (NeedsCard(chunk) && !batch.cards.contains(card)) {
      // What was put off before comes first, so that a card with many returns gets to it.
      const bool must_wait = !comes_first && core_.unreturned.IsPutOff(card);
      if (must_wait || others.contains(card) || !core_.unreturned.TakeCard(card)) {
        others.insert(card);
        core_.tables.NoteUnconfirmed(id);
        continue;
      }
      batch.cards.emplace(card, core_.tables.cards.at(card).backend_device);
    }
    if (NeedsCard(chunk) && chunk.session) batch.doubted.insert(card);
    batch.chunks.push_back(id);
    batch.memories.push_back(chunk.memory);
  }
  return batch;
}

void ChunkReclaimer::Give(const Batch& batch) {
  for (const auto& [card, backend_device] : batch.cards) {
    if (core_.unreturned.GiveCard(card)) core_.tables.wakes.push_back(core_.tables.unconfirmed_waker);
  }
  if (!batch.cards.empty()) core_.card_given.NotifyAll();
}

void ChunkReclaimer::ReclaimBatch(std::span<const ChunkId> chunks, const Results& lost, bool is_retry) {
  Batch batch;
  {
    BrokerLock lock(core_);
    batch = Take(chunks, is_retry);
    if (is_retry) {
      for (const auto& [card, backend_device] : batch.cards) core_.unreturned.ForgetPutOff(card);
    }
  }
  const std::map<CardId, CardReport> before = ReportBefore(batch);
  std::vector<absl::Status> results;
  results.reserve(batch.chunks.size());
  for (std::size_t i = 0; i < batch.chunks.size(); ++i) {
    const auto found = lost.find(batch.chunks[i]);
    results.push_back(found == lost.end() ? core_.backend.Reclaim(batch.memories[i]) : found->second);
  }
  for (const auto& [card, report] : before) {
    const std::optional<CardReport> after = CardReport::Take(core_.backend, batch.cards.at(card));
    if (!after) continue;
    BrokerLock lock(core_);
    core_.unreturned.Doubt(card, report, *after, batch.chunks, results);
  }
  ChunkTable::Missing missing;
  {
    BrokerLock lock(core_);
    if (is_retry) {
      for (const ChunkId id : batch.chunks) WakeHolder(id);
    }
    const std::set<CardId> touched = Settle(batch.chunks, results, missing);
    Give(batch);
    Serve(touched);
  }
  MakeAgain(missing);
}

void ChunkReclaimer::FreeSpare(const std::vector<ChunkId>& chunks, absl::FunctionRef<void()> settled) {
  Batch batch;
  {
    BrokerLock lock(core_);
    const CardId card = core_.tables.CardOf(core_.tables.chunks.at(chunks.front()));
    while (core_.unreturned.IsTaken(card)) core_.card_given.Wait(core_.mutex);
    batch = Take(chunks, /*comes_first=*/true);
  }
  std::vector<absl::Status> results;
  for (const MemoryHandle& memory : batch.memories) results.push_back(core_.backend.Reclaim(memory));
  BrokerLock lock(core_);
  ChunkTable::Missing missing;  // stays empty: these chunks were no session's
  const std::set<CardId> touched = Settle(batch.chunks, results, missing);
  Give(batch);
  settled();
  Serve(touched);
}

std::set<CardId> ChunkReclaimer::Settle(std::span<const ChunkId> chunks,
                                        std::span<const absl::Status> results, ChunkTable::Missing& missing) {
  std::set<CardId> touched;
  for (std::size_t i = 0; i < chunks.size(); ++i) {
    touched.insert(core_.tables.CardOf(core_.tables.chunks.at(chunks[i])));
    core_.chunks.Settle(chunks[i], results[i], missing);
  }
  return touched;
}

void ChunkReclaimer::Serve(const std::set<CardId>& cards) {
  for (const CardId card : cards) core_.scheduler.Serve(card);
}

void ChunkReclaimer::WakeHolder(ChunkId chunk) {
  const SessionId holder = core_.tables.chunks.at(chunk).session;
  if (core_.tables.FindSession(holder) != nullptr) core_.tables.Wake(holder);
}

// A device that cannot have its chunks now lacks them: the next request that needs them makes them.
void ChunkReclaimer::MakeAgain(const ChunkTable::Missing& missing) {
  for (const auto& [device, sizes] : missing) {
    Bytes bytes;
    for (const Bytes size : sizes) bytes += size;
    SpareChunks::Order order{.device = device, .bytes = bytes, .sizes = sizes, .deadline = core_.now()};
    Reclaim(spare_.Make(order)->leaving);  // its time is over: it is not made again later
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

std::map<CardId, CardReport> ChunkReclaimer::ReportBefore(const Batch& batch) {
  std::map<CardId, CardReport> reports;
  for (const CardId card : batch.doubted) {
    if (std::optional<CardReport> report = CardReport::Take(core_.backend, batch.cards.at(card))) {
      reports.emplace(card, *std::move(report));
    }
  }
  if (reports.empty()) return reports;
  BrokerLock lock(core_);
  core_.unreturned.StartRelease(batch.chunks, reports);
  return reports;
}

std::set<ChunkId> ChunkReclaimer::LookAtCards() {
  std::set<ChunkId> back;
  Batch looked_at;
  {
    BrokerLock lock(core_);
    for (const auto& [card, backend_device] : core_.unreturned.CardsToLookAt()) {
      LGPU_CHECK(core_.unreturned.TakeCard(card));
      looked_at.cards.emplace(card, backend_device);
    }
  }
  for (const auto& [card, backend_device] : looked_at.cards) {
    const std::optional<CardReport> report = CardReport::Take(core_.backend, backend_device);
    BrokerLock lock(core_);
    back.merge(core_.unreturned.Back(card, report ? &*report : nullptr));
  }
  BrokerLock lock(core_);
  Give(looked_at);
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
    const Bytes exists = core_.tables.InChunks(card) + view.overhead + view.foreign;
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
    if (!chunk.reference_gone && NeedsCard(chunk)) {
      pending.put_off.push_back(id);
      continue;
    }
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
    WakeHolder(id);
    Serve(Settle({&id, 1}, {&result, 1}, missing));
  }
  MakeAgain(missing);
  for (std::size_t start = 0; start < pending.put_off.size(); start += kBatch) {
    const std::size_t count = std::min(kBatch, pending.put_off.size() - start);
    ReclaimBatch(std::span(pending.put_off).subspan(start, count), {}, /*is_retry=*/true);
  }
  BrokerLock lock(core_);
  retrying_ = false;
  return core_.tables.unconfirmed.empty();
}

}  // namespace lgpu
