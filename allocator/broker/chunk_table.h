#ifndef LGPU_ALLOCATOR_BROKER_CHUNK_TABLE_H_
#define LGPU_ALLOCATOR_BROKER_CHUNK_TABLE_H_

#include <map>
#include <optional>
#include <vector>

#include "allocator/broker/broker_tables.h"
#include "allocator/broker/made_chunk.h"
#include "allocator/broker/session_restore.h"

namespace lgpu {

/// A ChunkTable moves chunks between their states, with the ledger, the sessions and the log in step:
///
///   made -> granted or spare;  spare <-> granted;  granted or spare -> leaving -> settled (gone)
///
/// Not thread-safe: the broker's lock guards it. The tables outlive it.
class ChunkTable {
 public:
  explicit ChunkTable(BrokerTables& tables) : tables_(tables) {}

  /// A chunk exists for bytes that were booked; no session: it is spare.
  ChunkId Register(LogicalId device, SessionId session, const MadeChunk& made);
  /// A chunk that an earlier broker granted; there is no reference to its memory here.
  void Restore(SessionId session, const SessionRestore::RestoredChunk& restored);
  /// Booked bytes for which no chunk was made are free again.
  void Unbook(LogicalId device, Bytes bytes);
  /// Books all that a preallocated device lacks, and returns it; zero where the ledger cannot give it.
  Bytes BookLack(LogicalId device);
  /// As above, but for what comes back and is made again. None: memory of the device that is still leaving
  /// stands in the way.
  std::optional<Bytes> BookMissing(LogicalId device);

  // Spare chunks of preallocated devices.
  /// What sessions may still be granted of the device's limit.
  Bytes RoomOf(LogicalId device) const;
  /// Spare chunks of at least `at_least`, and of `wanted` as far as they and RoomOf go. None: they are not
  /// enough, or too large for the room.
  std::vector<ChunkId> PickSpare(LogicalId device, Bytes at_least, Bytes wanted) const;
  /// The session has these spare chunks from here on.
  std::vector<Chunk> Grant(SessionId session, const std::vector<ChunkId>& spare);

  // Leaving.
  void StartLeaving(ChunkEntry& chunk, ChunkEntry::State state);
  /// A session gives the chunk back: a preallocated device gets a new one in its place.
  void GiveBack(ChunkEntry& chunk, ChunkEntry::State state);
  /// These spare chunks are leaving from here on.
  void StartLeaving(const std::vector<ChunkId>& spare);
  /// Spare chunks that the device may not keep; they are leaving from here on. Of a device that is removed
  /// these are all, otherwise those beyond its limit. A chunk that is partly beyond the limit is one of them:
  /// what the limit has room for is made again in its place.
  std::vector<ChunkId> TakeExcessSpare(LogicalId device);
  /// Spare chunks of these devices that make room for `bytes`; they are leaving from here on. None if there
  /// are not enough.
  std::vector<ChunkId> TakeBallast(const std::vector<LogicalId>& devices, Bytes bytes);

  /// Sizes of chunks that preallocated devices are to have again; they are booked already.
  using Missing = std::map<LogicalId, std::vector<Bytes>>;
  /// The backend's answer about a leaving chunk. The chunk is gone, or unconfirmed.
  void Settle(ChunkId id, const absl::Status& result, Missing& missing);

 private:
  void Hold(SessionId session, ChunkId id, ChunkEntry& chunk);
  void GiveTo(SessionId session, ChunkId id, ChunkEntry& chunk);
  void TakeFromSession(ChunkId id, ChunkEntry& chunk);
  void AddSpare(ChunkId id, ChunkEntry& chunk);
  void RemoveSpare(ChunkId id, const ChunkEntry& chunk);
  void BookAgain(LogicalId device, Bytes bytes, Missing& missing);

  BrokerTables& tables_;
};

}  // namespace lgpu

#endif  // LGPU_ALLOCATOR_BROKER_CHUNK_TABLE_H_
