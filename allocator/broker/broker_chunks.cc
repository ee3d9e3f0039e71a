#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "allocator/broker/broker_impl.h"
#include "allocator/broker/chunk_sizes.h"
#include "base/check.h"
#include "lgpu/status.h"

namespace lgpu {

BrokerImpl::Created BrokerImpl::CreateChunks(int backend_device, const std::vector<Bytes>& sizes) {
  Created created;
  for (const Bytes bytes : sizes) {
    absl::StatusOr<MemoryHandle> memory = core_.backend.Create(backend_device, bytes);
    if (!memory.ok()) {
      created.status = memory.status();
      break;
    }
    created.chunks.push_back({bytes, *memory, core_.backend.Identity(*memory)});
  }
  return created;
}

ChunkId BrokerImpl::Register(LogicalId device, SessionId session, const MadeChunk& made) {
  const ChunkId id{++core_.tables.last_chunk};
  ChunkEntry& chunk = core_.tables.chunks[id];
  chunk.device = device;
  chunk.bytes = made.bytes;
  chunk.memory = made.memory;
  chunk.identity = made.identity;
  core_.tables.devices.at(device).charged -= made.bytes;
  if (session) {
    GiveTo(session, id, chunk);
  } else {
    MakeItSpare(id, chunk);
  }
  return id;
}

void BrokerImpl::GiveTo(SessionId session, ChunkId id, ChunkEntry& chunk) {
  SessionEntry& owner = core_.tables.sessions.at(session);
  chunk.session = session;
  chunk.state = ChunkEntry::State::kGranted;
  owner.chunks.insert(id);
  owner.held += chunk.bytes;
  core_.tables.devices.at(chunk.device).held_by[session] += chunk.bytes;
  core_.log.NoteGranted({.chunk = id,
                         .session = session,
                         .device = chunk.device,
                         .bytes = chunk.bytes,
                         .identity = chunk.identity});
}

void BrokerImpl::TakeFromSession(ChunkId id, ChunkEntry& chunk) {
  if (!chunk.session) {
    return;
  }
  core_.log.NoteFreed(id);
  SessionEntry& owner = core_.tables.sessions.at(chunk.session);
  owner.chunks.erase(id);
  owner.held -= chunk.bytes;
  std::map<SessionId, Bytes>& held_by = core_.tables.devices.at(chunk.device).held_by;
  Bytes& held = held_by.at(chunk.session);
  held -= chunk.bytes;
  if (held.is_zero()) {
    held_by.erase(chunk.session);
  }
  chunk.session = SessionId();
}

void BrokerImpl::StartLeaving(ChunkEntry& chunk, ChunkEntry::State state) {
  core_.tables.ledger.StartLeaving(chunk.device, chunk.bytes);
  chunk.state = state;
}

absl::Status BrokerImpl::MakeSpare(LogicalId logical, Bytes bytes, TimePoint deadline,
                                   std::vector<Bytes> sizes, const Ledger::LogicalView* before) {
  int backend_device = 0;
  {
    BrokerLock lock(core_);
    const CardId card = core_.tables.devices.at(logical).spec.card;
    if (sizes.empty()) {
      sizes = ChunkSizesForPreallocation(core_.tables.cards.at(card).device, bytes);
    }
    backend_device = core_.tables.cards.at(card).backend_device;
  }
  Created created = CreateChunks(backend_device, sizes);
  while (absl::IsResourceExhausted(created.status) && core_.now() < deadline) {
    {
      BrokerLock lock(core_);
      if (core_.tables.stopping || LeavingAnywhere().is_zero()) {
        break;
      }
      core_.tables.freed.WaitUntil(core_.mutex, std::min(deadline, core_.now() + kBackendRetry));
    }
    Created rest = CreateChunks(
        backend_device,
        std::vector<Bytes>(sizes.begin() + static_cast<std::ptrdiff_t>(created.chunks.size()), sizes.end()));
    created.chunks.insert(created.chunks.end(), rest.chunks.begin(), rest.chunks.end());
    created.status = rest.status;
  }
  std::vector<ChunkId> undo;
  absl::Status result = created.status;
  {
    BrokerLock lock(core_);
    DeviceEntry& device = core_.tables.devices.at(logical);
    Bytes made;
    std::vector<ChunkId> chunks;
    for (const MadeChunk& chunk : created.chunks) {
      chunks.push_back(Register(logical, SessionId(), chunk));
      made += chunk.bytes;
    }
    if (!result.ok()) {
      core_.tables.ledger.Refund(logical, bytes - made);
      device.charged -= bytes - made;
      if (absl::IsResourceExhausted(result)) {
        result = RefusalStatus(MakeRefusal(device, logical,
                                           {.reason = BackendReason(created.status),
                                            .asked = bytes,
                                            .detail = std::string(created.status.message())}));
      }
      // These and no others: what was there before stays.
      for (const ChunkId id : chunks) {
        ChunkEntry& chunk = core_.tables.chunks.at(id);
        TakeFromSpare(id, chunk);
        StartLeaving(chunk, ChunkEntry::State::kReturning);
        undo.push_back(id);
      }
      if (before != nullptr) {
        // Before waiting requests are looked at: none is to be served from the limit that does not stay.
        core_.tables.ledger
            .Resize(logical,
                    {.limit = before->limit, .guarantee = std::min(before->guarantee, before->limit)})
            .IgnoreError();
      }
    } else if (device.removed) {
      // While they were made; RemoveDevice did not find them.
      undo = TakeExcessSpare(logical, device);
      result = absl::FailedPreconditionError(
          absl::StrCat("lease ", device.spec.lease_name, " has ended; create another one"));
    } else {
      undo = TakeExcessSpare(logical, device);  // it may have been lowered
    }
    const CardId card = device.spec.card;
    ForgetIfEmpty(logical);
    Serve(card);
  }
  Reclaim(undo);
  return result;
}

BrokerImpl::GrowAnswer BrokerImpl::Materialise(GrowId id, Waiter mine, const Making& making) {
  const GrowSpec spec = mine.spec;
  const Created created = CreateChunks(making.backend_device, making.sizes);
  GrowAnswer answer;
  std::vector<ChunkId> undo;
  {
    BrokerLock lock(core_);
    DeviceEntry& device = core_.tables.devices.at(spec.device);
    Bytes made, got;
    for (const MadeChunk& chunk : created.chunks) {
      mine.taken.push_back({.id = Register(spec.device, spec.session, chunk), .bytes = chunk.bytes});
      made += chunk.bytes;
    }
    for (const Chunk& chunk : mine.taken) got += chunk.bytes;
    const Bytes missing = mine.charged - made;
    if (!missing.is_zero()) {
      core_.tables.ledger.Refund(spec.device, missing);
      device.charged -= missing;
    }
    mine.charged = Bytes();
    if (got >= spec.at_least) {
      ++core_.tables.counters.grants;
      answer.chunks = std::move(mine.taken);
    } else {
      const bool others_leave = !LeavingAnywhere().is_zero();
      undo = UndoGrant(mine);
      mine.taken.clear();
      const TimePoint now = core_.now();
      if (absl::IsResourceExhausted(created.status) && others_leave && now < spec.deadline) {
        mine.phase = Waiter::Phase::kBackend;
        // Not sooner, whatever wakes the session: what this attempt gives back
        // wakes it too.
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
        ++core_.tables.counters.refusals;
      }
    }
    // A session that has its chunks and waits no more counts for turns and
    // deadlocks from here on. Requests that wait under a preallocated device's
    // limit counted on what was charged.
    const bool may_wait = device.spec.preallocate && !device.limit_waiters.empty();
    if (!missing.is_zero() || may_wait || !core_.tables.queues.at(device.spec.card).empty()) {
      Serve(device.spec.card);
    }
  }
  Reclaim(undo);
  return answer;
}

BrokerImpl::GrowAnswer BrokerImpl::Make(GrowId id, Waiter mine, const Making& making) {
  if (mine.phase == Waiter::Phase::kBallast) {
    return FreeBallast(id, std::move(mine));
  }
  return Materialise(id, std::move(mine), making);
}

BrokerImpl::GrowAnswer BrokerImpl::Logged(GrowAnswer answer) {
  if (!answer.status.ok() || answer.chunks.empty()) {
    return answer;
  }
  absl::Status committed = core_.log.Commit();
  if (committed.ok()) {
    return answer;
  }
  SessionId session;
  LogicalId device;
  std::vector<ChunkId> chunks;
  {
    BrokerLock lock(core_);
    for (const Chunk& chunk : answer.chunks) {
      chunks.push_back(chunk.id);
    }
    const ChunkEntry& first = core_.tables.chunks.at(chunks.front());
    session = first.session;
    device = first.device;
    --core_.tables.counters.grants;
    ++core_.tables.counters.refusals;
  }
  Return(session, device, chunks).IgnoreError();
  return {.status = std::move(committed), .chunks = {}, .wait = {}, .next_look = {}};
}

absl::StatusOr<MemoryHandle> BrokerImpl::MemoryOf(SessionId session, ChunkId id) const {
  MutexLock lock(core_.mutex);
  const auto chunk = core_.tables.chunks.find(id);
  if (chunk == core_.tables.chunks.end() || chunk->second.session != session ||
      chunk->second.state != ChunkEntry::State::kGranted || chunk->second.lost) {
    return absl::NotFoundError(absl::StrCat("chunk ", id.value, " is not granted to this session"));
  }
  return chunk->second.memory;
}

absl::StatusOr<ExportedFd> BrokerImpl::Export(SessionId session, ChunkId id) {
  LGPU_ASSIGN_OR_RETURN(const MemoryHandle memory, MemoryOf(session, id));
  return core_.backend.Export(memory);
}

}  // namespace lgpu
