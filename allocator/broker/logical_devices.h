#ifndef LGPU_ALLOCATOR_BROKER_LOGICAL_DEVICES_H_
#define LGPU_ALLOCATOR_BROKER_LOGICAL_DEVICES_H_

#include <optional>

#include "allocator/broker/broker_core.h"
#include "allocator/broker/chunk_reclaimer.h"
#include "allocator/broker/spare_chunks.h"

namespace lgpu {

/// LogicalDevices makes, resizes and removes the logical devices of leases.
///
/// Thread-safe: it takes the broker's lock. What it is made of outlives it.
class LogicalDevices {
 public:
  LogicalDevices(BrokerCore& core, SpareChunks& spare, ChunkReclaimer& reclaimer)
      : core_(core), spare_(spare), reclaimer_(reclaimer) {}

  // As AddDevice, ResizeDevice, TakeAnswer, CheckSize, RemoveDevice, MakeMissing and Find of Broker.
  Broker::Answer Add(const Broker::DeviceSpec& spec, const Broker::Patience& patience);
  Broker::Answer Resize(LogicalId device, Bytes limit, Bytes guarantee, const Broker::Patience& patience);
  Broker::Answer Take(WaiterId id);
  absl::Status CheckSize(LogicalId device, Bytes limit, Bytes guarantee) const;
  void Remove(LogicalId device);
  absl::Status MakeMissing(LogicalId device);
  std::optional<Broker::DeviceInfo> Find(LogicalId device) const;

 private:
  /// What is left of a request that waits no more.
  Broker::Answer Finish(WaiterId id, Waiter mine);
  /// The device has its new size: asks for what it holds beyond, returns the spare chunks beyond, and charges
  /// what a preallocated device lacks.
  Broker::Answer FinishResize(WaiterId id, Waiter mine);
  /// The device has a smaller size again: returns the spare chunks beyond it.
  void ReturnExcess(LogicalId device);
  Broker::Answer MakeChunks(WaiterId id, Waiter mine);
  std::vector<ChunkId> TakeExcess(LogicalId device) ABSL_EXCLUSIVE_LOCKS_REQUIRED(core_.mutex);
  absl::Status Made(const SpareChunks::Made& made);

  BrokerCore& core_;
  SpareChunks& spare_;
  ChunkReclaimer& reclaimer_;
};

}  // namespace lgpu

#endif  // LGPU_ALLOCATOR_BROKER_LOGICAL_DEVICES_H_
