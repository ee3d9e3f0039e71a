#ifndef LGPU_CLIENT_RUNTIME_CONTEXT_STATE_H_
#define LGPU_CLIENT_RUNTIME_CONTEXT_STATE_H_

#include <atomic>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/mutex.h"
#include "base/process_epoch.h"
#include "client/runtime/device.h"
#include "client/runtime/gate.h"
#include "client/runtime/placement_recorder.h"
#include "client/runtime/placer.h"
#include "client/runtime/tensor_buffer.h"
#include "client/session/memory_session.h"
#include "client/session/saved_contents.h"
#include "kernels/registry.h"
#include "lgpu/context.h"

namespace lgpu::internal {

/// A Config's settings of a Context beside its options.
struct RuntimeOptions {
  int cpu_count = 1;
  bool strict = false;  // scopes as tf.device has them
};

/// A ContextState is shared by a Context, its tensors and its scopes: the lease, the devices on it, and
/// the rules by which ops run there. Work on devices happens behind its gate, which Close shuts.
/// Thread-safe.
class ContextState : public std::enable_shared_from_this<ContextState> {
 public:
  static absl::StatusOr<std::shared_ptr<ContextState>> Create(std::unique_ptr<Lease> lease,
                                                              const ContextOptions& options,
                                                              const RuntimeOptions& runtime = {});
  ~ContextState();
  ContextState(const ContextState&) = delete;
  ContextState& operator=(const ContextState&) = delete;

  /// Context::Close. UNAVAILABLE: lgpud is away; it is told of the end when it is back, and a repeated Close
  /// has the result. FAILED_PRECONDITION: blocks of a LogicalMemory are live, exports in use, or
  /// this thread is inside a sink.
  absl::Status Close();
  /// Close, for a Context that goes. Where memory is lent, ops end and idle memory goes back; the end of the
  /// last export, block or handle closes the rest. Within a sink it waits for no op: the thread that ends the
  /// last one does the rest.
  void Retire();
  bool IsRetired() const { return retired_.load(); }
  /// Context::Suspend and Resume.
  absl::Status Suspend();
  absl::Status Resume();

  /// Context::LetTensorsKeep. Callers have not shared the Context yet.
  void LetTensorsKeep(std::weak_ptr<void> owner) { owner_ = std::move(owner); }
  /// What the first tensor of a chain of ops holds; the outputs of an op hold what its inputs hold.
  static std::shared_ptr<ContextState> ForTensors(const std::shared_ptr<ContextState>& state) {
    const std::shared_ptr<void> owner = state->owner_.lock();
    return owner == nullptr ? state : std::shared_ptr<ContextState>(owner, state.get());
  }

  /// Memory of a GPU is lent outside, until RemoveExport. FAILED_PRECONDITION: the devices are shut down.
  absl::Status AddExport(Bytes bytes);
  /// The block of the export was freed.
  void RemoveExport(Bytes bytes);
  Context::ExportCount exports() const;
  /// A LogicalMemory of this Context is there, until RemoveMemoryHandle.
  void AddMemoryHandle();
  void RemoveMemoryHandle();
  /// A block of a LogicalMemory was freed. Callers are outside both gates.
  void NoteBlockFreed() { CloseIfDone(); }

  const std::vector<LogicalDeviceInfo>& infos() const { return infos_; }
  const std::string& lease_id() const { return lease_id_; }
  const std::string& lease_name() const { return memory_.lease().name(); }
  const Lease& lease() const { return memory_.lease(); }
  std::chrono::nanoseconds allocation_timeout() const { return allocation_timeout_; }

  /// Behind the gate. Where lgpud has told the Context to give way, it waits until the memory is back. No
  /// pass: ClosedError says why not.
  GatePass Pass() { return GatePass(Enter() ? &gate_ : nullptr); }
  /// The same without a pass; gate().Leave() follows.
  bool Enter() { return gate_.Enter() || EnterWhenBack(); }
  Gate& gate() { return gate_; }
  /// Blocks are used and freed behind this one, which stays open as long as memory is lent.
  Gate& free_gate() { return free_gate_; }
  bool IsForked() const { return epoch_.IsForked(); }
  /// Why the gate is shut, or was a moment ago: FAILED_PRECONDITION.
  absl::Status ClosedError() const;

