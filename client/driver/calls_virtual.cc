// Virtual memory management: memory behind handles, which lives as long as a handle or a mapping of it.

#include <algorithm>
#include <iterator>
#include <span>

#include "client/driver/shim.h"
#include "client/driver/use_notes.h"

namespace lgpu::shim {
namespace {

/// The part of a sparse array that an entry maps or unmaps.
Handles::Part PartOf(const ArrayMapInfo& info) {
  Handles::Part part{static_cast<std::uint64_t>(info.subresource_type)};
  if (info.subresource_type == kMipTail) {  // layer, offset and size; the rest of the union is anything
    part[1] = info.subresource[0] & 0xffffffff;
    part[2] = info.subresource[1];
    part[3] = info.subresource[2];
  } else {
    std::copy(std::begin(info.subresource), std::end(info.subresource), part.begin() + 1);
  }
  return part;
}

Result MapArrays(Result (*real)(ArrayMapInfo*, unsigned, Stream), ArrayMapInfo* infos, unsigned count,
                 Stream stream) {
  NoteUse();
  const Result result = CallReal(real, infos, count, stream);
  Shim* const shim = Shim::Get();
  if (shim == nullptr || result != kSuccess || infos == nullptr) return result;
  // The stream's context is that of the arrays.
  Context context = nullptr;
  (void)CallReal(RealDriver::Get().cuStreamGetCtx, stream, &context);
  for (const ArrayMapInfo& info : std::span(infos, count)) {
    const auto array = reinterpret_cast<std::uint64_t>(info.resource);
    shim->Drop(shim->handles.TakeBinding(array, PartOf(info)));
    if (info.operation != kMapOperation) continue;
    shim->handles.Bound(array, PartOf(info), info.handle, context, Shim::CurrentEra());
  }
  return result;
}

/// kNoDevice: the driver does not say, as of a multicast object.
Device DeviceOf(Handle handle) {
  AllocationProp prop{};
  const Result result = CallReal(RealDriver::Get().cuMemGetAllocationPropertiesFromHandle, &prop, handle);
  return result == kSuccess && prop.location.type == kLocationDevice ? prop.location.id : kNoDevice;
}

}  // namespace

LGPU_SHIM_EXPORT Result cuMemCreate(Handle* handle, std::size_t bytes, const AllocationProp* prop,
                                    Flags64 flags) {
  const auto create = [&] { return CallReal(RealDriver::Get().cuMemCreate, handle, bytes, prop, flags); };
  Shim* const shim = Shim::Get();
  // The device is the one of the properties, not the current context's; memory of the host is not charged.
  if (shim == nullptr || handle == nullptr || prop == nullptr || prop->location.type != kLocationDevice) {
    return create();
  }
  // A handle is a whole number of blocks, so that a charge of it is never a part of a shared block.
  std::optional<Charge> charge =
      shim->Take(shim->CardOf(prop->location.id), RoundUp(bytes, kBlock), ChargeKind::kVmm, "cuMemCreate");
  if (!charge) return kOutOfMemory;
  const Result result = shim->AllocateCharged(charge, "cuMemCreate", create);
  if (charge) shim->handles.Created(*handle, prop->location.id, *charge);
  return result;
}

LGPU_SHIM_EXPORT Result cuMemRelease(Handle handle) {
  Shim* const shim = Shim::Get();
  if (shim == nullptr) return CallReal(RealDriver::Get().cuMemRelease, handle);
  const Handles::References taken = shim->handles.TakeHandle(handle);
  const Result result = CallReal(RealDriver::Get().cuMemRelease, handle);
  if (result == kSuccess) {
    shim->Drop(taken);
  } else {
    shim->handles.PutHandleBack(taken);
  }
  return result;
}

LGPU_SHIM_EXPORT Result cuMemRetainAllocationHandle(Handle* handle, void* address) {
  const Result result = CallReal(RealDriver::Get().cuMemRetainAllocationHandle, handle, address);
  Shim* const shim = Shim::Get();
  if (shim != nullptr && result == kSuccess && handle != nullptr) {
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
    shim->Drop(taken);
  } else {
    shim->handles.PutMappingsBack(taken);
  }
  return result;
}

LGPU_SHIM_EXPORT Result cuMemMapArrayAsync(ArrayMapInfo* infos, unsigned count, Stream stream) {
  return MapArrays(RealDriver::Get().cuMemMapArrayAsync, infos, count, stream);
}
LGPU_SHIM_EXPORT Result cuMemMapArrayAsync_ptsz(ArrayMapInfo* infos, unsigned count, Stream stream) {
  return MapArrays(RealDriver::Get().cuMemMapArrayAsync_ptsz, infos, count, stream);
}

LGPU_SHIM_EXPORT Result cuMulticastCreate(Handle* object, const void* prop) {
  const Result result = CallReal(RealDriver::Get().cuMulticastCreate, object, prop);
  Shim* const shim = Shim::Get();
  if (shim != nullptr && result == kSuccess && object != nullptr) shim->handles.CreatedMulticast(*object);
  return result;
}

LGPU_SHIM_EXPORT Result cuMulticastBindMem(Handle object, std::size_t object_offset, Handle handle,
                                           std::size_t offset, std::size_t bytes, Flags64 flags) {
  const Result result =
      CallReal(RealDriver::Get().cuMulticastBindMem, object, object_offset, handle, offset, bytes, flags);
  Shim* const shim = Shim::Get();
  if (shim != nullptr && result == kSuccess) {
    shim->handles.BoundToMulticast(object, object_offset, bytes, handle);
  }
  return result;
}

LGPU_SHIM_EXPORT Result cuMulticastBindAddr(Handle object, std::size_t object_offset, DevicePtr address,
                                            std::size_t bytes, Flags64 flags) {
  const Result result =
      CallReal(RealDriver::Get().cuMulticastBindAddr, object, object_offset, address, bytes, flags);
  Shim* const shim = Shim::Get();
  if (shim != nullptr && result == kSuccess) {
    shim->handles.BoundMappings(object, object_offset, bytes, address);
  }
  return result;
}

LGPU_SHIM_EXPORT Result cuMulticastUnbind(Handle object, Device device, std::size_t offset,
                                          std::size_t bytes) {
  const Result result = CallReal(RealDriver::Get().cuMulticastUnbind, object, device, offset, bytes);
  Shim* const shim = Shim::Get();
  if (shim != nullptr && result == kSuccess) {
    shim->Drop(shim->handles.TakeFromMulticast(object, device, offset, bytes));
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
  if (shim == nullptr || result != kSuccess || handle == nullptr) return result;
  if (shim->handles.Imported(*handle, DeviceOf(*handle))) shim->session.CountImports(1);
  return result;
}

}  // namespace lgpu::shim
