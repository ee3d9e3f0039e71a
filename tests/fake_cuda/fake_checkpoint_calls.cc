// The checkpoint calls of the fake driver: the caller's side. But for the restore they need no cuInit.

#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <iterator>

#include "tests/fake_cuda/fake_calls.h"
#include "tests/fake_cuda/fake_checkpoint.h"

namespace lgpu::fake_cuda {
namespace {

using Request = CheckpointTarget::Request;

constexpr int kOldestDriver = 12080;

/// The entry of a process of this pid namespace. Callers hold the machine's lock.
CUresult FindTarget(StateFile& file, std::int32_t pid, std::uint64_t name_space, CheckpointTarget** found) {
  auto& targets = file.state().targets;
  const auto target =
      std::find_if(std::begin(targets), std::end(targets), [&](const CheckpointTarget& candidate) {
        return candidate.pid == pid && candidate.pid_namespace == name_space;
      });
  if (pid <= 0 || target == std::end(targets)) return CUDA_ERROR_INVALID_VALUE;
  if (::syscall(SYS_tgkill, pid, target->thread, 0) != 0) {
    return errno == EPERM ? CUDA_ERROR_NOT_PERMITTED : CUDA_ERROR_INVALID_VALUE;
  }
  *found = target;
  return CUDA_SUCCESS;
}

/// Asks a process and waits for its answer, as long as the process lives: there is no other limit.
CUresult Ask(StateFile& file, std::int32_t pid, Request request, std::int64_t give_up_at = 0) {
  const std::uint64_t name_space = PidNamespace();
  CheckpointTarget* target = nullptr;
  std::uint32_t number = 0;
  bool is_asked = false;
  while (true) {
    std::uint32_t seen = 0;
    {
      const StateFile::Lock lock(file);
      if (const CUresult result = FindTarget(file, pid, name_space, &target); result != CUDA_SUCCESS) {
        return result;
      }
      seen = target->answered;
      if (is_asked && seen - number < std::size(target->results)) {
        return static_cast<CUresult>(target->results[number % std::size(target->results)]);
      }
      if (!is_asked && seen == target->asked) {
        target->request = request;
        target->give_up_at = give_up_at;
        number = ++target->asked;
        is_asked = true;
      }
    }
    TellChange(target->asked);  // also for a caller that was killed before it could
    WaitForChange(target->answered, seen, /*is_short=*/true);
  }
}

/// What every call begins with: the machine, or null and the result.
StateFile* EnterCheckpoint(Call& call, std::int32_t pid, CUresult* result) {
  StateFile* const file = StateFile::OfThisProcess();
  *result = file == nullptr                                ? CUDA_ERROR_NO_DEVICE
            : file->state().driver_version < kOldestDriver ? CUDA_ERROR_NOT_SUPPORTED
                                                           : CUDA_SUCCESS;
  if (*result != CUDA_SUCCESS) return nullptr;
  CountCall(*file, call);
  const StateFile::Lock lock(*file);
  *result = static_cast<CUresult>(file->TakeFault(call.name, pid));
  return *result == CUDA_SUCCESS ? file : nullptr;
}

}  // namespace
}  // namespace lgpu::fake_cuda

using namespace lgpu::fake_cuda;

// Enters a call and names the machine `file`.
#define FAKE_ENTER_CHECKPOINT(name, pid)                             \
  static Call this_call{name};                                       \
  CUresult entered = CUDA_SUCCESS;                                   \
  StateFile* const file = EnterCheckpoint(this_call, pid, &entered); \
  if (file == nullptr) return entered

FAKE_EXPORT CUresult cuCheckpointProcessGetRestoreThreadId(int pid, int* tid) {
  FAKE_ENTER_CHECKPOINT("cuCheckpointProcessGetRestoreThreadId", pid);
  if (tid == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const StateFile::Lock lock(*file);
  CheckpointTarget* target = nullptr;
  const CUresult found = FindTarget(*file, pid, PidNamespace(), &target);
  if (found == CUDA_SUCCESS) *tid = target->thread;
  return found;
}

FAKE_EXPORT CUresult cuCheckpointProcessGetState(int pid, CUprocessState* state) {
  FAKE_ENTER_CHECKPOINT("cuCheckpointProcessGetState", pid);
  if (state == nullptr) return CUDA_ERROR_INVALID_VALUE;
  CheckpointTarget* target = nullptr;
  CUresult result = Ask(*file, pid, Request::kState);
  const StateFile::Lock lock(*file);
  if (result == CUDA_SUCCESS) result = FindTarget(*file, pid, PidNamespace(), &target);
  if (result == CUDA_SUCCESS) *state = static_cast<CUprocessState>(target->state);
  return result;
}

FAKE_EXPORT CUresult cuCheckpointProcessLock(int pid, CUcheckpointLockArgs* arguments) {
  FAKE_ENTER_CHECKPOINT("cuCheckpointProcessLock", pid);
  const unsigned timeout = arguments == nullptr ? 0 : arguments->timeoutMs;
  return Ask(*file, pid, Request::kLock,
             timeout == 0 ? 0 : NanosecondsNow() + std::int64_t{timeout} * 1'000'000);
}

FAKE_EXPORT CUresult cuCheckpointProcessCheckpoint(int pid, CUcheckpointCheckpointArgs*) {
  FAKE_ENTER_CHECKPOINT("cuCheckpointProcessCheckpoint", pid);
  return Ask(*file, pid, Request::kCheckpoint);
}

// As a public thread reports it: "operation not permitted" without a cuInit before, and the target dies.
FAKE_EXPORT CUresult cuCheckpointProcessRestore(int pid, CUcheckpointRestoreArgs*) {
  FAKE_ENTER_CHECKPOINT("cuCheckpointProcessRestore", pid);
  if (Process::This().pid == ::getpid()) return Ask(*file, pid, Request::kRestore);
  const StateFile::Lock lock(*file);
  CheckpointTarget* target = nullptr;
  const CUresult found = FindTarget(*file, pid, PidNamespace(), &target);
  if (found != CUDA_SUCCESS) return found;
  ::kill(pid, SIGKILL);
  return CUDA_ERROR_NOT_PERMITTED;
}

FAKE_EXPORT CUresult cuCheckpointProcessUnlock(int pid, CUcheckpointUnlockArgs*) {
  FAKE_ENTER_CHECKPOINT("cuCheckpointProcessUnlock", pid);
  return Ask(*file, pid, Request::kUnlock);
}
