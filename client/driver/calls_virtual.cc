// Virtual memory management: memory behind handles, which lives as long as a handle or a mapping of it.

#include "client/driver/shim.h"

namespace lgpu::shim {
namespace {

void Drop(Shim& shim, const Handles::References& taken) {
  const Handles::Dropped dropped = shim.handles.Drop(taken);
  for (const Charge& charge : dropped.charges) shim.charges.GiveBack(charge);
  if (dropped.imports > 0) shim.session.CountImports(std::uint64_t{0} - dropped.imports);
}

}  // namespace

LGPU_SHIM_EXPORT Result cuMemCreate(Handle* handle, std::size_t bytes, const AllocationProp* prop,
                                    Flags64 flags) {
  const auto create = [&] { return CallReal(RealDriver::Get().cuMemCreate, handle, bytes, prop, flags); };
  Shim* const shim = Shim::Get();
  // The device is the one of the properties, whatever context is current; memory of the host is not charged.
  if (shim == nullptr || handle == nullptr || prop == nullptr || prop->location.type != kLocationDevice) {
    return create();
  }
  // A handle is a whole number of blocks, so that a charge of it is never a part of a shared block.
  std::optional<Charge> charge =
      shim->Take(shim->CardOf(prop->location.id), RoundUp(bytes, kBlock), ChargeKind::kVmm, "cuMemCreate");
  if (!charge) return kOutOfMemory;
  const Result result = shim->AllocateCharged(charge, "cuMemCreate", create);
  if (charge) shim->handles.Created(*handle, *charge);
  return result;
}

LGPU_SHIM_EXPORT Result cuMemRelease(Handle handle) {
  Shim* const shim = Shim::Get();
  if (shim == nullptr) return CallReal(RealDriver::Get().cuMemRelease, handle);
  const Handles::References taken = shim->handles.TakeHandle(handle);
  const Result result = CallReal(RealDriver::Get().cuMemRelease, handle);
  if (result == kSuccess) {
    Drop(*shim, taken);
  } else {
    shim->handles.PutHandleBack(taken);
  }
  return result;
}

LGPU_SHIM_EXPORT Result cuMemRetainAllocationHandle(Handle* handle, void* address) {
  const Result result = CallReal(RealDriver::Get().cuMemRetainAllocationHandle, handle, address);
  Shim* const shim = Shim::Get();
  if (shim != nullptr && result == kSuccess) {
    shim->handles.Retained(*handle, reinterpret_cast<std::uint64_t>(address));
  }
  return result;
}

LGPU_SHIM_EXPORT Result cuMemMap(DevicePtr address, std::size_t bytes, std::size_t offset, Handle handle,
                                 Flags64 flags) {
  const Result result = CallReal(RealDriver::Get().cuMemMap, address, bytes, offset, handle, flags);
  Shim* const shim = Shim::Get();
  if (shim != nullptr && result == kSuccess) shim->handles.Mapped(address, bytes, handle);
  return result;
}

LGPU_SHIM_EXPORT Result cuMemUnmap(DevicePtr address, std::size_t bytes) {
  Shim* const shim = Shim::Get();
  if (shim == nullptr) return CallReal(RealDriver::Get().cuMemUnmap, address, bytes);
  const Handles::References taken = shim->handles.TakeMappings(address, bytes);
  const Result result = CallReal(RealDriver::Get().cuMemUnmap, address, bytes);
  if (result == kSuccess) {
    Drop(*shim, taken);
  } else {
    shim->handles.PutMappingsBack(taken);
  }
  return result;
}

LGPU_SHIM_EXPORT Result cuMemExportToShareableHandle(void* shareable, Handle handle, int type,
                                                     Flags64 flags) {
  const Result result =
      CallReal(RealDriver::Get().cuMemExportToShareableHandle, shareable, handle, type, flags);
  Shim* const shim = Shim::Get();
  if (shim == nullptr || result != kSuccess) return result;
  if (const auto charge = shim->handles.Exported(handle)) {
    shim->session.CountExported(charge->card, charge->bytes);
  }
  return result;
}

LGPU_SHIM_EXPORT Result cuMemImportFromShareableHandle(Handle* handle, void* shareable, int type) {
  const Result result = CallReal(RealDriver::Get().cuMemImportFromShareableHandle, handle, shareable, type);
  Shim* const shim = Shim::Get();
  if (shim != nullptr && result == kSuccess && shim->handles.Imported(*handle)) shim->session.CountImports(1);
  return result;
}

}  // namespace lgpu::shim
