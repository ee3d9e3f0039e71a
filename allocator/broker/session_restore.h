#ifndef LGPU_ALLOCATOR_BROKER_SESSION_RESTORE_H_
#define LGPU_ALLOCATOR_BROKER_SESSION_RESTORE_H_

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "allocator/broker/broker.h"
#include "base/unique_fd.h"

namespace lgpu {

struct BrokerCore;
class ChunkReclaimer;

/// SessionRestore takes over memory that an earlier broker granted: devices and sessions from the log, and
/// then what each session attests when its process is connected again.
///
/// Thread-safe: it takes the broker's lock, and calls the backend without it. The core and `reclaimer`
/// outlive it.
class SessionRestore {
 public:
  // The grants of an earlier broker, as its log has them. This process has no reference to their memory; the
  // session that holds a chunk brings a descriptor, or the memory is known by its identity only.
  struct RestoredChunk {
    ChunkId id;
    LogicalId device;
    Bytes bytes;
    std::uint64_t identity = 0;
  };
  struct RestoredCharge {
    LogicalId device;
    Bytes bytes;
  };

  SessionRestore(BrokerCore& core, ChunkReclaimer& reclaimer) : core_(core), reclaimer_(reclaimer) {}

  // Before any other call of the broker.
  /// Errors as the ledger's RestoreLogical.
  absl::Status AddDevice(LogicalId device, const Broker::DeviceSpec& spec);
  /// Charges all chunks, also beyond the limits. INVALID_ARGUMENT for a device that is not there; then
  /// nothing is restored.
  absl::Status AddSession(SessionId session, std::int64_t pid, std::shared_ptr<Waker> waker, LeaseKey lease,
                          std::span<const RestoredChunk> chunks,
                          std::span<const RestoredCharge> charges = {});
  /// Charges what processes take beside chunks. After the last session is restored.
  void ChargeOverhead();
  /// Ids up to these are never given out.
  void SkipIds(LogicalId device, ChunkId chunk);

  /// The identities of all chunks of a card that are known.
  std::vector<std::uint64_t> Identities(CardId card) const;

  /// The process of a restored session is connected again.
  void StartAttesting(SessionId session, Broker::SessionSpec spec);
  /// The session says that it holds this chunk. `fd`: of the memory, where memory is known by descriptors; it
  /// is never mapped. INVALID_ARGUMENT if the log does not say the same.
  absl::Status Attest(SessionId session, LogicalId device, const Chunk& claimed, UniqueFd fd);
  /// The session says how much it has charged of a card. INVALID_ARGUMENT if that is more than the log says.
  absl::Status AttestCharge(SessionId session, const std::string& card_uuid, Bytes bytes);
  /// Chunks that the session did not attest start leaving; charges that it did not attest are over.
  void FinishAttesting(SessionId session);
  /// The session's connection is gone again. The memory that it holds stays charged.
  void GoAbsent(SessionId session);

 private:
  BrokerCore& core_;
  ChunkReclaimer& reclaimer_;
};

}  // namespace lgpu

#endif  // LGPU_ALLOCATOR_BROKER_SESSION_RESTORE_H_
