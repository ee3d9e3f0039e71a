#include "allocator/broker/chunk_table.h"

#include <algorithm>
#include <iterator>

#include "allocator/broker/session_restore.h"

namespace lgpu {

ChunkId ChunkTable::Register(LogicalId device, SessionId session, const MadeChunk& made) {
  const ChunkId id{++tables_.last_chunk};
  ChunkEntry& chunk = tables_.chunks[id];
  chunk.device = device;
  chunk.bytes = made.bytes;
  chunk.memory = made.memory;
  chunk.identity = made.identity;
  tables_.devices.at(device).booked -= made.bytes;
  if (session) {
    GiveTo(session, id, chunk);
  } else {
    AddSpare(id, chunk);
  }
  return id;
}

void ChunkTable::Restore(SessionId session, const SessionRestore::RestoredChunk& restored) {
  ChunkEntry& chunk = tables_.chunks[restored.id];
  chunk.device = restored.device;
  chunk.bytes = restored.bytes;
  chunk.identity = restored.identity;
  chunk.lost = true;
  Hold(session, restored.id, chunk);
  tables_.ledger.Adopt(restored.device, restored.bytes);
  tables_.last_chunk = std::max(tables_.last_chunk, restored.id.value);
}

void ChunkTable::Unbook(LogicalId device, Bytes bytes) {
  if (bytes.is_zero()) return;
  tables_.ledger.Refund(device, bytes);
  tables_.devices.at(device).booked -= bytes;
}

Bytes ChunkTable::BookLack(LogicalId device) {
  const Bytes lack = tables_.LackOf(device);
  if (lack.is_zero() || tables_.ledger.Request(device, lack).shortage != Ledger::Shortage::kNone) {
    return Bytes();
  }
  tables_.devices.at(device).booked += lack;
  return lack;
}

std::optional<Bytes> ChunkTable::BookMissing(LogicalId logical) {
  DeviceEntry& device = tables_.devices.at(logical);
  const Bytes missing =
      SaturatingSub(tables_.LimitOf(logical), tables_.ledger.View(logical).granted + device.coming_again);
  if (missing.is_zero()) return missing;
  if (tables_.ledger.Request(logical, missing).shortage != Ledger::Shortage::kNone) return std::nullopt;
  device.booked += missing;
  return missing;
}

void ChunkTable::Hold(SessionId session, ChunkId id, ChunkEntry& chunk) {
  SessionEntry& owner = tables_.sessions.at(session);
  chunk.session = session;
  chunk.state = ChunkEntry::State::kGranted;
  owner.chunks.insert(id);
  owner.held += chunk.bytes;
  tables_.devices.at(chunk.device).held_by[session] += chunk.bytes;
}

void ChunkTable::GiveTo(SessionId session, ChunkId id, ChunkEntry& chunk) {
  Hold(session, id, chunk);
  tables_.log.NoteGranted({.chunk = id,
                           .session = session,
                           .device = chunk.device,
                           .bytes = chunk.bytes,
                           .identity = chunk.identity});
}

void ChunkTable::TakeFromSession(ChunkId id, ChunkEntry& chunk) {
  if (!chunk.session) return;
  tables_.log.NoteFreed(id);
  SessionEntry& owner = tables_.sessions.at(chunk.session);
  owner.chunks.erase(id);
  owner.held -= chunk.bytes;
  if (chunk.unreturned) owner.unreturned -= chunk.bytes;
  DeviceEntry& device = tables_.devices.at(chunk.device);
  for (std::map<SessionId, Bytes>* const sums : {&device.held_by, &device.leaving_by}) {
    Bytes& sum = sums->at(chunk.session);
    sum -= chunk.bytes;
    if (sum.is_zero()) sums->erase(chunk.session);
  }
  chunk.session = SessionId();
}

void ChunkTable::AddSpare(ChunkId id, ChunkEntry& chunk) {
  DeviceEntry& device = tables_.devices.at(chunk.device);
  chunk.state = ChunkEntry::State::kSpare;
  device.spare[chunk.bytes].insert(id);
  device.spare_bytes += chunk.bytes;
}

void ChunkTable::RemoveSpare(ChunkId id, const ChunkEntry& chunk) {
  DeviceEntry& device = tables_.devices.at(chunk.device);
  const auto of_its_size = device.spare.find(chunk.bytes);
  of_its_size->second.erase(id);
  if (of_its_size->second.empty()) device.spare.erase(of_its_size);
  device.spare_bytes -= chunk.bytes;
}

Bytes ChunkTable::RoomOf(LogicalId logical) const {
  const Bytes used = tables_.ledger.View(logical).held() - tables_.devices.at(logical).spare_bytes;
  return SaturatingSub(tables_.LimitOf(logical), used);
}

std::vector<ChunkId> ChunkTable::PickSpare(LogicalId logical, Bytes at_least, Bytes wanted) const {
  const DeviceEntry& device = tables_.devices.at(logical);
  const Bytes room = RoomOf(logical);
  const Bytes available = std::min(device.spare_bytes, room);
  if (available < at_least) return {};
  const Bytes target = std::max(at_least, std::min(wanted, available));
  // Large ones as long as they fit, small ones for the rest, so that small ones stay for small requests.
  std::vector<ChunkId> picked;
  std::map<Bytes, std::size_t> passed_over;
  Bytes sum;
  for (const auto& [bytes, chunks] : device.spare) {
    auto chunk = chunks.begin();
    for (; chunk != chunks.end() && sum + bytes <= target; ++chunk) {
      picked.push_back(*chunk);
      sum += bytes;
    }
    passed_over[bytes] = static_cast<std::size_t>(std::distance(chunk, chunks.end()));
  }
  // No small ones left: the smallest large one that the limit has room for.
  for (const auto& [bytes, count] : passed_over) {
    auto chunk = device.spare.at(bytes).rbegin();
    for (std::size_t i = 0; i < count && sum < at_least && sum + bytes <= room; ++i, ++chunk) {
      picked.push_back(*chunk);
      sum += bytes;
    }
  }
  return sum < at_least ? std::vector<ChunkId>() : picked;
}

std::vector<Chunk> ChunkTable::Grant(SessionId session, const std::vector<ChunkId>& spare) {
  std::vector<Chunk> granted;
  granted.reserve(spare.size());
  for (const ChunkId id : spare) {
    ChunkEntry& chunk = tables_.chunks.at(id);
    RemoveSpare(id, chunk);
    GiveTo(session, id, chunk);
    granted.push_back({.id = id, .bytes = chunk.bytes});
  }
  return granted;
}

void ChunkTable::StartLeaving(ChunkEntry& chunk, ChunkEntry::State state) {
  tables_.ledger.StartLeaving(chunk.device, chunk.bytes);
  chunk.state = state;
  if (chunk.session) tables_.devices.at(chunk.device).leaving_by[chunk.session] += chunk.bytes;
}

void ChunkTable::GiveBack(ChunkEntry& chunk, ChunkEntry::State state) {
  StartLeaving(chunk, state);
  DeviceEntry& device = tables_.devices.at(chunk.device);
  chunk.made_again = device.spec.preallocate;
  device.coming_again += chunk.made_again ? chunk.bytes : Bytes();
}

void ChunkTable::StartLeaving(const std::vector<ChunkId>& spare) {
  for (const ChunkId id : spare) {
    ChunkEntry& chunk = tables_.chunks.at(id);
    RemoveSpare(id, chunk);
    StartLeaving(chunk, ChunkEntry::State::kReturning);
  }
}

std::vector<ChunkId> ChunkTable::TakeExcessSpare(LogicalId logical) {
  DeviceEntry& device = tables_.devices.at(logical);
  // Booked chunks do not exist yet and may never do. The thread that makes them looks again.
  Bytes excess = device.removed ? device.spare_bytes
                                : SaturatingSub(tables_.ledger.View(logical).granted - device.booked,
                                                tables_.LimitOf(logical));
  std::vector<ChunkId> taken;
  for (const auto& [bytes, chunks] : device.spare) {
    for (auto chunk = chunks.begin(); chunk != chunks.end() && bytes <= excess; ++chunk) {
      excess -= bytes;
      taken.push_back(*chunk);
    }
  }
  StartLeaving(taken);
  if (!excess.is_zero() && !device.spare.empty()) {
    const ChunkId id = *device.spare.rbegin()->second.begin();
    ChunkEntry& chunk = tables_.chunks.at(id);
    RemoveSpare(id, chunk);
    GiveBack(chunk, ChunkEntry::State::kReturning);
    taken.push_back(id);
  }
  return taken;
}

std::vector<ChunkId> ChunkTable::TakeBallast(const std::vector<LogicalId>& devices, Bytes bytes) {
  // Small ones first, so that little more goes than is needed.
  std::vector<ChunkId> taken;
  Bytes sum;
  for (const LogicalId logical : devices) {
    const auto& by_size = tables_.devices.at(logical).spare;
    for (auto size = by_size.rbegin(); size != by_size.rend(); ++size) {
      for (auto chunk = size->second.begin(); chunk != size->second.end() && sum < bytes; ++chunk) {
        taken.push_back(*chunk);
        sum += size->first;
      }
    }
  }
  if (sum < bytes) return {};
  StartLeaving(taken);
  return taken;
}

void ChunkTable::Settle(ChunkId id, const absl::Status& result, Missing& missing) {
  ChunkEntry& chunk = tables_.chunks.at(id);
  // NOT_FOUND: an earlier call, which said something else, did free it.
  if (!result.ok() && !absl::IsNotFound(result)) {
    if (!chunk.reference_gone && absl::IsUnavailable(result)) {
      chunk.reference_gone = true;
      chunk.dropped_at = tables_.now();
    }
    tables_.NoteUnconfirmed(id);
    return;
  }
  TakeFromSession(id, chunk);
  const LogicalId device = chunk.device;
  tables_.ledger.ConfirmFree(device, chunk.bytes);
  if (chunk.made_again) BookAgain(device, chunk.bytes, missing);
  tables_.unconfirmed.erase(id);
  tables_.chunks.erase(id);
  tables_.ForgetIfEmpty(device);
}

// Not beyond a limit that was lowered. Inside the limit the memory is guaranteed.
void ChunkTable::BookAgain(LogicalId logical, Bytes bytes, Missing& missing) {
  DeviceEntry& device = tables_.devices.at(logical);
  device.coming_again -= bytes;
  const Bytes room = std::min(bytes, tables_.LackOf(logical));
  if (device.removed || room.is_zero() ||
      tables_.ledger.Request(logical, room).shortage != Ledger::Shortage::kNone) {
    return;
  }
  device.booked += room;
  std::vector<Bytes>& sizes = missing[logical];
  if (room == bytes) {
    sizes.push_back(bytes);
  } else {
    const Bytes granule = tables_.GranuleOf(device.spec.card);
    sizes.insert(sizes.end(), room / granule, granule);
  }
}

}  // namespace lgpu
