#ifndef LGPU_CLIENT_RUNTIME_MEMORY_STATE_H_
#define LGPU_CLIENT_RUNTIME_MEMORY_STATE_H_

#include <chrono>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/process_epoch.h"
#include "client/runtime/gate.h"
#include "client/session/caller_memory.h"
#include "client/session/device_pool.h"
#include "client/session/lease.h"
#include "lgpu/memory.h"

namespace lgpu::internal {

class ContextState;

/// A MemoryState is shared by a LogicalMemory and its exported blocks. Two kinds: one with a session of its
/// own, and one that is part of a Context. Thread-safe; memory() and pool() are used behind the gates alone.
class MemoryState {
 public:
  virtual ~MemoryState() = default;
  MemoryState(const MemoryState&) = delete;
  MemoryState& operator=(const MemoryState&) = delete;

  virtual absl::Status Resize(Bytes limit, std::optional<Bytes> guarantee) = 0;
  virtual absl::Status Close() = 0;
  /// The allocation gate is shut: waits where its Context gives way. True: this thread is behind it.
  virtual bool EnterWhenBack() { return false; }
  /// Why a gate is shut: FAILED_PRECONDITION. The gate may be open again by now.
  virtual absl::Status ShutError() = 0;
  /// A LogicalMemory has the state, until HandleGone; its exported blocks may be there for longer.
  virtual void HandleMade() {}
  virtual void HandleGone() {}
  /// A block went. Callers are outside the gates.
  virtual void BlockGone() {}

  bool IsForked() const { return epoch_.IsForked(); }
  /// New blocks are made behind this one.
  Gate& allocation_gate() { return *allocation_gate_; }
  /// Blocks that live are used and freed behind this one, which closes later.
  Gate& gate() { return *gate_; }
  CallerMemory& memory() { return *memory_; }
  DevicePool& pool() { return *pool_; }
  const LogicalDeviceInfo& info() const { return info_; }
  int cuda_device() const { return cuda_device_; }
  const std::string& lease_id() const { return lease_id_; }
  const std::string& lease_name() const { return lease_name_; }
  std::chrono::nanoseconds timeout() const { return timeout_; }

 protected:
  MemoryState(const Lease& lease, LogicalDeviceInfo info, std::chrono::nanoseconds timeout);

  // Constant after the constructor of the derived class.
  Gate* allocation_gate_ = nullptr;
  Gate* gate_ = nullptr;
  CallerMemory* memory_ = nullptr;
  DevicePool* pool_ = nullptr;

 private:
  const ProcessEpoch epoch_;
  const LogicalDeviceInfo info_;
  const int cuda_device_;
  const std::string lease_id_;
  const std::string lease_name_;
  const std::chrono::nanoseconds timeout_;
};

/// Device `index` of the lease, in a session of its own.
absl::StatusOr<std::shared_ptr<MemoryState>> OpenMemory(std::unique_ptr<Lease> lease, int index,
                                                        std::chrono::nanoseconds timeout);
/// GPU:index of the Context, whose gate is open.
std::shared_ptr<MemoryState> MemoryOfContext(std::shared_ptr<ContextState> context, int index);

/// INVALID_ARGUMENT for options that no device can take.
absl::Status CheckResize(const ResizeOptions& options);

}  // namespace lgpu::internal

#endif  // LGPU_CLIENT_RUNTIME_MEMORY_STATE_H_
