#include "client/runtime/memory_state.h"

#include <atomic>
#include <string_view>
#include <utility>

#include "base/mutex.h"
#include "client/runtime/context_state.h"
#include "client/runtime/device_text.h"
#include "client/session/fork_guard.h"
#include "client/session/memory_session.h"
#include "kernels/text.h"
#include "lgpu/status.h"

namespace lgpu::internal {
namespace {

absl::Status Closing(std::string_view what) {
  return absl::FailedPreconditionError(
      Cat(what, " is being closed by another thread; try again if that fails, else open another one"));
}

class OwnMemory final : public MemoryState {
 public:
  OwnMemory(std::unique_ptr<Lease> lease, int index, std::chrono::nanoseconds timeout)
      : MemoryState(*lease, InfosOf(lease->devices())[static_cast<std::size_t>(index)], timeout),
        index_(index),
        session_(std::move(lease)),
        caller_(session_.memory(index), session_.lease().backend(),
                session_.lease().devices()[static_cast<std::size_t>(index)].backend_device,
                CallerMemory::PoolUse::kAlone) {
    allocation_gate_ = &own_gate_;
    gate_ = &own_gate_;
    memory_ = &caller_;
    pool_ = &session_.memory(index);
    session_.StartUpkeep();
  }

  // A block that is live now was lost by the program: no handle and no export is left.
  ~OwnMemory() override {
    if (IsForked()) return;
    const MutexLock lock(close_mutex_);
    if (!closed_) ShutDown();
  }

  absl::Status Resize(Bytes limit, std::optional<Bytes> guarantee) override {
    return session_.lease().Resize(index_, limit, guarantee);
  }

  absl::Status Close() override {
    const MutexLock lock(close_mutex_);
    if (!closed_) {
      LGPU_RETURN_IF_ERROR(caller_.CheckNoneLive());
      own_gate_.CloseAndWait();
      if (absl::Status live = caller_.CheckNoneLive(); !live.ok()) {
        own_gate_.Reopen();
        return live;
      }
      ShutDown();
    }
    // A daemon that was away may be back by now; a call that was interrupted is made again.
    if (!lease_is_closed_) {
      const absl::Status status = session_.Close();
      lease_is_closed_ = !absl::IsUnavailable(status) && !absl::IsCancelled(status);
      if (!lease_is_closed_) return status;
      close_status_.Update(status);
    }
    return close_status_;
  }
  absl::Status ShutError() override {
    if (!ended_.load()) return Closing("this LogicalMemory");
    return absl::FailedPreconditionError(
        "this LogicalMemory is closed: its memory went back; open another one");
  }

 private:
  void ShutDown() ABSL_EXCLUSIVE_LOCKS_REQUIRED(close_mutex_) {
    ended_.store(true);
    session_.StopUpkeep();
    close_status_ = caller_.RemoveStreams();
    closed_ = true;
  }

  const int index_;
  Gate own_gate_;
  MemorySession session_;
  CallerMemory caller_;
  std::atomic<bool> ended_{false};
  Mutex close_mutex_;  // orders calls of Close; held over the whole of it
  bool closed_ ABSL_GUARDED_BY(close_mutex_) = false;
  bool lease_is_closed_ ABSL_GUARDED_BY(close_mutex_) = false;
  absl::Status close_status_ ABSL_GUARDED_BY(close_mutex_);
};

class ContextMemory final : public MemoryState {
 public:
  ContextMemory(std::shared_ptr<ContextState> context, int index)
      : MemoryState(context->lease(), context->infos()[static_cast<std::size_t>(index)],
                    context->allocation_timeout()),
        index_(index),
        context_(std::move(context)) {
    Device& device = context_->device(index);
    allocation_gate_ = &context_->gate();
    gate_ = &context_->free_gate();
    memory_ = &device.caller_memory();
    pool_ = &device.memory();
  }

  absl::Status Resize(Bytes limit, std::optional<Bytes> guarantee) override {
    return context_->ResizeGpu(index_, limit, guarantee);
  }
  bool EnterWhenBack() override { return context_->Enter(); }
  absl::Status Close() override {
    const GatePass pass(gate());
    return pass ? memory().CheckNoneLive() : absl::OkStatus();
  }
  absl::Status ShutError() override {
    if (gate_->is_closed()) {
      return absl::FailedPreconditionError(
          "the Context of this LogicalMemory is closed: its memory went back; open another one");
    }
    if (context_->gate().is_held()) return context_->ClosedError();
    if (!context_->IsRetired()) return Closing("the Context of this LogicalMemory");
    return absl::FailedPreconditionError(
        "the Context of this LogicalMemory is gone: blocks that are live can be used and freed, and there "
        "are "
        "no new ones; open another Context");
  }
  void HandleMade() override { context_->AddMemoryHandle(); }
  void HandleGone() override { context_->RemoveMemoryHandle(); }
  void BlockGone() override { context_->NoteBlockFreed(); }

 private:
  const int index_;
  const std::shared_ptr<ContextState> context_;
};

}  // namespace

MemoryState::MemoryState(const Lease& lease, LogicalDeviceInfo info, std::chrono::nanoseconds timeout)
    : info_(std::move(info)),
      cuda_device_(CudaDeviceOf(info_)),
      lease_id_(lease.id()),
      lease_name_(lease.name()),
      timeout_(timeout) {}

absl::StatusOr<std::shared_ptr<MemoryState>> OpenMemory(std::unique_ptr<Lease> lease, int index,
                                                        std::chrono::nanoseconds timeout) {
  const int devices = static_cast<int>(lease->devices().size());
  if (index < 0 || index >= devices) {
    return absl::NotFoundError(Cat("device ", index, " of lease \"", lease->name(),
                                   "\" was asked for; the lease has ", devices,
                                   devices == 1 ? " device" : " devices", ", and their numbers begin at 0"));
  }
  return std::make_shared<OwnMemory>(std::move(lease), index, timeout);
}

std::shared_ptr<MemoryState> MemoryOfContext(std::shared_ptr<ContextState> context, int index) {
  return std::make_shared<ContextMemory>(std::move(context), index);
}

absl::Status CheckResize(const ResizeOptions& options) {
  if (options.memory_limit == Lease::kWholeCard) {
    return absl::InvalidArgumentError(Cat(FormatBytes(options.memory_limit), " is more than any GPU has"));
  }
  if (options.guarantee && *options.guarantee > options.memory_limit) {
    return absl::InvalidArgumentError(Cat("the guarantee of ", FormatBytes(*options.guarantee),
                                          " is more than the memory_limit of ",
                                          FormatBytes(options.memory_limit)));
  }
  return absl::OkStatus();
}

}  // namespace lgpu::internal
