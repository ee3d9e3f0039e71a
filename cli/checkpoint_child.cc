// The child that makes one checkpoint call. It prints one line:
//
//   ok
//   state NUMBER
//   missing TEXT            the driver has no such call
//   error CALL NAME NUMBER  of the driver's

#include <dlfcn.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/exit_codes.h"
#include "cli/checkpoint_calls.h"
#include "cli/checkpoint_guard.h"
#include "cli/unfit_drivers.h"

namespace lgpu::cli {
namespace {

/// The arguments of the calls as cuda.h has them since CUDA 12.8: 64 bytes each, zero but for the first word
/// of the lock's.
struct alignas(8) CallArguments {
  std::uint32_t timeout_ms = 0;
  char rest[60] = {};
};
static_assert(sizeof(CallArguments) == 64);

using DriverResult = int;

/// The driver's name of a call; empty: there is no such call.
std::string SymbolOf(const std::string& verb) {
  for (const auto& [known, name] :
       {std::pair("state", "GetState"), std::pair("lock", "Lock"), std::pair("checkpoint", "Checkpoint"),
        std::pair("restore", "Restore"), std::pair("unlock", "Unlock")}) {
    if (verb == known) return absl::StrCat("cuCheckpointProcess", name);
  }
  return "";
}

#if defined(__x86_64__)
template <typename Function>
Function* FindCall(void* driver, const char* name) {
  return reinterpret_cast<Function*>(::dlsym(driver, name));
}

std::string ErrorLine(void* driver, const std::string& call, DriverResult result) {
  const char* name = nullptr;
  auto* const name_of = FindCall<DriverResult(DriverResult, const char**)>(driver, "cuGetErrorName");
  if (name_of == nullptr || name_of(result, &name) != 0 || name == nullptr) name = "unknown error";
  return absl::StrCat("error ", call, " ", name, " ", result);
}

/// Of the driver; empty: not known.
std::string DriverVersion() {
  void* const nvml = ::dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
  if (nvml == nullptr) return "";
  auto* const init = FindCall<int(unsigned)>(nvml, "nvmlInitWithFlags");
  auto* const version_of = FindCall<int(char*, unsigned)>(nvml, "nvmlSystemGetDriverVersion");
  constexpr unsigned kNoGpus = 1;
  char text[96] = {};
  if (init == nullptr || version_of == nullptr || init(kNoGpus) != 0) return "";
  return version_of(text, sizeof(text) - 1) == 0 ? text : "";
}

std::string CallDriver(void* driver, const std::string& verb, int pid, std::uint32_t timeout_ms) {
  const std::string name = SymbolOf(verb);
  auto* const call = FindCall<DriverResult(int, void*)>(driver, name.c_str());
  if (call == nullptr) return absl::StrCat("missing the NVIDIA driver here has no ", name);
  if (verb == "restore") {
    // Without it a restore fails, and the process dies of it, where the driver is not kept loaded.
    auto* const init = FindCall<DriverResult(unsigned)>(driver, "cuInit");
    const DriverResult started = init == nullptr ? -1 : init(0);
    if (started != 0) return ErrorLine(driver, "cuInit", started);
  }
  if (verb == "lock") {
    const std::string version = DriverVersion();
    const char* const why = WhyUnfitToSuspend(version);
    if (why != nullptr) {
      return absl::StrCat("missing programs are not suspended with NVIDIA driver ", version, ": ", why);
    }
  }
  CallArguments arguments;
  arguments.timeout_ms = timeout_ms;
  int state = 0;
  void* const argument = verb == "state" ? static_cast<void*>(&state) : &arguments;
  const DriverResult result = call(pid, argument);
  if (result != 0) return ErrorLine(driver, name, result);
  return verb == "state" ? absl::StrCat("state ", state) : "ok";
}

std::string OpenAndCall(const std::string& verb, int pid, std::uint32_t timeout_ms) {
  // In a lease lgpu's own libcuda.so.1 may come first; the driver has this name then.
  void* driver = ::dlopen("liblgpu_real_cuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (driver == nullptr) driver = ::dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (driver == nullptr) return absl::StrCat("missing there is no NVIDIA driver here: ", ::dlerror());
  return CallDriver(driver, verb, pid, timeout_ms);
}
#else
std::string OpenAndCall(const std::string&, int, std::uint32_t) {
  return "missing NVIDIA's drivers have checkpoint calls on x86-64 alone";
}
#endif

}  // namespace

int MakeCheckpointCall(const std::vector<std::string>& words) {
  if (!words.empty() && words[0] == kGuardWord) return RunCheckpointGuard(words);
  int pid = 0;
  std::uint32_t timeout_ms = 0;
  if (words.size() != 3 || SymbolOf(words[0]).empty() || !absl::SimpleAtoi(words[1], &pid) || pid <= 0 ||
      !absl::SimpleAtoi(words[2], &timeout_ms)) {
    std::fprintf(stderr, "lgpu %s is a part of `lgpu run`\n", kCheckpointVerb);
    return kExitUsage;
  }
  // Ctrl-C and Ctrl-Z are for the program: half a restore is its end.
  ::setsid();
  std::printf("%s\n", OpenAndCall(words[0], pid, timeout_ms).c_str());
  std::fflush(stdout);
  // The driver's own end could take long, or wait for what the call has left.
  ::_exit(kExitOk);
}

}  // namespace lgpu::cli