  /// By the placer's position: the GPUs, then the CPU.
  Device& device(int position) { return *devices_[static_cast<std::size_t>(position)]; }
  int PositionOf(const Device& device) const {
    return device.is_gpu() ? device.index() : placer_.cpu() + device.index();
  }
  const std::vector<std::unique_ptr<Device>>& devices() const { return devices_; }
  const KernelRegistry& registry() const { return registry_; }
  const Placer& placer() const { return placer_; }
  PlacementRecorder& recorder() { return recorder_; }

  /// The request of a scope that opens inside `outer` (or null); nothing: any device.
  DeviceRequest ResolveScope(std::optional<std::string_view> device, const DeviceRequest* outer) const;
  int cpu_count() const { return runtime_.cpu_count; }
  bool strict() const { return runtime_.strict; }
  std::vector<DeviceAttributes> Attributes() const;
  /// Of threads without a DevicePolicyScope.
  DevicePolicy policy() const { return policy_.load(std::memory_order_relaxed); }
  void set_policy(DevicePolicy policy) { policy_.store(policy, std::memory_order_relaxed); }
  /// Of GPU:index, as it is now. Callers are outside the gate.
  Bytes limit(int index);
  /// A new limit for GPU:index. Callers are outside the gate.
  absl::Status ResizeGpu(int index, Bytes limit, std::optional<Bytes> guarantee);
  bool pin_small_ops() const { return pin_small_ops_; }
  /// True once.
  bool IsFirstWithoutLibrary() { return !without_library_.exchange(true, std::memory_order_relaxed); }
  bool soft_placement() const { return soft_placement_.load(std::memory_order_relaxed); }
  void set_soft_placement(bool on) { soft_placement_.store(on, std::memory_order_relaxed); }

  /// A tensor without contents on `device`. `op` is for the refusal. Callers are behind the gate.
  static absl::StatusOr<std::shared_ptr<TensorBuffer>> Allocate(const std::shared_ptr<ContextState>& state,
                                                                Device& device, const TensorSpec& spec,
                                                                const Op& op, Device::FilledBy filled_by);

 private:
  ContextState(std::unique_ptr<Lease> lease, const ContextOptions& options, const RuntimeOptions& runtime);
  absl::Status OpenDevices(const ContextOptions& options);
  /// OK where no LogicalMemory has live blocks and no export is in use; else an error of IsMemoryInUse.
  absl::Status CheckNothingLent() const;
  absl::Status CheckNoExports() const;
  /// FAILED_PRECONDITION while exports are in use; else there will be none.
  absl::Status EndExports();
  absl::Status ExportsError() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(exports_mutex_);
  /// Whether memory is in use that a program can still reach: exports, and blocks that a LogicalMemory frees.
  bool IsLent() const;
  /// Closes a retired Context of which no memory is lent.
  void CloseIfDone();
  /// True: this thread is inside of a sink, and Retire or CloseIfDone goes on behind the ops under way.
  bool LeaveToLastOp();
  void EndRetired();
  void FinishRetire();
  void CloseRetired();
  absl::Status CloseNow() ABSL_EXCLUSIVE_LOCKS_REQUIRED(close_mutex_);
  /// No thread passes the gate any more when this returns, and all blocks are gone.
  void ShutDownDevices() ABSL_EXCLUSIVE_LOCKS_REQUIRED(close_mutex_);
  void StartUpkeep();
  /// OK, or why its memory cannot go: blocks, exports and streams of the program's own, preallocated memory.
  absl::Status CheckMaySuspend() const;
  /// The contents go to host memory, then all memory to the lease. On an error all is as before, or, where
  /// that fails too, in `saved_`.
  absl::Status MoveOut() ABSL_EXCLUSIVE_LOCKS_REQUIRED(close_mutex_);
  /// The contents are in `saved_` still where it fails.
  absl::Status MoveIn() ABSL_EXCLUSIVE_LOCKS_REQUIRED(close_mutex_);
  /// The lease shows that it is suspended, and others get what it has guaranteed, where that can be.
  void SuspendLease() ABSL_EXCLUSIVE_LOCKS_REQUIRED(close_mutex_);
  absl::Status ResumeLease() ABSL_EXCLUSIVE_LOCKS_REQUIRED(close_mutex_);
  absl::Status TakeMemory();
  void GiveUpMemory();
  // context_orders.cc: what lgpud tells.
  class HoldWatch;
  /// As Device::Allocate. Where the Context is to give way meanwhile, the thread steps aside, and asks anew.
  absl::StatusOr<Block> AllocateInTurn(Device& device, Bytes bytes, std::string_view op,
                                       Device::FilledBy filled_by);
  bool EnterWhenBack();
  bool IsHeldByProgram() const;
  /// Waits while the Context gives way, and tells lgpud that it wants its memory. CANCELLED: interrupted.
  absl::Status AwaitMemoryBack(std::chrono::steady_clock::time_point deadline);
  /// For a thread behind the gate that uses no device: it leaves, and comes back when the Context has its
  /// memory. On an error it is behind the gate too, and has to leave without a use of the devices.
  absl::Status StepAside();
  /// On the background thread of the lease.
  void LookForOrders();
  void FollowOrders();
  /// TakeBack, as often as it takes. ABORTED: the Context is closed meanwhile.
  absl::Status TakeBackWithPatience();
  class ClosersLock;
  absl::Status GiveWay(std::chrono::milliseconds limit) ABSL_EXCLUSIVE_LOCKS_REQUIRED(close_mutex_);
  absl::Status TakeBack() ABSL_EXCLUSIVE_LOCKS_REQUIRED(close_mutex_);
  void SetGivesWay(bool gives_way);
  /// False: the Context is being closed.
  bool LockForOrder() ABSL_EXCLUSIVE_TRYLOCK_FUNCTION(true, close_mutex_);
  /// Records the device time of ops that are done. Part of the upkeep.
  std::optional<Maintenance::TimePoint> RecordMeasured(Maintenance::TimePoint now);

