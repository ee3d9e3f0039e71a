#include "allocator/broker/unreturned_memory.h"

#include <algorithm>
#include <tuple>

#include "allocator/broker/card_observer.h"

namespace lgpu {
namespace {

// How long the driver may take to free memory that no process uses any more.
constexpr std::chrono::seconds kUnreturnedGrace{2};
// How often a card is asked that still lacks memory afterwards; asking takes the driver's locks.
constexpr std::chrono::seconds kLateRetry{1};

}  // namespace

bool UnreturnedMemory::IsComing(ChunkId id) const {
  const ChunkEntry& chunk = tables_.chunks.at(id);
  return chunk.reference_gone && !chunk.lost;
}

UnreturnedMemory::Sums UnreturnedMemory::SumsOf(CardId card) const {
  Sums sums;
  for (const ChunkId id : tables_.unconfirmed) {
    const ChunkEntry& chunk = tables_.chunks.at(id);
    if (!IsComing(id) || tables_.CardOf(chunk) != card) continue;
    sums.coming += chunk.bytes;
    if (const SessionEntry* session = tables_.FindSession(chunk.session)) sums.suspects.insert(session->pid);
  }
  sums.chunks = SaturatingSub(tables_.InChunks(card), sums.coming);
  return sums;
}

bool UnreturnedMemory::IsReal(const ChunkEntry& chunk) const {
  return !chunk.lost && !tables_.cards.at(tables_.CardOf(chunk)).device.simulated;
}

bool UnreturnedMemory::TakeCard(CardId card) {
  const bool is_free = taken_.insert(card).second;
  if (!is_free) put_off_.insert(card);
  return is_free;
}

bool UnreturnedMemory::GiveCard(CardId card) {
  taken_.erase(card);
  return put_off_.contains(card);
}

void UnreturnedMemory::StartRelease(std::span<const ChunkId> chunks,
                                    const std::map<CardId, CardReport>& reports) {
  for (const auto& [card, report] : reports) {
    // While something else is coming back its watch goes on: only at its start everything was there.
    const Sums sums = SumsOf(card);
    if (!sums.coming.is_zero()) continue;
    Bytes leaving;
    for (const ChunkId id : chunks) {
      const ChunkEntry& chunk = tables_.chunks.at(id);
      if (!chunk.lost && tables_.CardOf(chunk) == card) leaving += chunk.bytes;
    }
    watches_.erase(card);
    watches_.emplace(card, CardWatch(report, SaturatingSub(sums.chunks, leaving), leaving));
  }
}

void UnreturnedMemory::Doubt(CardId card, const CardReport& before, const CardReport& after,
                             std::span<const ChunkId> chunks, std::vector<absl::Status>& results) {
  std::vector<std::size_t> released;
  Bytes amount, never_granted;
  for (std::size_t i = 0; i < chunks.size(); ++i) {
    const ChunkEntry& chunk = tables_.chunks.at(chunks[i]);
    if (!results[i].ok() || tables_.CardOf(chunk) != card) continue;
    amount += chunk.bytes;
    if (chunk.session) {
      released.push_back(i);
    } else {
      never_granted += chunk.bytes;
    }
  }
  // Less than half a granule is no chunk.
  Bytes risen =
      SaturatingSub(CardWatch::Risen(before, after, amount), never_granted) + tables_.GranuleOf(card) / 2;
  for (const std::size_t i : released) {
    const Bytes bytes = tables_.chunks.at(chunks[i]).bytes;
    if (bytes <= risen) {
      risen -= bytes;
    } else {
      results[i] = absl::UnavailableError("the card does not have it back yet");
    }
  }
}

std::vector<std::pair<CardId, int>> UnreturnedMemory::CardsToLookAt() {
  std::vector<std::pair<CardId, int>> found;
  for (auto watch = watches_.begin(); watch != watches_.end();) {
    const CardId card = watch->first;
    if (IsTaken(card)) {
      ++watch;  // the thread that has the card may have begun this watch
      continue;
    }
    if (SumsOf(card).coming.is_zero()) {
      late_looks_.erase(card);
      watch = watches_.erase(watch);
      continue;
    }
    const auto late = late_looks_.find(card);
    if (late == late_looks_.end() || late->second <= tables_.now()) {
      found.emplace_back(card, tables_.cards.at(card).backend_device);
    }
    ++watch;
  }
  return found;
}

std::set<ChunkId> UnreturnedMemory::Back(CardId card, const CardReport* report) {
  std::set<ChunkId> back;
  const auto watch = watches_.find(card);
  if (watch == watches_.end()) return back;
  const Sums sums = SumsOf(card);
  Bytes room = report != nullptr ? watch->second.Back(*report, sums.chunks, sums.coming, sums.suspects) +
                                       tables_.GranuleOf(card) / 2
                                 : sums.coming;
  // The latest returns are believed first, sessions that were found to keep memory last.
  std::vector<std::tuple<bool, Broker::TimePoint::duration, ChunkId>> coming;
  for (const ChunkId id : tables_.unconfirmed) {
    const ChunkEntry& chunk = tables_.chunks.at(id);
    if (IsComing(id) && tables_.CardOf(chunk) == card) {
      coming.emplace_back(chunk.unreturned, -chunk.dropped_at.time_since_epoch(), id);
    }
  }
  std::sort(coming.begin(), coming.end());
  bool late = false;
  for (const auto& [known, since, id] : coming) {
    ChunkEntry& chunk = tables_.chunks.at(id);
    if (chunk.bytes <= room) {
      room -= chunk.bytes;
      back.insert(id);
    } else if (tables_.now() - chunk.dropped_at > kUnreturnedGrace) {
      late = true;
      CountUnreturned(chunk);
    }
  }
  late_looks_.erase(card);
  if (late) late_looks_[card] = tables_.now() + kLateRetry;
  return back;
}

void UnreturnedMemory::CountUnreturned(ChunkEntry& chunk) {
  SessionEntry* const session = tables_.FindSession(chunk.session);
  if (chunk.unreturned || session == nullptr) return;
  chunk.unreturned = true;
  session->unreturned += chunk.bytes;
  unreturned_[chunk.session] = {.session = chunk.session, .bytes = session->unreturned};
}

std::vector<CardObserver::Unreturned> UnreturnedMemory::TakeUnreturned() {
  std::vector<CardObserver::Unreturned> reports;
  for (const auto& [session, report] : std::exchange(unreturned_, {})) reports.push_back(report);
  return reports;
}

}  // namespace lgpu
