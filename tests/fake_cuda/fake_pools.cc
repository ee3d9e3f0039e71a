// The calls of the fake driver on pools and stream-ordered memory.

#include "tests/fake_cuda/fake_pools.h"

#include <algorithm>
#include <utility>

#include "tests/fake_cuda/fake_calls.h"
#include "tests/fake_cuda/fake_graphs.h"

namespace lgpu::fake_cuda {
namespace {

// By which a pool grows, where the card has so much.
std::uint64_t Unit(const Process& process) {
  const std::uint64_t set = process.file->state().pool_unit;
  return set == 0 ? std::uint64_t{32} << 20 : set;
}

std::shared_ptr<Pool> NewPool(Process& process, int card, StateFile::Kind kind = StateFile::Kind::kMemory) {
  auto pool = std::make_shared<Pool>();
  pool->blocks = std::make_shared<Blocks>(card, Unit(process), kind);
  pool->switches = {{CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES, 1},
                    {CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC, 1},
                    {CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES, 1}};
  process.pools[pool.get()] = pool;
  return pool;
}

std::shared_ptr<Pool> DefaultPool(Process& process, int card) {
  std::shared_ptr<Pool>& pool = process.default_pools[card];
  if (pool == nullptr) pool = NewPool(process, card);
  return pool;
}

/// The host's, of which there is one; its memory is none of a card.
std::shared_ptr<Pool> HostPool(Process& process) {
  if (process.host_pool == nullptr) process.host_pool = NewPool(process, 0, StateFile::Kind::kOnHost);
  return process.host_pool;
}

bool IsHost(const CUmemLocation& location) {
  return location.type == CU_MEM_LOCATION_TYPE_HOST || location.type == CU_MEM_LOCATION_TYPE_HOST_NUMA ||
         location.type == CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT;
}

std::shared_ptr<Pool> CurrentPool(Process& process, int card) {
  const std::shared_ptr<Pool> set = process.current_pools[card];
  return set == nullptr ? DefaultPool(process, card) : set;
}

std::shared_ptr<Pool> FindPool(Process& process, CUmemoryPool handle) {
  const auto pool = process.pools.find(reinterpret_cast<Pool*>(handle));
  return pool == process.pools.end() ? nullptr : pool->second;
}

CUmemoryPool HandleOf(const std::shared_ptr<Pool>& pool) {
  return reinterpret_cast<CUmemoryPool>(pool.get());
}

CUresult AllocateFrom(Process& process, Pool& pool, std::uint64_t bytes, CUdeviceptr* address) {
  if (bytes == 0) return CUDA_ERROR_INVALID_VALUE;
  if (pool.most != 0 && pool.blocks->used() + bytes > pool.most) return CUDA_ERROR_OUT_OF_MEMORY;
  const CUresult cut = pool.blocks->Allocate(process, bytes, address);
  if (cut != CUDA_SUCCESS) return cut;
  process.pieces[*address] = {
      .kind = Piece::Kind::kPooled, .bytes = bytes, .card = pool.blocks->card(), .blocks = pool.blocks};
  return CUDA_SUCCESS;
}

CUresult Allocate(CUdeviceptr* address, std::size_t bytes, CUmemoryPool handle, CUstream stream_handle,
                  bool is_current) {
  static Call call{"cuMemAllocAsync"};
  const Inside inside(call);
  if (inside.result() != CUDA_SUCCESS) return inside.result();
  if (address == nullptr) return CUDA_ERROR_INVALID_VALUE;
  Process& process = Process::This();
  const std::lock_guard lock(process.mutex);
  std::shared_ptr<Stream> stream;
  if (const CUresult found = process.FindStream(stream_handle, "cuMemAllocAsync", &stream);
      found != CUDA_SUCCESS) {
    return found;
  }
  const int card = stream->context->card;
  if (stream->capture != nullptr) {
    return AddAllocation(process, *stream->capture, card, bytes, address, nullptr);
  }
  const std::shared_ptr<Pool> pool = is_current ? CurrentPool(process, card) : FindPool(process, handle);
  return pool == nullptr ? CUDA_ERROR_INVALID_VALUE : AllocateFrom(process, *pool, bytes, address);
}

// The place of a switch that is on or off, or null.
int* SwitchOf(Pool& pool, CUmemPool_attribute attribute) {
  const auto at = pool.switches.find(attribute);
  return at == pool.switches.end() ? nullptr : &at->second;
}

CUresult SetCurrent(Process& process, int card, CUmemoryPool handle) {
  const std::shared_ptr<Pool> pool = FindPool(process, handle);
  if (card < 0 || pool == nullptr) return CUDA_ERROR_INVALID_VALUE;
  process.current_pools[card] = pool;
  return CUDA_SUCCESS;
}

}  // namespace
}  // namespace lgpu::fake_cuda

