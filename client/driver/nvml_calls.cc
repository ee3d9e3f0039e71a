// libnvidia-ml.so.1 of lgpu: a program that sizes itself by NVML sees the limit of its lease. Every other
// call is the real library's.

#include <dlfcn.h>
#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <string_view>
#include <utility>

#include "client/driver/environment.h"

#define LGPU_NVML_EXPORT extern "C" __attribute__((visibility("default")))

namespace lgpu::shim {
namespace {

using NvmlResult = int;
using NvmlDevice = void*;
constexpr NvmlResult kNvmlSuccess = 0;
constexpr NvmlResult kNvmlFunctionNotFound = 13;
constexpr unsigned kUuidBytes = 96;  // NVML_DEVICE_UUID_V2_BUFFER_SIZE

struct Memory {
  unsigned long long total, free, used;
};
struct MemoryV2 {
  unsigned version;
  unsigned long long total, reserved, free, used;
};

void* Find(const char* symbol) {
  static void* const library = ::dlopen("liblgpu_real_nvidia-ml.so.1", RTLD_LAZY | RTLD_NOLOAD);
  return library == nullptr ? nullptr : ::dlsym(library, symbol);
}

std::atomic<LeaseSession*> the_session{nullptr};
std::atomic<bool> is_looked_up{false};
std::atomic<bool> is_watching_forks{false};

void ForgetParent() {
  if (LeaseSession* const parent = the_session.exchange(nullptr)) parent->Abandon();
  is_looked_up.store(false);
}

// As the CUDA library does: a program that asks NVML alone, or both, is no lost one at its end.
[[gnu::destructor]] void NoteExit() {
  if (LeaseSession* const session = the_session.load()) session->NoteExit();
}

/// This process's session; null without a lease.
LeaseSession* Session() {
  if (is_looked_up.load(std::memory_order_acquire)) return the_session.load(std::memory_order_relaxed);
  if (std::optional<LeaseSession::Options> options =
          OptionsFromEnvironment("libnvidia-ml shim " LGPU_VERSION)) {
    options->makes_no_use = true;
    LeaseSession* const made = new LeaseSession(*std::move(options));
    LeaseSession* none = nullptr;
    if (!the_session.compare_exchange_strong(none, made)) delete made;
    if (!is_watching_forks.exchange(true)) ::pthread_atfork(nullptr, nullptr, ForgetParent);
  }
  is_looked_up.store(true, std::memory_order_release);
  return the_session.load();
}

/// The lease's figures of the device; nothing: there is no lease, or it has nothing of this device.
std::optional<LeaseSession::Figures> FiguresOf(NvmlDevice device) {
  LeaseSession* const session = Session();
  const auto get = reinterpret_cast<NvmlResult (*)(NvmlDevice, char*, unsigned)>(Find("nvmlDeviceGetUUID"));
  char text[kUuidBytes] = {};
  if (session == nullptr || get == nullptr || get(device, text, kUuidBytes) != kNvmlSuccess) {
    return std::nullopt;
  }
  return session->FiguresOf(session->CardOf(std::string_view(text)), LeaseSession::Reader::kReadsAlone);
}

template <typename Info>
NvmlResult GetMemoryInfo(const char* symbol, NvmlDevice device, Info* info) {
  const auto real = reinterpret_cast<NvmlResult (*)(NvmlDevice, Info*)>(Find(symbol));
  if (real == nullptr) return kNvmlFunctionNotFound;
  const NvmlResult result = real(device, info);
  if (result != kNvmlSuccess || info == nullptr) return result;
  const auto figures = FiguresOf(device);
  if (!figures) return result;
  info->total = std::min<unsigned long long>(info->total, figures->limit);
  info->free = std::min<unsigned long long>({info->free, figures->free, info->total});
  if constexpr (requires { info->reserved; }) info->reserved = 0;
  info->used = info->total - info->free;
  return result;
}

}  // namespace

LGPU_NVML_EXPORT NvmlResult nvmlDeviceGetMemoryInfo(NvmlDevice device, Memory* info) {
  return GetMemoryInfo("nvmlDeviceGetMemoryInfo", device, info);
}

LGPU_NVML_EXPORT NvmlResult nvmlDeviceGetMemoryInfo_v2(NvmlDevice device, MemoryV2* info) {
  return GetMemoryInfo("nvmlDeviceGetMemoryInfo_v2", device, info);
}

}  // namespace lgpu::shim
