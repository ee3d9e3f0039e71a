#ifndef LGPU_CLI_CHECKPOINT_CALLS_H_
#define LGPU_CLI_CHECKPOINT_CALLS_H_

#include <sys/types.h>

#include <chrono>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace lgpu::cli {

/// A CheckpointCalls moves programs out of the GPU's memory and back with the driver's checkpoint calls. Each
/// call runs in a child of its own, which is killed when it takes too long: a driver's call on a stopped or
/// broken process may never return.
///
/// Errors, each with the call, the process and the driver's word:
///   UNIMPLEMENTED: the driver has no such calls, or refuses this process (CUDA_ERROR_NOT_SUPPORTED)
///   NOT_FOUND: the process does not use the driver, or has ended
///   PERMISSION_DENIED: it may not be traced by this user
///   UNAVAILABLE: the lock's time was over, and the process runs on
///   FAILED_PRECONDITION: the process is in another state
///   RESOURCE_EXHAUSTED: out of memory; no later restore succeeds on known drivers
///   DEADLINE_EXCEEDED: the child was killed, and the driver may still do what it was asked
///   INTERNAL: all else
///
/// Thread-safe but for KeepOpen.
class CheckpointCalls {
 public:
  enum class State { kRunning, kLocked, kCheckpointed, kFailed };

  /// `program`: of lgpu itself.
  explicit CheckpointCalls(std::string program = "/proc/self/exe") : program_(std::move(program)) {}

  /// RUNNING to LOCKED: calls of the process that need the GPU wait from now on. The driver waits for queued
  /// work until `limit`.
  absl::Status Lock(pid_t pid, std::chrono::milliseconds limit) const;
  /// LOCKED to CHECKPOINTED: its contents are in host memory, and its device memory is free.
  absl::Status Checkpoint(pid_t pid, std::chrono::milliseconds limit) const;
  /// CHECKPOINTED to LOCKED. All of its memory must be free on the device.
  absl::Status Restore(pid_t pid, std::chrono::milliseconds limit) const;
  /// LOCKED to RUNNING.
  absl::Status Unlock(pid_t pid, std::chrono::milliseconds limit) const;
  absl::StatusOr<State> GetState(pid_t pid, std::chrono::milliseconds limit) const;
  /// To RUNNING, from whatever state; a process that has ended is no error.
  absl::Status PutBack(pid_t pid, std::chrono::steady_clock::time_point deadline) const;

  /// The children of later calls have this descriptor open as long as they live; -1: none.
  void KeepOpen(int descriptor) { kept_ = descriptor; }

 private:
  absl::StatusOr<int> Call(const std::string& verb, pid_t pid, std::chrono::milliseconds limit) const;

  const std::string program_;
  int kept_ = -1;
};

/// The hidden verb that CheckpointCalls starts: `lgpu __checkpoint CALL PID [MILLISECONDS]`.
inline constexpr char kCheckpointVerb[] = "__checkpoint";

/// Makes the call and prints its result in a line. The exit code of lgpu.
int MakeCheckpointCall(const std::vector<std::string>& words);

}  // namespace lgpu::cli

#endif  // LGPU_CLI_CHECKPOINT_CALLS_H_
