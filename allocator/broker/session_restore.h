#ifndef LGPU_ALLOCATOR_BROKER_SESSION_RESTORE_H_
#define LGPU_ALLOCATOR_BROKER_SESSION_RESTORE_H_

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "allocator/broker/broker_core.h"
#include "allocator/broker/chunk_reclaimer.h"

namespace lgpu {

/// SessionRestore takes over memory that an earlier broker granted: devices and sessions from the log, and
/// then what each session attests when its process is connected again.
///
/// Thread-safe: it takes the broker's lock, and calls the backend without it. The core and `reclaimer`
/// outlive it.
class SessionRestore {
 public:
  SessionRestore(BrokerCore& core, ChunkReclaimer& reclaimer) : core_(core), reclaimer_(reclaimer) {}

  // As RestoreDevice, RestoreSession, ChargeRestoredOverhead and SkipIds of Broker.
  absl::Status AddDevice(LogicalId device, const Broker::DeviceSpec& spec);
  absl::Status AddSession(SessionId session, std::int64_t pid, std::shared_ptr<Waker> waker, LeaseKey lease,
                          std::span<const Broker::RestoredChunk> chunks,
                          std::span<const Broker::RestoredCharge> charges);
  void ChargeOverhead();
  void SkipIds(LogicalId device, ChunkId chunk);

  // As the calls of Broker.
  void StartAttesting(SessionId session, Broker::SessionSpec spec);
  absl::Status Attest(SessionId session, LogicalId device, const Chunk& claimed, UniqueFd fd);
  absl::Status AttestCharge(SessionId session, const std::string& card_uuid, Bytes bytes);
  void FinishAttesting(SessionId session);
  void GoAbsent(SessionId session);

 private:
  absl::Status CheckAmounts(std::span<const Broker::RestoredChunk> chunks,
                            std::span<const Broker::RestoredCharge> charges) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(core_.mutex);
  /// The granted chunk that the session claims. INVALID_ARGUMENT if the log does not say the same.
  absl::StatusOr<ChunkEntry*> FindClaimed(SessionId session, LogicalId device, const Chunk& claimed)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(core_.mutex);

  BrokerCore& core_;
  ChunkReclaimer& reclaimer_;
};

}  // namespace lgpu

#endif  // LGPU_ALLOCATOR_BROKER_SESSION_RESTORE_H_
