// Plain memory: cuMemAlloc, pitched and managed memory, cuMemFree.

#include <algorithm>
#include <utility>

#include "client/driver/shim.h"
#include "client/driver/use_notes.h"

namespace lgpu::shim {
namespace {

// Rows of pitched memory begin at multiples of this, at least.
constexpr std::uint64_t kRow = 512;

/// One allocation of `bytes` in the current context; `allocate` writes its address to `*address`.
template <typename Address, typename Allocate>
Result Plain(Address* address, std::uint64_t bytes, ChargeKind kind, const char* call, Allocate allocate) {
  NoteUse();
  Shim* const shim = Shim::Get();
  const std::optional<Shim::Place> place = shim == nullptr ? std::nullopt : shim->Current();
  // Without a context, or with invalid arguments, the driver says what is wrong.
  if (!place || address == nullptr || bytes == 0) return allocate();
  return shim->ChargeAround(
      *place, bytes, kind, call, allocate, [&] { return static_cast<std::uint64_t>(*address); },
      RealDriver::Get().cuMemFree_v2);
}

template <typename Address, typename Size>
Result Pitched(Result (*real)(Address*, Size*, Size, Size, unsigned), Address* address, Size* pitch,
               Size width, Size height, unsigned element, const char* call) {
  const std::uint64_t bytes = Product(RoundUp(width, kRow), height);
  const Result result = Plain(address, bytes, ChargeKind::kPitched, call,
                              [&] { return CallReal(real, address, pitch, width, height, element); });
  Shim* const shim = Shim::Get();
  if (result != kSuccess || shim == nullptr || address == nullptr || pitch == nullptr) return result;
  if (Product(*pitch, height) <= bytes) return result;
  // The driver's rows are longer than expected: the rest is charged now.
  std::optional<Allocation> allocation = shim->allocations.Remove(*address);
  if (!allocation) return result;
  std::optional<Charge> whole =
      shim->Take(allocation->charge.card, Product(*pitch, height), ChargeKind::kPitched, call);
  shim->charges.GiveBack(allocation->charge);
  if (whole && !shim->charges.Place(*whole, *address, call)) {
    shim->charges.GiveBack(*std::exchange(whole, std::nullopt));
  }
  if (!whole) {
    (void)CallReal(RealDriver::Get().cuMemFree_v2, static_cast<DevicePtr>(*address));
    return kOutOfMemory;
  }
  allocation->charge = *whole;
  shim->Keep(*address, *std::move(allocation));
  return result;
}

template <typename Address>
Result Free(Result (*real)(Address), Address address) {
  NoteUse();
  Shim* const shim = Shim::Get();
  if (shim == nullptr) return CallReal(real, address);
  return shim->UnchargeAround(address, [&] { return CallReal(real, address); });
}

}  // namespace

LGPU_SHIM_EXPORT Result cuMemAlloc(DevicePtrV1* address, unsigned bytes) {
  return Plain(address, bytes, ChargeKind::kPlain, "cuMemAlloc",
               [&] { return CallReal(RealDriver::Get().cuMemAlloc, address, bytes); });
}

LGPU_SHIM_EXPORT Result cuMemAlloc_v2(DevicePtr* address, std::size_t bytes) {
  return Plain(address, bytes, ChargeKind::kPlain, "cuMemAlloc_v2",
               [&] { return CallReal(RealDriver::Get().cuMemAlloc_v2, address, bytes); });
}

LGPU_SHIM_EXPORT Result cuMemAllocManaged(DevicePtr* address, std::size_t bytes, unsigned flags) {
  return Plain(address, bytes, ChargeKind::kManaged, "cuMemAllocManaged",
               [&] { return CallReal(RealDriver::Get().cuMemAllocManaged, address, bytes, flags); });
}

LGPU_SHIM_EXPORT Result cuMemAllocPitch(DevicePtrV1* address, unsigned* pitch, unsigned width,
                                        unsigned height, unsigned element) {
  return Pitched(RealDriver::Get().cuMemAllocPitch, address, pitch, width, height, element,
                 "cuMemAllocPitch");
}

LGPU_SHIM_EXPORT Result cuMemAllocPitch_v2(DevicePtr* address, std::size_t* pitch, std::size_t width,
                                           std::size_t height, unsigned element) {
  return Pitched(RealDriver::Get().cuMemAllocPitch_v2, address, pitch, width, height, element,
                 "cuMemAllocPitch_v2");
}

LGPU_SHIM_EXPORT Result cuMemFree(DevicePtrV1 address) { return Free(RealDriver::Get().cuMemFree, address); }
LGPU_SHIM_EXPORT Result cuMemFree_v2(DevicePtr address) {
  return Free(RealDriver::Get().cuMemFree_v2, address);
}

}  // namespace lgpu::shim
