// A ContextState without memory: its contents in host memory, and back.

#include <string>
#include <utility>

#include "client/runtime/context_state.h"
#include "client/runtime/memory_report.h"
#include "client/session/fork_guard.h"
#include "kernels/text.h"
#include "lgpu/status.h"

namespace lgpu::internal {
namespace {

absl::Status StaysSuspended(const absl::Status& status) {
  return PrefixedStatus(status, "the Context stays suspended: ");
}

}  // namespace

absl::Status ContextState::CheckMaySuspend() const {
  for (const auto& device : devices_) {
    if (!device->is_gpu()) continue;
    if (memory_.lease().devices()[static_cast<std::size_t>(device->index())].preallocated) {
      return absl::FailedPreconditionError(
          Cat(device->name(),
              " is preallocated, so its memory stays with the lease and the Context cannot be suspended\n  "
              "try: memory growth for this GPU"));
    }
    const CallerMemory& caller = device->caller_memory();
    std::size_t streams = 0;
    for (void* const stream : caller.Streams()) streams += CallerStreams::IsDefault(stream) ? 0 : 1;
    if (streams != 0 && caller.live().blocks == 0) {
      return absl::FailedPreconditionError(Cat(
          "a LogicalMemory on ", device->name(), " knows ", streams, streams == 1 ? " stream" : " streams",
          " of the program's own, whose work cannot be held back\n  try: ForgetStream for each, then "
          "Suspend"));
    }
  }
  const absl::Status lent = CheckNothingLent();
  return lent.ok() ? lent : PrefixedStatus(lent, "the Context cannot be suspended: ");
}

absl::Status ContextState::Suspend() {
  if (IsForked()) return ForkedError();
  if (PlacementRecorder::IsInSink()) {
    return absl::FailedPreconditionError(
        "a log_sink runs within an op, and an InterruptScope's function within a call, which Suspend waits "
        "for, so it cannot suspend a Context\n  try: Suspend after the op");
  }
  const MutexLock lock(close_mutex_);
  if (closed_ || gate_.is_closed()) return ClosedError();
  if (gate_.is_held()) return absl::OkStatus();
  LGPU_RETURN_IF_ERROR(CheckMaySuspend());
  was_suspended_.store(true);
  gate_.HoldAndWait();
  absl::Status status = CheckMaySuspend();
  if (status.ok()) {
    memory_.StopUpkeep();
    status = MoveOut();
    StartUpkeep();
  }
  if (status.ok()) SuspendLease();
  if (!status.ok() && saved_.empty()) gate_.EndHold();
  return status;
}

absl::Status ContextState::MoveOut() {
  std::vector<SavedContents> saved;
  needs_.clear();
  for (const auto& device : devices_) {
    if (!device->is_gpu()) continue;
    LGPU_RETURN_IF_ERROR(device->Synchronize());
    LGPU_RETURN_IF_ERROR(device->memory().Trim().status());  // waits for every stream
    const LeasedDevice& leased = memory_.lease().devices()[static_cast<std::size_t>(device->index())];
    needs_[leased.id] += device->memory().stats().held;
    LGPU_ASSIGN_OR_RETURN(SavedContents copy,
                          SavedContents::Copy(device->memory(), device->backend(), device->stream()));
    saved.push_back(std::move(copy));
  }
  saved_ = std::move(saved);
  for (const auto& device : devices_) {
    const absl::Status given = device->is_gpu() ? device->memory().Suspend() : absl::OkStatus();
    if (given.ok()) continue;
    // Devices before it have given theirs up, and get it again.
    const absl::Status back = MoveIn();
    return back.ok() ? given : StaysSuspended(back);
  }
  return absl::OkStatus();
}

absl::Status ContextState::Resume() {
  if (IsForked()) return ForkedError();
  if (gives_way_.load()) {  // lgpud has the memory ready first
    LGPU_RETURN_IF_ERROR(AwaitMemoryBack(std::chrono::steady_clock::now() + allocation_timeout_));
    if (gives_way_.load() && !gate_.is_closed()) {
      return absl::ResourceExhaustedError(
          "the Context stays suspended: lgpud suspended it, and has not given its memory back within "
          "allocation_timeout\n  try: Resume again, or `lgpu resume` after `lgpu suspend`");
    }
  }
  const MutexLock lock(close_mutex_);
  if (closed_ || gate_.is_closed()) return ClosedError();
  if (!gate_.is_held() || gives_way_.load()) return absl::OkStatus();
  absl::Status status = ResumeLease();
  if (!status.ok()) return StaysSuspended(status);
  memory_.StopUpkeep();
  status = MoveIn();
  StartUpkeep();
  if (!status.ok()) {
    SuspendLease();
    return StaysSuspended(status);
  }
  gate_.EndHold();
  return status;
}

// A lease with other programs, or without lgpud, stays as it is.
void ContextState::SuspendLease() {
  Bytes bytes;
  for (const SavedContents& contents : saved_) bytes += contents.bytes();
  if (bytes.is_zero()) return;
  lease_is_suspended_ = memory_.lease().BeginSuspension(bytes).ok();
}

absl::Status ContextState::ResumeLease() {
  if (!lease_is_suspended_) return absl::OkStatus();
  const absl::Status status = memory_.lease().EndSuspension(allocation_timeout_);
  // Another lgpud may not know of the suspension.
  if (!status.ok() && !absl::IsFailedPrecondition(status) && !absl::IsNotFound(status)) return status;
  lease_is_suspended_ = false;
  return absl::OkStatus();
}

absl::Status ContextState::MoveIn() {
  absl::Status status = TakeMemory();
  auto contents = saved_.begin();
  for (const auto& device : devices_) {
    if (!device->is_gpu() || !status.ok()) continue;
    status = contents->Restore(device->memory(), device->backend(), device->stream());
    ++contents;
  }
  if (status.ok()) {
    saved_.clear();
  } else {
    GiveUpMemory();
  }
  return status;
}

absl::Status ContextState::TakeMemory() {
  for (const auto& device : devices_) {
    if (device->is_gpu()) LGPU_RETURN_IF_ERROR(device->memory().Resume(allocation_timeout_));
  }
  return absl::OkStatus();
}

// An error is the device's: it keeps its memory, and the next Resume writes the contents there.
void ContextState::GiveUpMemory() {
  for (const auto& device : devices_) {
    if (device->is_gpu() && device->Synchronize().ok()) device->memory().Suspend().IgnoreError();
  }
}

}  // namespace lgpu::internal
