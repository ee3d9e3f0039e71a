// Stream-ordered memory and its pools.

#include <utility>

#include "client/driver/shim.h"
#include "client/driver/use_notes.h"

namespace lgpu::shim {
namespace {

constexpr std::uint64_t kPiece = 512;
constexpr std::uint64_t kLastStreamNumber = 2;  // CU_STREAM_PER_THREAD

/// Whether the stream's calls are being recorded into a graph: they allocate nothing then.
bool IsCapturing(Result (*real)(Stream, int*), Stream stream) {
  int status = kNotCapturing;
  return CallReal(real, stream, &status) == kSuccess && status != kNotCapturing;
}

/// The device of a context that need not be the current one.
std::optional<Device> DeviceOf(Context context) {
  const RealDriver& real = RealDriver::Get();
  Device device = 0;
  if (CallReal(real.cuCtxPushCurrent_v2, context) != kSuccess) return std::nullopt;
  const Result result = CallReal(real.cuCtxGetDevice, &device);
  (void)CallReal(real.cuCtxPopCurrent_v2, &context);
  return result == kSuccess ? std::optional(device) : std::nullopt;
}

/// The device that the stream's allocations are on, which need not be that of the current context.
std::optional<Device> DeviceOfStream(Stream stream) {
  const RealDriver& real = RealDriver::Get();
  Device device = 0;
  // The streams with a number in place of a handle are those of the current context.
  if (reinterpret_cast<std::uint64_t>(stream) > kLastStreamNumber) {
    if (CallReal(real.cuStreamGetDevice, stream, &device) == kSuccess) return device;
    Context context = nullptr;
    if (CallReal(real.cuStreamGetCtx, stream, &context) == kSuccess) return DeviceOf(context);
  }
  return CallReal(real.cuCtxGetDevice, &device) == kSuccess ? std::optional(device) : std::nullopt;
}

/// The device of a pool that no call of the program has made: one of the devices' own. Nothing: another one.
std::optional<Device> DeviceOfPool(MemPool pool) {
  const RealDriver& real = RealDriver::Get();
  int count = 0;
  (void)CallReal(real.cuDeviceGetCount, &count);
  for (Device device = 0; device < count; ++device) {
    for (const auto get : {real.cuDeviceGetDefaultMemPool, real.cuDeviceGetMemPool}) {
      MemPool own = nullptr;
      if (CallReal(get, &own, device) == kSuccess && own == pool) return device;
    }
  }
  return std::nullopt;
}

/// `pool`: the driver's, or nothing for that of the stream's device.
std::shared_ptr<PoolBook> BookOf(Shim& shim, std::optional<MemPool> pool, Stream stream) {
  const auto key = [&] { return reinterpret_cast<std::uint64_t>(*pool); };
  if (pool) {
    if (std::shared_ptr<PoolBook> known = shim.pools.Find(key())) {
      if (known->is_host || known->card != LeaseSession::kNoCard) return known;
      if (known->device != kNoDevice) return shim.pools.Of(key(), known->device, shim.CardOf(known->device));
    }
    if (const std::optional<Device> device = DeviceOfPool(*pool)) {
      return shim.pools.Of(key(), *device, shim.CardOf(*device));
    }
  }
  const std::optional<Device> device = DeviceOfStream(stream);
  if (!device) return nullptr;
  if (!pool) {
    pool.emplace();
    if (CallReal(RealDriver::Get().cuDeviceGetMemPool, &*pool, *device) != kSuccess) return nullptr;
  }
  return shim.pools.Of(key(), *device, shim.CardOf(*device));
}

/// The memory is an allocation's of a pool; `free` frees it in the order of its stream.
struct PoolCall {
  const char* name;
  std::optional<MemPool> pool;  // nothing: that of the stream's device
  Stream stream;
  bool is_capturing;
  Result (*free)(DevicePtr, Stream);
};

/// Calls `allocate` for memory that is charged. Where the driver has none, once more when the card has it.
template <typename Allocate>
Result AllocateTaken(Shim& shim, PoolBook& book, std::uint64_t charged, const char* call, Allocate allocate) {
  Result result = allocate();
  if (result == kOutOfMemory && !book.is_host) {
    shim.pools.GiveBack(book, charged);
    if (!shim.pools.TakeAgain(book, charged, call)) return kOutOfMemory;
    result = allocate();
    if (result == kOutOfMemory) {
      shim.pools.GiveBack(book, charged);
      shim.SettlePools();
      shim.pools.TellRefused(book, charged, call);
      return kOutOfMemory;
    }
  }
  if (result != kSuccess) shim.pools.GiveBack(book, charged);
  return result;
}

bool TakeFrom(Shim& shim, PoolBook& book, std::uint64_t charged, const char* call) {
  if (shim.pools.TakeWithin(book, charged)) return true;
  shim.MakeRoom(book.card, charged);
  return shim.pools.Take(book, charged, call) ||
         (shim.TrimPools(book.card) && shim.pools.Take(book, charged, call));
}

/// Frees an allocation that its pool reserved more for than the lease has. The program has not seen it.
void Undo(Shim& shim, PoolBook& book, std::uint64_t charged, DevicePtr address, const PoolCall& call,
          bool is_fresh) {
  // cuMemFree waits for nothing, so it is for memory alone that was not another allocation's before: a free
  // in the stream's order comes after all work in the stream.
  if (is_fresh) {
    (void)CallReal(RealDriver::Get().cuMemFree_v2, address);
  } else {
    (void)CallReal(call.free, address, call.stream);
  }
  shim.pools.GiveBack(book, charged);
  shim.pools.Trim(book);
}

template <typename Allocate>
Result FromPool(DevicePtr* address, std::size_t bytes, const PoolCall& call, Allocate allocate) {
  NoteUse();
  Shim* const shim = Shim::Get();
  if (shim == nullptr || address == nullptr || bytes == 0 || call.is_capturing) return allocate();
  const std::shared_ptr<PoolBook> book = BookOf(*shim, call.pool, call.stream);
  if (book == nullptr) return allocate();
  const std::uint64_t charged = RoundUp(bytes, kPiece);
  for (const bool is_last : {false, true}) {
    if (!TakeFrom(*shim, *book, charged, call.name)) return kOutOfMemory;
    const Pools::Attempt attempt(shim->pools, *book);
    const Result result = AllocateTaken(*shim, *book, charged, call.name, allocate);
    if (result != kSuccess) return result;
    if (shim->pools.Cover(*book, call.name, /*may_refuse=*/is_last)) {
      shim->Keep(*address, {.charge = {.card = book->card, .bytes = charged, .kind = ChargeKind::kPool},
                            .context = nullptr,
                            .pool = book});
      return result;
    }
    Undo(*shim, *book, charged, *address, call, attempt.WasAlone());
    // The other pools may have memory that nothing uses.
    if (!is_last) (void)shim->TrimPools(book->card);
  }
  return kOutOfMemory;
}

template <typename Free>
Result ToPool(DevicePtr address, bool is_capturing, Free free) {
  NoteUse();
  Shim* const shim = Shim::Get();
  // A recorded free happens when the graph is launched; the address stays charged.
  if (shim == nullptr || is_capturing) return free();
  return shim->UnchargeAround(address, free);
}

/// The driver has a pool that was not known.
void MadePool(Shim& shim, std::uint64_t key, const MemLocation& location, int type) {
  if (location.type == kLocationDevice) {
    shim.pools.Made(key, location.id, shim.CardOf(location.id), /*is_host=*/false);
  } else if (type == kAllocationManaged) {  // wherever it lies: charged to the current device
    Device device = 0;
    (void)CallReal(RealDriver::Get().cuCtxGetDevice, &device);
    shim.pools.Made(key, device, shim.CardOf(device), /*is_host=*/false);
  } else {
    shim.pools.Made(key, kNoDevice, LeaseSession::kNoCard, /*is_host=*/true);
  }
}

Result GetOwnPool(Result (*real)(MemPool*, MemLocation*, int), MemPool* pool, MemLocation* location,
                  int type) {
  const Result result = CallReal(real, pool, location, type);
  Shim* const shim = Shim::Get();
  if (shim == nullptr || result != kSuccess || pool == nullptr || location == nullptr) return result;
  const auto key = reinterpret_cast<std::uint64_t>(*pool);
  if (location->type == kLocationDevice || shim->pools.Find(key) != nullptr) return result;
  MadePool(*shim, key, *location, type);
  return result;
}

bool IsCapturing(Stream stream) {
  return Shim::Get() != nullptr && IsCapturing(RealDriver::Get().cuStreamIsCapturing, stream);
}
bool IsCapturingPtsz(Stream stream) {
  return Shim::Get() != nullptr && IsCapturing(RealDriver::Get().cuStreamIsCapturing_ptsz, stream);
}

}  // namespace

LGPU_SHIM_EXPORT Result cuMemAllocAsync(DevicePtr* address, std::size_t bytes, Stream stream) {
  const RealDriver& real = RealDriver::Get();
  return FromPool(address, bytes,
                  {"cuMemAllocAsync", std::nullopt, stream, IsCapturing(stream), real.cuMemFreeAsync},
                  [&] { return CallReal(real.cuMemAllocAsync, address, bytes, stream); });
}

LGPU_SHIM_EXPORT Result cuMemAllocAsync_ptsz(DevicePtr* address, std::size_t bytes, Stream stream) {
  const RealDriver& real = RealDriver::Get();
  return FromPool(
      address, bytes,
      {"cuMemAllocAsync", std::nullopt, stream, IsCapturingPtsz(stream), real.cuMemFreeAsync_ptsz},
      [&] { return CallReal(real.cuMemAllocAsync_ptsz, address, bytes, stream); });
}

LGPU_SHIM_EXPORT Result cuMemAllocFromPoolAsync(DevicePtr* address, std::size_t bytes, MemPool pool,
                                                Stream stream) {
  const RealDriver& real = RealDriver::Get();
  return FromPool(address, bytes,
                  {"cuMemAllocFromPoolAsync", pool, stream, IsCapturing(stream), real.cuMemFreeAsync},
                  [&] { return CallReal(real.cuMemAllocFromPoolAsync, address, bytes, pool, stream); });
}

LGPU_SHIM_EXPORT Result cuMemAllocFromPoolAsync_ptsz(DevicePtr* address, std::size_t bytes, MemPool pool,
                                                     Stream stream) {
  const RealDriver& real = RealDriver::Get();
  return FromPool(
      address, bytes,
      {"cuMemAllocFromPoolAsync", pool, stream, IsCapturingPtsz(stream), real.cuMemFreeAsync_ptsz},
      [&] { return CallReal(real.cuMemAllocFromPoolAsync_ptsz, address, bytes, pool, stream); });
}

LGPU_SHIM_EXPORT Result cuMemFreeAsync(DevicePtr address, Stream stream) {
  return ToPool(address, IsCapturing(stream),
                [&] { return CallReal(RealDriver::Get().cuMemFreeAsync, address, stream); });
}

LGPU_SHIM_EXPORT Result cuMemFreeAsync_ptsz(DevicePtr address, Stream stream) {
  return ToPool(address, IsCapturingPtsz(stream),
                [&] { return CallReal(RealDriver::Get().cuMemFreeAsync_ptsz, address, stream); });
}

LGPU_SHIM_EXPORT Result cuMemPoolCreate(MemPool* pool, const MemPoolProps* props) {
  const Result result = CallReal(RealDriver::Get().cuMemPoolCreate, pool, props);
  Shim* const shim = Shim::Get();
  if (shim == nullptr || result != kSuccess || pool == nullptr || props == nullptr) return result;
  const auto key = reinterpret_cast<std::uint64_t>(*pool);
  MadePool(*shim, key, props->location, props->alloc_type);
  return result;
}

/// A pool that is a location's own. One of the host's is not charged; one of a device's is known by BookOf.
LGPU_SHIM_EXPORT Result cuMemGetDefaultMemPool(MemPool* pool, MemLocation* location, int type) {
  return GetOwnPool(RealDriver::Get().cuMemGetDefaultMemPool, pool, location, type);
}
LGPU_SHIM_EXPORT Result cuMemGetMemPool(MemPool* pool, MemLocation* location, int type) {
  return GetOwnPool(RealDriver::Get().cuMemGetMemPool, pool, location, type);
}

LGPU_SHIM_EXPORT Result cuMemPoolExportToShareableHandle(void* shareable, MemPool pool, int type,
                                                         Flags64 flags) {
  const Result result =
      CallReal(RealDriver::Get().cuMemPoolExportToShareableHandle, shareable, pool, type, flags);
  Shim* const shim = Shim::Get();
  if (shim == nullptr || result != kSuccess) return result;
  // Later allocations of the pool may be opened, too, so it counts with all that the card can have.
  const int card = shim->pools.SetExported(reinterpret_cast<std::uint64_t>(pool));
  shim->session.CountExported(card, Pools::kLargest);
  return result;
}

LGPU_SHIM_EXPORT Result cuMemPoolImportFromShareableHandle(MemPool* pool, void* shareable, int type,
                                                           Flags64 flags) {
  const Result result =
      CallReal(RealDriver::Get().cuMemPoolImportFromShareableHandle, pool, shareable, type, flags);
  Shim* const shim = Shim::Get();
  if (shim == nullptr || result != kSuccess || pool == nullptr) return result;
  shim->pools.Imported(reinterpret_cast<std::uint64_t>(*pool));  // it cannot allocate
  shim->session.CountImports(1);
  return result;
}

LGPU_SHIM_EXPORT Result cuMemPoolDestroy(MemPool pool) {
  const auto destroy = [&] { return CallReal(RealDriver::Get().cuMemPoolDestroy, pool); };
  Shim* const shim = Shim::Get();
  if (shim == nullptr) return destroy();
  bool was_import = false;
  const Result result = shim->pools.DestroyAround(reinterpret_cast<std::uint64_t>(pool), destroy, was_import);
  if (was_import) shim->session.CountImports(~std::uint64_t{0});
  return result;
}

LGPU_SHIM_EXPORT Result cuMemPoolTrimTo(MemPool pool, std::size_t keep) {
  const Result result = CallReal(RealDriver::Get().cuMemPoolTrimTo, pool, keep);
  Shim* const shim = Shim::Get();
  if (shim != nullptr && result == kSuccess) shim->pools.SettleAll();
  return result;
}

}  // namespace lgpu::shim