using namespace lgpu::fake_cuda;

FAKE_EXPORT CUresult cuMemAllocAsync(CUdeviceptr* address, std::size_t bytes, CUstream stream) {
  return Allocate(address, bytes, nullptr, stream, true);
}
FAKE_EXPORT CUresult cuMemAllocFromPoolAsync(CUdeviceptr* address, std::size_t bytes, CUmemoryPool pool,
                                             CUstream stream) {
  return Allocate(address, bytes, pool, stream, false);
}

FAKE_EXPORT CUresult cuMemFreeAsync(CUdeviceptr address, CUstream handle) {
  FAKE_ENTER("cuMemFreeAsync");
  std::shared_ptr<Stream> stream;
  if (const CUresult found = process.FindStream(handle, "cuMemFreeAsync", &stream); found != CUDA_SUCCESS) {
    return found;
  }
  if (address == 0) return CUDA_SUCCESS;
  const auto piece = process.pieces.find(address);
  if (stream->capture != nullptr) return AddFree(*stream->capture, address, nullptr);
  if (piece == process.pieces.end()) return CUDA_ERROR_INVALID_VALUE;
  if (piece->second.kind != Piece::Kind::kPooled) {
    process.FreePiece(piece);
    return CUDA_SUCCESS;
  }
  stream->Queue(
      {{}, [blocks = std::move(piece->second.blocks), address, bytes = piece->second.bytes]() mutable {
         const std::lock_guard hold(Process::This().mutex);
         blocks->Free(address, bytes);
         blocks.reset();  // the last of a pool that was destroyed takes it along
       }});
  process.pieces.erase(piece);
  return CUDA_SUCCESS;
}

