// Plain memory that processes share by IPC. It is charged to its maker; the process that opens it reports
// that.

#include "client/driver/shim.h"

namespace lgpu::shim {
namespace {

Result Open(Result (*real)(DevicePtr*, IpcMemHandle, unsigned), DevicePtr* address,
            const IpcMemHandle& handle, unsigned flags) {
  const Result result = CallReal(real, address, handle, flags);
  Shim* const shim = Shim::Get();
  if (shim == nullptr || result != kSuccess) return result;
  const std::optional<Shim::Place> place = shim->Current();
  shim->allocations.Add(
      *address,
      {.charge = {}, .context = place ? place->context : nullptr, .pool = nullptr, .is_import = true});
  shim->session.CountImports(1);
  return result;
}

}  // namespace

LGPU_SHIM_EXPORT Result cuIpcGetMemHandle(IpcMemHandle* handle, DevicePtr address) {
  const Result result = CallReal(RealDriver::Get().cuIpcGetMemHandle, handle, address);
  Shim* const shim = Shim::Get();
  if (shim == nullptr || result != kSuccess) return result;
  if (const auto allocation = shim->allocations.SetExported(address)) {
    shim->session.CountExported(allocation->charge.card, allocation->memory_bytes());
  }
  return result;
}

LGPU_SHIM_EXPORT Result cuIpcOpenMemHandle(DevicePtr* address, IpcMemHandle handle, unsigned flags) {
  return Open(RealDriver::Get().cuIpcOpenMemHandle, address, handle, flags);
}
LGPU_SHIM_EXPORT Result cuIpcOpenMemHandle_v2(DevicePtr* address, IpcMemHandle handle, unsigned flags) {
  return Open(RealDriver::Get().cuIpcOpenMemHandle_v2, address, handle, flags);
}

LGPU_SHIM_EXPORT Result cuIpcCloseMemHandle(DevicePtr address) {
  Shim* const shim = Shim::Get();
  const auto close = [&] { return CallReal(RealDriver::Get().cuIpcCloseMemHandle, address); };
  return shim == nullptr ? close() : shim->UnchargeAround(address, close);
}

}  // namespace lgpu::shim
