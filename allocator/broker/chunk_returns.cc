#include "allocator/broker/chunk_returns.h"

#include <set>

#include "absl/strings/str_cat.h"

namespace lgpu {

absl::Status ChunkReturns::CheckReturn(SessionId session, LogicalId logical,
                                       std::span<const ChunkId> chunks) const {
  std::set<ChunkId> refused;
  if (const SessionEntry* const entry = core_.tables.FindSession(session)) {
    // The session has not heard of these: its request is still parked.
    for (const WaiterId waiting : entry->waiting) {
      for (const Chunk& chunk : core_.waiting.waiters.at(waiting).taken) refused.insert(chunk.id);
    }
  }
  for (const ChunkId id : chunks) {
    const auto found = core_.tables.chunks.find(id);
    if (found == core_.tables.chunks.end() || found->second.session != session ||
        found->second.device != logical || found->second.state != ChunkEntry::State::kGranted ||
        !refused.insert(id).second) {
      return absl::InvalidArgumentError(
          absl::StrCat("chunk ", id.value, " is not granted to this session on device ", logical.value,
                       "; none of the ", chunks.size(), " chunks was taken back"));
    }
  }
  return absl::OkStatus();
}

absl::Status ChunkReturns::Return(SessionId session, LogicalId logical, std::span<const ChunkId> chunks) {
  {
    BrokerLock lock(core_);
    if (absl::Status status = CheckReturn(session, logical, chunks); !status.ok()) return status;
    for (const ChunkId id : chunks) {
      ChunkEntry& chunk = core_.tables.chunks.at(id);
      core_.chunks.GiveBack(chunk, ChunkEntry::State::kReturning);
      if (!chunk.made_again) core_.tables.sessions.at(session).returned += chunk.bytes;
    }
    ++core_.tables.counters.returns;
  }
  reclaimer_.Reclaim({chunks.begin(), chunks.end()});
  return absl::OkStatus();
}

std::vector<ChunkId> ChunkReturns::GiveBackAll(const SessionEntry& session, ChunkEntry::State state) {
  std::vector<ChunkId> leaving;
  for (const ChunkId id : session.Chunks()) {
    ChunkEntry& chunk = core_.tables.chunks.at(id);
    if (chunk.state != ChunkEntry::State::kGranted) continue;
    core_.chunks.GiveBack(chunk, state);
    leaving.push_back(id);
  }
  return leaving;
}

void ChunkReturns::ReturnAll(SessionId id) {
  std::vector<ChunkId> leaving;
  {
    BrokerLock lock(core_);
    const SessionEntry* const session = core_.tables.FindSession(id);
    if (session == nullptr) return;
    core_.requests.Drop(id);
    core_.trims.Stop(id);
    leaving = GiveBackAll(*session, ChunkEntry::State::kReturning);
    for (const auto& [card, charge] : session->charges) {
      if (!charge.leaving && core_.charges.Lower(id, card, Bytes())) core_.scheduler.Serve(card);
    }
  }
  reclaimer_.Reclaim(leaving);
}

void ChunkReturns::StartDraining(SessionId id) {
  BrokerLock lock(core_);
  SessionEntry* const session = core_.tables.FindSession(id);
  if (session == nullptr) return;
  core_.requests.Drop(id);
  core_.trims.Stop(id);
  std::set<CardId> touched = core_.charges.StartLeaving(*session);
  for (const ChunkId chunk : GiveBackAll(*session, ChunkEntry::State::kDraining)) {
    touched.insert(core_.tables.CardOf(core_.tables.chunks.at(chunk)));
  }
  // Requests may wait for what is on its way back now.
  for (const CardId card : touched) core_.scheduler.Serve(card);
}

std::vector<SessionId> ChunkReturns::FinishDraining(const std::vector<SessionId>& sessions) {
  std::vector<ChunkId> leaving;
  {
    BrokerLock lock(core_);
    for (const SessionId id : sessions) {
      const SessionEntry* const session = core_.tables.FindSession(id);
      if (session == nullptr) continue;
      for (const ChunkId chunk_id : session->Chunks()) {
        ChunkEntry& chunk = core_.tables.chunks.at(chunk_id);
        if (chunk.state != ChunkEntry::State::kDraining) continue;
        // From here on RetryUnconfirmed asks about the chunk, should the backend not confirm it.
        chunk.state = ChunkEntry::State::kReturning;
        leaving.push_back(chunk_id);
      }
    }
  }
  reclaimer_.Reclaim(leaving);
  std::vector<SessionId> empty;
  BrokerLock lock(core_);
  for (const SessionId id : sessions) {
    const SessionEntry* const session = core_.tables.FindSession(id);
    if (session == nullptr || session->held.is_zero()) empty.push_back(id);
  }
  return empty;
}

}  // namespace lgpu
