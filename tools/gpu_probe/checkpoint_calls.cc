#include "tools/gpu_probe/checkpoint_calls.h"

#include <cuda.h>
#include <dlfcn.h>

#include <chrono>

#include "absl/strings/str_cat.h"
#include "tools/gpu_probe/agent.h"

namespace lgpu::gpu_probe {

#if CUDA_VERSION >= 12080
namespace {

constexpr unsigned kLockMilliseconds = 10'000;

template <typename Function>
Function* Find(const char* name) {
  static_assert(sizeof(Function*) == sizeof(void*));
  return reinterpret_cast<Function*>(::dlsym(::dlopen("libcuda.so.1", RTLD_NOW), name));
}

// Calls a function of the driver that has the type of `Function`.
template <typename Function, typename... Arguments>
std::string Call(const char* name, Arguments... arguments) {
  Function* const function = Find<Function>(name);
  if (function == nullptr) return absl::StrCat("error this driver has no ", name);
  const auto start = std::chrono::steady_clock::now();
  const CUresult result = function(arguments...);
  const double milliseconds = MillisecondsSince(start);
  if (result == CUDA_SUCCESS) return absl::StrCat("ok ms=", milliseconds);
  return absl::StrCat("error ", name, " gave ", static_cast<int>(result), " after ", milliseconds, " ms");
}

}  // namespace

std::string CheckpointCall(const std::string& call, pid_t pid) {
  if (call == "state") {
    CUprocessState state = CU_PROCESS_STATE_RUNNING;
    const std::string said =
        Call<decltype(::cuCheckpointProcessGetState)>("cuCheckpointProcessGetState", pid, &state);
    return said.rfind("ok", 0) == 0 ? absl::StrCat(said, " state=", static_cast<int>(state)) : said;
  }
  if (call == "lock") {
    CUcheckpointLockArgs arguments{};
    arguments.timeoutMs = kLockMilliseconds;
    return Call<decltype(::cuCheckpointProcessLock)>("cuCheckpointProcessLock", pid, &arguments);
  }
  if (call == "checkpoint") {
    CUcheckpointCheckpointArgs arguments{};
    return Call<decltype(::cuCheckpointProcessCheckpoint)>("cuCheckpointProcessCheckpoint", pid, &arguments);
  }
  if (call == "restore") {
    CUcheckpointRestoreArgs arguments{};
    return Call<decltype(::cuCheckpointProcessRestore)>("cuCheckpointProcessRestore", pid, &arguments);
  }
  if (call == "unlock") {
    CUcheckpointUnlockArgs arguments{};
    return Call<decltype(::cuCheckpointProcessUnlock)>("cuCheckpointProcessUnlock", pid, &arguments);
  }
  return "error no such call: " + call;
}
#else
std::string CheckpointCall(const std::string& /*call*/, pid_t /*pid*/) {
  return "error this gpu_probe was built with a CUDA toolkit without checkpoint calls";
}
#endif

}  // namespace lgpu::gpu_probe