FAKE_EXPORT CUresult cuMemPoolCreate(CUmemoryPool* handle, const CUmemPoolProps* properties) {
  FAKE_ENTER("cuMemPoolCreate");
  if (handle == nullptr || properties == nullptr) return CUDA_ERROR_INVALID_VALUE;
  // A managed pool without a location lies where it is used: here, on the first card.
  const bool is_anywhere = properties->allocType == CU_MEM_ALLOCATION_TYPE_MANAGED &&
                           properties->location.type != CU_MEM_LOCATION_TYPE_DEVICE;
  const bool is_host = !is_anywhere && IsHost(properties->location);
  const int card = is_anywhere || is_host ? 0 : CardOf(properties->location.id);
  if (card < 0 || (!is_anywhere && !is_host && properties->location.type != CU_MEM_LOCATION_TYPE_DEVICE)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const std::shared_ptr<Pool> pool =
      NewPool(process, card, is_host ? StateFile::Kind::kOnHost : StateFile::Kind::kMemory);
  pool->most = properties->maxSize;
  *handle = HandleOf(pool);
  return CUDA_SUCCESS;
}

// The memory goes with the last allocation of it.
FAKE_EXPORT CUresult cuMemPoolDestroy(CUmemoryPool handle) {
  FAKE_ENTER("cuMemPoolDestroy");
  const std::shared_ptr<Pool> pool = FindPool(process, handle);
  if (pool == nullptr) return CUDA_ERROR_INVALID_VALUE;
  for (const auto& [card, own] : process.default_pools) {
    if (own == pool) return CUDA_ERROR_INVALID_VALUE;
  }
  for (auto& [card, current] : process.current_pools) {
    if (current == pool) current.reset();
  }
  pool->blocks->Trim(process, 0);
  process.pools.erase(pool.get());
  return CUDA_SUCCESS;
}

FAKE_EXPORT CUresult cuMemPoolTrimTo(CUmemoryPool handle, std::size_t keep) {
  FAKE_ENTER("cuMemPoolTrimTo");
  const std::shared_ptr<Pool> pool = FindPool(process, handle);
  if (pool == nullptr) return CUDA_ERROR_INVALID_VALUE;
  pool->blocks->Trim(process, keep);
  return CUDA_SUCCESS;
}

FAKE_EXPORT CUresult cuMemPoolSetAttribute(CUmemoryPool handle, CUmemPool_attribute attribute, void* value) {
  FAKE_ENTER("cuMemPoolSetAttribute");
  const std::shared_ptr<Pool> pool = FindPool(process, handle);
  if (pool == nullptr || value == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (int* const place = SwitchOf(*pool, attribute); place != nullptr) {
    *place = *static_cast<int*>(value);
    return CUDA_SUCCESS;
  }
  const std::uint64_t number = *static_cast<cuuint64_t*>(value);
  if (attribute == CU_MEMPOOL_ATTR_RELEASE_THRESHOLD) {
    pool->threshold = number;
  } else if (attribute == CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH && number == 0) {
    pool->blocks->most_reserved = pool->blocks->reserved();
  } else if (attribute == CU_MEMPOOL_ATTR_USED_MEM_HIGH && number == 0) {
    pool->blocks->most_used = pool->blocks->used();
  } else {
    return CUDA_ERROR_INVALID_VALUE;
  }
  return CUDA_SUCCESS;
}

FAKE_EXPORT CUresult cuMemPoolGetAttribute(CUmemoryPool handle, CUmemPool_attribute attribute, void* value) {
  FAKE_ENTER("cuMemPoolGetAttribute");
  const std::shared_ptr<Pool> pool = FindPool(process, handle);
  if (pool == nullptr || value == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (const int* const place = SwitchOf(*pool, attribute); place != nullptr) {
    *static_cast<int*>(value) = *place;
    return CUDA_SUCCESS;
  }
  auto* const number = static_cast<cuuint64_t*>(value);
  switch (static_cast<int>(attribute)) {
    case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
      *number = pool->threshold;
      return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT:
      *number = pool->blocks->reserved();
      return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
      *number = pool->blocks->most_reserved;
      return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_USED_MEM_CURRENT:
      *number = pool->blocks->used();
      return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
      *number = pool->blocks->most_used;
      return CUDA_SUCCESS;
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}

FAKE_EXPORT CUresult cuMemPoolSetAccess(CUmemoryPool handle, const CUmemAccessDesc*, std::size_t) {
  FAKE_ENTER("cuMemPoolSetAccess");
  return FindPool(process, handle) == nullptr ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}
FAKE_EXPORT CUresult cuMemPoolGetAccess(CUmemAccess_flags* flags, CUmemoryPool handle, CUmemLocation*) {
  FAKE_ENTER("cuMemPoolGetAccess");
  if (flags == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  return FindPool(process, handle) == nullptr ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

FAKE_EXPORT CUresult cuDeviceGetDefaultMemPool(CUmemoryPool* pool, CUdevice device) {
  FAKE_ENTER("cuDeviceGetDefaultMemPool");
  if (pool == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (CardOf(device) < 0) return CUDA_ERROR_INVALID_DEVICE;
  *pool = HandleOf(DefaultPool(process, CardOf(device)));
  return CUDA_SUCCESS;
}
FAKE_EXPORT CUresult cuDeviceGetMemPool(CUmemoryPool* pool, CUdevice device) {
  FAKE_ENTER("cuDeviceGetMemPool");
  if (pool == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (CardOf(device) < 0) return CUDA_ERROR_INVALID_DEVICE;
  *pool = HandleOf(CurrentPool(process, CardOf(device)));
  return CUDA_SUCCESS;
}
FAKE_EXPORT CUresult cuDeviceSetMemPool(CUdevice device, CUmemoryPool pool) {
  FAKE_ENTER("cuDeviceSetMemPool");
  return SetCurrent(process, CardOf(device), pool);
}
FAKE_EXPORT CUresult cuMemGetDefaultMemPool(CUmemoryPool* pool, CUmemLocation* location,
                                            CUmemAllocationType) {
  if (pool == nullptr || location == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (location->type == CU_MEM_LOCATION_TYPE_DEVICE) return cuDeviceGetDefaultMemPool(pool, location->id);
  if (!IsHost(*location)) return CUDA_ERROR_NOT_SUPPORTED;
  FAKE_ENTER("cuMemGetDefaultMemPool");
  *pool = HandleOf(HostPool(process));
  return CUDA_SUCCESS;
}
FAKE_EXPORT CUresult cuMemGetMemPool(CUmemoryPool* pool, CUmemLocation* location, CUmemAllocationType type) {
  if (pool == nullptr || location == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (location->type == CU_MEM_LOCATION_TYPE_DEVICE) return cuDeviceGetMemPool(pool, location->id);
  return cuMemGetDefaultMemPool(pool, location, type);
}
FAKE_EXPORT CUresult cuMemSetMemPool(CUmemLocation* location, CUmemAllocationType, CUmemoryPool pool) {
  if (location == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (location->type != CU_MEM_LOCATION_TYPE_DEVICE) return CUDA_ERROR_NOT_SUPPORTED;
  return cuDeviceSetMemPool(location->id, pool);
}
