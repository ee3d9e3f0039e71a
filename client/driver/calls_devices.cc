// The start, the calls that tell sizes, and contexts, whose end frees their memory.

#include <algorithm>
#include <atomic>

#include "client/driver/environment.h"
#include "client/driver/shim.h"
#include "client/driver/visible_devices.h"

namespace lgpu::shim {
namespace {

template <typename Size>
Size AsSize(std::uint64_t bytes) {
  return static_cast<Size>(std::min<std::uint64_t>(bytes, static_cast<Size>(~Size{0})));
}

template <typename Size>
Result TotalMem(Result (*real)(Size*, Device), Size* bytes, Device device) {
  const Result result = CallReal(real, bytes, device);
  Shim* const shim = Shim::Get();
  if (shim == nullptr || result != kSuccess || bytes == nullptr) return result;
  if (const auto figures = shim->session.FiguresOf(shim->CardOf(device))) {
    *bytes = std::min(*bytes, AsSize<Size>(figures->limit));
  }
  return result;
}

/// The driver takes null for a figure that the program does not want.
template <typename Size>
Result GetInfo(Result (*real)(Size*, Size*), Size* free, Size* total) {
  const Result result = CallReal(real, free, total);
  Shim* const shim = Shim::Get();
  if (shim == nullptr || result != kSuccess) return result;
  const std::optional<Shim::Place> place = shim->Current();
  if (!place) return result;
  shim->SettlePools();
  const auto figures = shim->session.FiguresOf(place->card);
  // Nothing can be charged, so nothing is free.
  if (free != nullptr) *free = figures ? std::min(*free, AsSize<Size>(figures->free)) : 0;
  if (total != nullptr && figures) *total = std::min(*total, AsSize<Size>(figures->limit));
  return result;
}

Result DestroyContext(Result (*real)(Context), Context context) {
  const Era last = Shim::EndEra();
  const Result result = CallReal(real, context);
  Shim* const shim = Shim::Get();
  if (shim != nullptr && result == kSuccess) shim->ForgetContext(context, last);
  return result;
}

bool IsPrimaryActive(Device device) {
  unsigned flags = 0;
  int is_active = 0;
  return CallReal(RealDriver::Get().cuDevicePrimaryCtxGetState, device, &flags, &is_active) == kSuccess &&
         is_active != 0;
}

/// The device's primary context, if there is one. The runtime makes it by a private way, so the shim asks.
Context PrimaryContext(Device device) {
  const RealDriver& real = RealDriver::Get();
  Context context = nullptr;
  if (!IsPrimaryActive(device) || CallReal(real.cuDevicePrimaryCtxRetain, &context, device) != kSuccess) {
    return nullptr;
  }
  const auto release = real.cuDevicePrimaryCtxRelease_v2 != nullptr ? real.cuDevicePrimaryCtxRelease_v2
                                                                    : real.cuDevicePrimaryCtxRelease;
  (void)CallReal(release, device);
  return context;
}

/// A release or reset of the primary context; the last one frees the allocations in it.
Result LetGoOfPrimary(Result (*real)(Device), Device device) {
  Shim* const shim = Shim::Get();
  const Context context = shim == nullptr ? nullptr : PrimaryContext(device);
  const Era last = Shim::EndEra();
  const Result result = CallReal(real, device);
  if (result == kSuccess && context != nullptr && !IsPrimaryActive(device)) {
    shim->ForgetContext(context, last);
    // Stream-ordered memory belongs to no context; the driver says how much of it is left.
    shim->SettlePools();
  }
  return result;
}

}  // namespace

LGPU_SHIM_EXPORT Result cuInit(unsigned flags) {
  // The driver reads the variables at its first successful start alone.
  static std::atomic<bool> has_started{false};
  if (!has_started.load(std::memory_order_acquire)) {
    RestoreVisibleDevices();
    // The daemon knows the program from here on. Without a daemon cuInit succeeds, and allocations are
    // refused.
    Shim* const shim = Shim::Get();
    if (shim != nullptr && !ShowCardsOfLease(shim->session)) return kNoVisibleDevice;
  }
  const Result result = CallReal(RealDriver::Get().cuInit, flags);
  if (result == kSuccess) has_started.store(true, std::memory_order_release);
  return result;
}

LGPU_SHIM_EXPORT Result cuDeviceTotalMem(unsigned* bytes, Device device) {
  return TotalMem(RealDriver::Get().cuDeviceTotalMem, bytes, device);
}
LGPU_SHIM_EXPORT Result cuDeviceTotalMem_v2(std::size_t* bytes, Device device) {
  return TotalMem(RealDriver::Get().cuDeviceTotalMem_v2, bytes, device);
}
LGPU_SHIM_EXPORT Result cuMemGetInfo(unsigned* free, unsigned* total) {
  return GetInfo(RealDriver::Get().cuMemGetInfo, free, total);
}
LGPU_SHIM_EXPORT Result cuMemGetInfo_v2(std::size_t* free, std::size_t* total) {
  return GetInfo(RealDriver::Get().cuMemGetInfo_v2, free, total);
}

LGPU_SHIM_EXPORT Result cuCtxDestroy(Context context) {
  return DestroyContext(RealDriver::Get().cuCtxDestroy, context);
}
LGPU_SHIM_EXPORT Result cuCtxDestroy_v2(Context context) {
  return DestroyContext(RealDriver::Get().cuCtxDestroy_v2, context);
}
// The heap of malloc in kernels is noted: it is memory that no allocation asks for.
LGPU_SHIM_EXPORT Result cuCtxSetLimit(int limit, std::size_t value) {
  Shim* const shim = limit == kLimitKernelHeap ? Shim::Get() : nullptr;
  const std::optional<Shim::Place> place = shim == nullptr ? std::nullopt : shim->Current();
  const Result result = CallReal(RealDriver::Get().cuCtxSetLimit, limit, value);
  if (result == kSuccess && place) shim->heaps.Set(place->context, place->era, value);
  return result;
}
LGPU_SHIM_EXPORT Result cuCtxAttach(Context* context, unsigned flags) {
  const Result result = CallReal(RealDriver::Get().cuCtxAttach, context, flags);
  Shim* const shim = Shim::Get();
  Context attached = nullptr;  // the current one, also where the program does not want to know it
  if (shim != nullptr && result == kSuccess &&
      CallReal(RealDriver::Get().cuCtxGetCurrent, &attached) == kSuccess) {
    shim->Attached(attached);
  }
  return result;
}
LGPU_SHIM_EXPORT Result cuCtxDetach(Context context) {
  Shim* const shim = Shim::Get();
  Device device = 0;  // the context is the current one
  const bool is_primary = shim != nullptr &&
                          CallReal(RealDriver::Get().cuCtxGetDevice, &device) == kSuccess &&
                          PrimaryContext(device) == context;
  const Era last = Shim::EndEra();
  const Result result = CallReal(RealDriver::Get().cuCtxDetach, context);
  if (shim == nullptr || result != kSuccess || !shim->WasLastDetach(context)) return result;
  if (!is_primary || !IsPrimaryActive(device)) shim->ForgetContext(context, last);
  return result;
}
// A green context holds a reference to its device's primary context, which has its memory.
LGPU_SHIM_EXPORT Result cuGreenCtxCreate(GreenContext* green, void* description, Device device,
                                         unsigned flags) {
  const RealDriver& real = RealDriver::Get();
  const Result result = CallReal(real.cuGreenCtxCreate, green, description, device, flags);
  Shim* const shim = Shim::Get();
  if (shim == nullptr || result != kSuccess || green == nullptr) return result;
  Context seen = nullptr;
  (void)CallReal(real.cuCtxFromGreenCtx, &seen, *green);
  shim->greens.Made(*green, {.device = device, .seen = seen, .primary = PrimaryContext(device)});
  return result;
}
LGPU_SHIM_EXPORT Result cuGreenCtxDestroy(GreenContext green) {
  const auto destroy = [&] { return CallReal(RealDriver::Get().cuGreenCtxDestroy, green); };
  Shim* const shim = Shim::Get();
  const auto known = shim == nullptr ? std::nullopt : shim->greens.Take(green);
  if (!known) return destroy();
  const Era last = Shim::EndEra();
  const Result result = destroy();
  if (result != kSuccess) {
    shim->greens.Made(green, *known);
  } else if (!IsPrimaryActive(known->device)) {
    shim->ForgetContext(known->primary, last);
  }
  return result;
}

LGPU_SHIM_EXPORT Result cuDevicePrimaryCtxRelease(Device device) {
  return LetGoOfPrimary(RealDriver::Get().cuDevicePrimaryCtxRelease, device);
}
LGPU_SHIM_EXPORT Result cuDevicePrimaryCtxRelease_v2(Device device) {
  return LetGoOfPrimary(RealDriver::Get().cuDevicePrimaryCtxRelease_v2, device);
}
LGPU_SHIM_EXPORT Result cuDevicePrimaryCtxReset(Device device) {
  return LetGoOfPrimary(RealDriver::Get().cuDevicePrimaryCtxReset, device);
}
LGPU_SHIM_EXPORT Result cuDevicePrimaryCtxReset_v2(Device device) {
  return LetGoOfPrimary(RealDriver::Get().cuDevicePrimaryCtxReset_v2, device);
}

}  // namespace lgpu::shim
