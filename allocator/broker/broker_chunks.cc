#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "allocator/broker/broker.h"
#include "allocator/broker/chunk_sizes.h"
#include "base/check.h"
#include "lgpu/status.h"

namespace lgpu {

Broker::Created Broker::CreateChunks(int backend_device, const std::vector<Bytes>& sizes) {
  Created created;
  for (const Bytes bytes : sizes) {
    absl::StatusOr<MemoryHandle> memory = backend_.Create(backend_device, bytes);
    if (!memory.ok()) {
      created.status = memory.status();
      break;
    }
    created.chunks.push_back({bytes, *memory, backend_.Identity(*memory)});
  }
  return created;
}

ChunkId Broker::Register(LogicalId device, SessionId session, const MadeChunk& made) {
  const ChunkId id{++last_chunk_};
  ChunkEntry& chunk = chunks_[id];
  chunk.device = device;
  chunk.bytes = made.bytes;
  chunk.memory = made.memory;
  chunk.identity = made.identity;
  devices_.at(device).charged -= made.bytes;
  if (session) {
    GiveTo(session, id, chunk);
  } else {
    MakeItSpare(id, chunk);
  }
  return id;
}

void Broker::GiveTo(SessionId session, ChunkId id, ChunkEntry& chunk) {
  Session& owner = sessions_.at(session);
  chunk.session = session;
  chunk.state = ChunkState::kGranted;
  owner.chunks.insert(id);
  owner.held += chunk.bytes;
  devices_.at(chunk.device).held_by[session] += chunk.bytes;
  log_.NoteGranted({.chunk = id,
                    .session = session,
                    .device = chunk.device,
                    .bytes = chunk.bytes,
                    .identity = chunk.identity});
}

void Broker::TakeFromSession(ChunkId id, ChunkEntry& chunk) {
  if (!chunk.session) {
    return;
  }
  log_.NoteFreed(id);
  Session& owner = sessions_.at(chunk.session);
  owner.chunks.erase(id);
  owner.held -= chunk.bytes;
  std::map<SessionId, Bytes>& held_by = devices_.at(chunk.device).held_by;
  Bytes& held = held_by.at(chunk.session);
  held -= chunk.bytes;
  if (held.is_zero()) {
    held_by.erase(chunk.session);
  }
  chunk.session = SessionId();
}

void Broker::StartLeaving(ChunkEntry& chunk, ChunkState state) {
  ledger_.StartLeaving(chunk.device, chunk.bytes);
  chunk.state = state;
}

absl::Status Broker::MakeSpare(LogicalId logical, Bytes bytes, TimePoint deadline,
                               const std::function<void(Wakes&)>& maker, std::vector<Bytes> sizes) {
  int backend_device = 0;
  {
    MutexLock lock(mutex_);
    const CardId card = devices_.at(logical).spec.card;
    if (sizes.empty()) {
      sizes = ChunkSizesForPreallocation(cards_.at(card).device, bytes);
    }
    backend_device = cards_.at(card).backend_device;
  }
  Created created = CreateChunks(backend_device, sizes);
  while (absl::IsResourceExhausted(created.status) && now_() < deadline) {
    {
      MutexLock lock(mutex_);
      if (stopping_ || LeavingAnywhere().is_zero()) {
        break;
      }
      freed_.WaitUntil(mutex_, std::min(deadline, now_() + kBackendRetry));
    }
    Created rest = CreateChunks(
        backend_device,
        std::vector<Bytes>(sizes.begin() + static_cast<std::ptrdiff_t>(created.chunks.size()), sizes.end()));
    created.chunks.insert(created.chunks.end(), rest.chunks.begin(), rest.chunks.end());
    created.status = rest.status;
  }
  std::vector<ChunkId> undo;
  Wakes wakes;
  absl::Status result = created.status;
  {
    MutexLock lock(mutex_);
    Device& device = devices_.at(logical);
    Bytes made;
    std::vector<ChunkId> chunks;
    for (const MadeChunk& chunk : created.chunks) {
      chunks.push_back(Register(logical, SessionId(), chunk));
      made += chunk.bytes;
    }
    if (!result.ok()) {
      ledger_.Refund(logical, bytes - made);
      device.charged -= bytes - made;
      if (absl::IsResourceExhausted(result)) {
        result = RefusalStatus(MakeRefusal(device, logical,
                                           {.reason = BackendReason(created.status),
                                            .asked = bytes,
                                            .detail = std::string(created.status.message())}));
      }
      // These and no others: what was there before stays.
      for (const ChunkId id : chunks) {
        ChunkEntry& chunk = chunks_.at(id);
        TakeFromSpare(id, chunk);
        StartLeaving(chunk, ChunkState::kReturning);
        undo.push_back(id);
      }
    } else if (device.removed) {
      // While they were made; RemoveDevice did not find them.
      undo = TakeSurplus(device, device.spare_bytes);
      result = absl::FailedPreconditionError(
          absl::StrCat("lease ", device.spec.lease_name, " has ended; create another one"));
    } else {
      if (maker) {
        maker(wakes);
      }
      undo = TakeBeyondLimit(logical, device);  // it may have been lowered
    }
    const CardId card = device.spec.card;
    ForgetIfEmpty(logical);
    Serve(card, wakes);
  }
  WakeAll(wakes);
  Reclaim(undo);
  return result;
}

Broker::GrowAnswer Broker::Materialise(GrowId id, Waiter mine, const Making& making) {
  const GrowSpec spec = mine.spec;
  const Created created = CreateChunks(making.backend_device, making.sizes);
  GrowAnswer answer;
  std::vector<ChunkId> undo;
  Wakes wakes;
  {
    MutexLock lock(mutex_);
    Device& device = devices_.at(spec.device);
    Bytes made;
    answer.chunks.reserve(created.chunks.size());
    for (const MadeChunk& chunk : created.chunks) {
      answer.chunks.push_back({.id = Register(spec.device, spec.session, chunk), .bytes = chunk.bytes});
      made += chunk.bytes;
    }
    const Bytes missing = mine.charged - made;
    if (!missing.is_zero()) {
      ledger_.Refund(spec.device, missing);
      device.charged -= missing;
    }
    mine.charged = Bytes();
    if (made >= spec.at_least) {
      ++counters_.grants;
    } else {
      const bool others_leave = !LeavingAnywhere().is_zero();
      for (const Chunk& chunk : answer.chunks) {
        StartLeaving(chunks_.at(chunk.id), ChunkState::kReturning);
        undo.push_back(chunk.id);
      }
      answer.chunks.clear();
      const TimePoint now = now_();
      if (absl::IsResourceExhausted(created.status) && others_leave && now < spec.deadline) {
        mine.phase = Waiter::Phase::kBackend;
        // Not sooner, whatever wakes the session: what this attempt gives back wakes it too.
        mine.retry_at = now + kBackendRetry;
        answer.wait = id;
        answer.next_look = std::min(spec.deadline, mine.retry_at);
        Park(id, std::move(mine));
      } else {
        if (absl::IsResourceExhausted(created.status)) {
          Refuse(mine,
                 {.reason = BackendReason(created.status), .detail = std::string(created.status.message())});
          answer.status = mine.refusal;
        } else {
          answer.status = created.status;
        }
        ++counters_.refusals;
      }
    }
    // A session that has its chunks and waits no more counts for turns and deadlocks from here on.
    if (!missing.is_zero() || !queues_.at(device.spec.card).empty()) {
      Serve(device.spec.card, wakes);
    }
  }
  WakeAll(wakes);
  Reclaim(undo);
  return answer;
}

Broker::GrowAnswer Broker::Make(GrowId id, Waiter mine, const Making& making) {
  if (mine.phase == Waiter::Phase::kBallast) {
    return FreeBallast(id, std::move(mine));
  }
  return mine.phase == Waiter::Phase::kCharged ? Materialise(id, std::move(mine), making)
                                               : FillUp(id, std::move(mine));
}

Broker::GrowAnswer Broker::Logged(GrowAnswer answer) {
  if (!answer.status.ok() || answer.chunks.empty()) {
    return answer;
  }
  absl::Status committed = log_.Commit();
  if (committed.ok()) {
    return answer;
  }
  SessionId session;
  LogicalId device;
  std::vector<ChunkId> chunks;
  {
    MutexLock lock(mutex_);
    for (const Chunk& chunk : answer.chunks) {
      chunks.push_back(chunk.id);
    }
    const ChunkEntry& first = chunks_.at(chunks.front());
    session = first.session;
    device = first.device;
    --counters_.grants;
    ++counters_.refusals;
  }
  Return(session, device, chunks).IgnoreError();
  return {.status = std::move(committed), .chunks = {}, .wait = {}, .next_look = {}};
}

absl::StatusOr<MemoryHandle> Broker::MemoryOf(SessionId session, ChunkId id) const {
  MutexLock lock(mutex_);
  const auto chunk = chunks_.find(id);
  if (chunk == chunks_.end() || chunk->second.session != session ||
      chunk->second.state != ChunkState::kGranted || chunk->second.lost) {
    return absl::NotFoundError(absl::StrCat("chunk ", id.value, " is not granted to this session"));
  }
  return chunk->second.memory;
}

absl::StatusOr<ExportedFd> Broker::Export(SessionId session, ChunkId id) {
  LGPU_ASSIGN_OR_RETURN(const MemoryHandle memory, MemoryOf(session, id));
  return backend_.Export(memory);
}

}  // namespace lgpu