  const ProcessEpoch epoch_;
  MemorySession memory_;
  const std::string lease_id_;
  const std::vector<LogicalDeviceInfo> infos_;
  const RuntimeOptions runtime_;
  std::atomic<DevicePolicy> policy_;
  const std::chrono::nanoseconds allocation_timeout_;
  const KernelRegistry registry_;
  const Placer placer_;
  PlacementRecorder recorder_;
  std::atomic<bool> soft_placement_{true};
  std::atomic<bool> without_library_{false};
  bool pin_small_ops_ = false;               // constant after the constructor
  std::vector<std::uint64_t> incarnations_;  // by position; constant after the constructor
  std::vector<std::unique_ptr<Device>> devices_;
  Gate gate_{[this] { EndRetired(); }};
  Gate free_gate_;
  // The end of the last loan closes. A thread that ends a loan reads it then, and Retire, which writes it,
  // looks for loans then: one of the two finds the other.
  std::atomic<bool> retired_{false};
  std::weak_ptr<void> owner_;  // of the Context, for its tensors; constant once the Context is shared
  Mutex kept_mutex_;
  // Itself, from LeaveToLastOp to EndRetired.
  std::shared_ptr<ContextState> kept_ ABSL_GUARDED_BY(kept_mutex_);
  mutable Mutex exports_mutex_;
  Context::ExportCount exports_ ABSL_GUARDED_BY(exports_mutex_);
  bool exports_ended_ ABSL_GUARDED_BY(exports_mutex_) = false;  // there will be no more
  int memory_handles_ ABSL_GUARDED_BY(exports_mutex_) = 0;
  std::atomic<bool> was_suspended_{false};
  std::atomic<bool> gives_way_{false};  // the gate is held, or about to be, by an order of lgpud's
  std::atomic<bool> shuts_down_{false};
  Mutex back_mutex_;
  CondVar is_back_;  // gives_way_ is false again
  // Not of a forked child, where its thread is not.
  std::unique_ptr<MaintenanceThread> orders_ = std::make_unique<MaintenanceThread>();
  std::atomic<int> closers_{0};  // calls that wait to close the Context; orders wait for them
  // Orders calls of Close, Suspend and Resume; held over the whole of each, nothing else waits for it.
  Mutex close_mutex_;
  // By the GPUs' order, while the Context is suspended: its gate is held.
  std::vector<SavedContents> saved_ ABSL_GUARDED_BY(close_mutex_);
  // What they need of each device of the lease, in whole chunks.
  std::map<LogicalId, Bytes> needs_ ABSL_GUARDED_BY(close_mutex_);
  bool lease_is_suspended_ ABSL_GUARDED_BY(close_mutex_) = false;
  bool closed_ ABSL_GUARDED_BY(close_mutex_) = false;
  bool lease_is_closed_ ABSL_GUARDED_BY(close_mutex_) = false;
  absl::Status close_status_ ABSL_GUARDED_BY(close_mutex_);
};

}  // namespace lgpu::internal

#endif  // LGPU_CLIENT_RUNTIME_CONTEXT_STATE_H_
