#ifndef LGPU_ALLOCATOR_BROKER_CHUNK_RETURNS_H_
#define LGPU_ALLOCATOR_BROKER_CHUNK_RETURNS_H_

#include <span>
#include <vector>

#include "allocator/broker/broker_core.h"
#include "allocator/broker/chunk_reclaimer.h"

namespace lgpu {

/// ChunkReturns takes memory back from sessions: what they return, and what they hold when they end.
///
/// Thread-safe: it takes the broker's lock. The core and `reclaimer` outlive it.
class ChunkReturns {
 public:
  ChunkReturns(BrokerCore& core, ChunkReclaimer& reclaimer) : core_(core), reclaimer_(reclaimer) {}

  // As the calls of Broker.
  absl::Status Return(SessionId session, LogicalId device, std::span<const ChunkId> chunks);
  void ReturnAll(SessionId session);
  void StartDraining(SessionId session);
  std::vector<SessionId> FinishDraining(const std::vector<SessionId>& sessions);

 private:
  absl::Status CheckReturn(SessionId session, LogicalId device, std::span<const ChunkId> chunks) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(core_.mutex);
  /// The granted chunks of a session are leaving from here on.
  std::vector<ChunkId> GiveBackAll(const SessionEntry& session, ChunkEntry::State state)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(core_.mutex);

  BrokerCore& core_;
  ChunkReclaimer& reclaimer_;
};

}  // namespace lgpu

#endif  // LGPU_ALLOCATOR_BROKER_CHUNK_RETURNS_H_
