#ifndef LGPU_ALLOCATOR_BROKER_LOGICAL_DEVICES_H_
#define LGPU_ALLOCATOR_BROKER_LOGICAL_DEVICES_H_

#include <optional>

#include "allocator/broker/broker_core.h"
#include "allocator/broker/chunk_reclaimer.h"
#include "allocator/broker/reservations.h"
#include "allocator/broker/spare_chunks.h"

namespace lgpu {

/// LogicalDevices makes, resizes and removes the logical devices of leases.
///
/// Thread-safe: it takes the broker's lock. What it is made of outlives it.
class LogicalDevices {
 public:
  LogicalDevices(BrokerCore& core, Reservations& reservations, SpareChunks& spare, ChunkReclaimer& reclaimer)
      : core_(core), reservations_(reservations), spare_(spare), reclaimer_(reclaimer) {}

  // As AddDevice, ResizeDevice, CheckSize, RemoveDevice, MakeMissing and Find of Broker.
  absl::StatusOr<LogicalId> Add(const Broker::DeviceSpec& spec, Broker::TimePoint deadline);
  absl::Status Resize(LogicalId device, Bytes limit, Bytes guarantee, Broker::TimePoint deadline);
  absl::Status CheckSize(LogicalId device, Bytes limit, Bytes guarantee) const;
  void Remove(LogicalId device);
  absl::Status MakeMissing(LogicalId device);
  std::optional<Broker::DeviceInfo> Find(LogicalId device) const;

 private:
  /// Makes the device in the ledger, with its guarantee; the chunks of a preallocated one are charged.
  absl::StatusOr<LogicalId> Reserve(const BrokerLock& lock, const Broker::DeviceSpec& spec,
                                    Broker::TimePoint deadline) ABSL_EXCLUSIVE_LOCKS_REQUIRED(core_.mutex);
  /// A device has its new limit. Asks for what it holds beyond, and returns the spare chunks beyond.
  std::vector<ChunkId> TakeExcess(LogicalId device) ABSL_EXCLUSIVE_LOCKS_REQUIRED(core_.mutex);
  /// Charges what a preallocated device lacks of its new limit. Waits until `deadline` for memory of its
  /// own that is leaving; none: that takes longer.
  std::optional<Bytes> ChargeMissing(LogicalId device, Broker::TimePoint deadline)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(core_.mutex);
  absl::Status Made(const SpareChunks::Made& made);

  BrokerCore& core_;
  Reservations& reservations_;
  SpareChunks& spare_;
  ChunkReclaimer& reclaimer_;
};

}  // namespace lgpu

#endif  // LGPU_ALLOCATOR_BROKER_LOGICAL_DEVICES_H_
