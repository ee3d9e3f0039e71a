// Plain memory that processes share by IPC. It is charged to its maker; the process that opens it reports
// that.

#include "client/driver/shim.h"

namespace lgpu::shim {
namespace {

Result Open(Result (*real)(DevicePtr*, IpcMemHandle, unsigned), DevicePtr* address,
            const IpcMemHandle& handle, unsigned flags) {
  const Result result = CallReal(real, address, handle, flags);
  Shim* const shim = Shim::Get();
  if (shim == nullptr || result != kSuccess || address == nullptr) return result;
  const std::optional<Shim::Place> place = shim->Current();
  // The driver counts how often a handle is open; the daemon hears of it once.
  const bool is_new = place ? shim->allocations.AddImport(*address, place->context, place->era)
                            : shim->allocations.AddImport(*address, nullptr, 0);
  if (is_new) shim->session.CountImports(1);
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
  const auto opening = shim == nullptr ? std::nullopt : shim->allocations.TakeImport(address);
  const Result result = CallReal(RealDriver::Get().cuIpcCloseMemHandle, address);
  if (!opening) return result;
  // Where the driver refuses, the opening goes back; another thread may have opened the memory meanwhile.
  const bool is_back =
      result != kSuccess && shim->allocations.AddImport(address, opening->context, opening->era);
  if (opening->was_last && !is_back) shim->session.CountImports(~std::uint64_t{0});
  return result;
}

}  // namespace lgpu::shim
