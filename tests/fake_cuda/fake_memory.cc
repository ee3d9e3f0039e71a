// The calls of the fake driver on physical memory and addresses. Rules that cuda.h states are cited by the
// call's name there.

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <string>

#include "tests/fake_cuda/fake_calls.h"

namespace lgpu::fake_cuda {
namespace {

constexpr int kReserved = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;

bool IsWhole(std::uint64_t number) { return number != 0 && number % kGranularity == 0; }

CUresult FindHandle(Process& process, std::uint64_t handle, const char* call, Handle** found) {
  const auto at = process.handles.find(handle);
  if (at != process.handles.end()) {
    *found = &at->second;
    return CUDA_SUCCESS;
  }
  // cuMemRelease: "If handle is not a valid handle the behavior is undefined."
  process.Break("use-after-release",
                std::string(call) +
                    (process.dead_handles.count(handle) != 0 ? " of a released handle" : " of no handle"));
  return CUDA_ERROR_INVALID_VALUE;
}

std::uint64_t AddHandle(Process& process, std::shared_ptr<Allocation> memory) {
  const std::uint64_t handle = process.next_handle++;
  process.handles[handle] = {std::move(memory), 1};
  return handle;
}

// Reserved, aligned addresses.
char* ReserveHost(std::uint64_t bytes) {
  void* const raw = ::mmap(nullptr, bytes + kGranularity, PROT_NONE, kReserved, -1, 0);
  if (raw == MAP_FAILED) return nullptr;
  const auto start = reinterpret_cast<std::uint64_t>(raw);
  const std::uint64_t base = (start + kGranularity - 1) / kGranularity * kGranularity;
  if (base != start) ::munmap(raw, base - start);
  ::munmap(reinterpret_cast<void*>(base + bytes), start + kGranularity - base);
  ::madvise(reinterpret_cast<void*>(base), bytes, MADV_DONTFORK);
  return reinterpret_cast<char*>(base);
}

// A context of the card in this process, which mapping takes.
bool HasContext(Process& process, int card) {
  const auto context = process.contexts.find(card);
  return context != process.contexts.end() && context->second->retained > 0;
}

}  // namespace
}  // namespace lgpu::fake_cuda

using namespace lgpu::fake_cuda;

FAKE_EXPORT CUresult cuMemGetAllocationGranularity(std::size_t* granularity, const CUmemAllocationProp* prop,
                                                   CUmemAllocationGranularity_flags) {
  FAKE_ENTER("cuMemGetAllocationGranularity");
  if (prop->type != CU_MEM_ALLOCATION_TYPE_PINNED) return CUDA_ERROR_INVALID_VALUE;
  *granularity = kGranularity;
  return CUDA_SUCCESS;
}

FAKE_EXPORT CUresult cuMemCreate(CUmemGenericAllocationHandle* handle, std::size_t size,
                                 const CUmemAllocationProp* prop, unsigned long long flags) {
  FAKE_ENTER("cuMemCreate");
  const int card = CardOf(prop->location.id);
  if (card < 0 || prop->location.type != CU_MEM_LOCATION_TYPE_DEVICE) return CUDA_ERROR_INVALID_DEVICE;
  if (flags != 0 || !IsWhole(size)) {
    process.Break("granularity", "cuMemCreate of " + std::to_string(size) + " bytes");
    return CUDA_ERROR_INVALID_VALUE;
  }
  const lgpu::UniqueFd memory = process.file->OpenMemory(card);
  if (!memory) return CUDA_ERROR_OPERATING_SYSTEM;
  std::shared_ptr<Allocation> allocation;
  {
    const StateFile::Lock state(*process.file);
    const Slot* const slot = process.file->Allocate(card, size, false, memory.get());
    if (slot == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
    allocation = Allocation::Hold(memory.get(), *slot);
  }
  if (allocation == nullptr) return CUDA_ERROR_OPERATING_SYSTEM;
  *handle = AddHandle(process, std::move(allocation));
  return CUDA_SUCCESS;
}

FAKE_EXPORT CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
  FAKE_ENTER("cuMemRelease");
  Handle* found = nullptr;
  if (const CUresult known = FindHandle(process, handle, "cuMemRelease", &found); known != CUDA_SUCCESS) {
    return known;
  }
  if (--found->references == 0) {
    process.handles.erase(handle);
    process.dead_handles.insert(handle);
  }
  return CUDA_SUCCESS;
}

FAKE_EXPORT CUresult cuMemExportToShareableHandle(void* shareable, CUmemGenericAllocationHandle handle,
                                                  CUmemAllocationHandleType type, unsigned long long flags) {
  FAKE_ENTER("cuMemExportToShareableHandle");
  Handle* found = nullptr;
  if (const CUresult known = FindHandle(process, handle, "cuMemExportToShareableHandle", &found);
      known != CUDA_SUCCESS) {
    return known;
  }
  if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  lgpu::UniqueFd fd = process.file->OpenMemory(found->memory->card);
  // A real driver's word for it is not known; this is the most misleading one.
  if (!fd) return CUDA_ERROR_OUT_OF_MEMORY;
  if (!StateFile::LockRange(fd.get(), found->memory->offset, found->memory->bytes) ||
      ::lseek(fd.get(), static_cast<off_t>(found->memory->offset), SEEK_SET) < 0) {
    return CUDA_ERROR_OPERATING_SYSTEM;
  }
  ::fcntl(fd.get(), F_SETFD, 0);  // whether the driver's is closed on exec is not documented
  *static_cast<int*>(shareable) = fd.Release();
  return CUDA_SUCCESS;
}

FAKE_EXPORT CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle* handle, void* shareable,
                                                    CUmemAllocationHandleType type) {
  FAKE_ENTER("cuMemImportFromShareableHandle");
  if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) return CUDA_ERROR_INVALID_VALUE;
  const int fd = static_cast<int>(reinterpret_cast<std::intptr_t>(shareable));
  const int card = process.file->CardOfDescriptor(fd);
  if (card < 0) return CUDA_ERROR_INVALID_VALUE;
  const off_t offset = ::lseek(fd, 0, SEEK_CUR);
  const lgpu::UniqueFd memory = process.file->OpenMemory(card);
  if (offset < 0 || !memory) return CUDA_ERROR_OPERATING_SYSTEM;
  std::shared_ptr<Allocation> allocation;
  {
    const StateFile::Lock state(*process.file);
    const Slot* const slot = process.file->FindSlot(card, static_cast<std::uint64_t>(offset));
    if (slot == nullptr || !StateFile::LockRange(memory.get(), slot->offset, slot->bytes)) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    allocation = Allocation::Hold(memory.get(), *slot);
  }
  if (allocation == nullptr) return CUDA_ERROR_OPERATING_SYSTEM;
  *handle = AddHandle(process, std::move(allocation));
  return CUDA_SUCCESS;
}

FAKE_EXPORT CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle* handle, void* address) {
  FAKE_ENTER("cuMemRetainAllocationHandle");
  auto mapping = process.mappings.upper_bound(reinterpret_cast<std::uint64_t>(address));
  if (mapping == process.mappings.begin()) return CUDA_ERROR_INVALID_VALUE;
  --mapping;
  for (auto& [number, known] : process.handles) {
    if (known.memory == mapping->second.memory) {
      ++known.references;
      *handle = number;
      return CUDA_SUCCESS;
    }
  }
  *handle = AddHandle(process, mapping->second.memory);
  return CUDA_SUCCESS;
}

FAKE_EXPORT CUresult cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp* prop,
                                                            CUmemGenericAllocationHandle handle) {
  FAKE_ENTER("cuMemGetAllocationPropertiesFromHandle");
  Handle* found = nullptr;
  if (const CUresult known = FindHandle(process, handle, "cuMemGetAllocationPropertiesFromHandle", &found);
      known != CUDA_SUCCESS) {
    return known;
  }
  *prop = {};
  prop->type = CU_MEM_ALLOCATION_TYPE_PINNED;
  prop->location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  prop->location.id = -1;
  for (std::size_t i = 0; i < process.cards.size(); ++i) {
    if (process.cards[i] == found->memory->card) prop->location.id = static_cast<int>(i);
  }
  return CUDA_SUCCESS;
}

FAKE_EXPORT CUresult cuMemAddressReserve(CUdeviceptr* address, std::size_t size, std::size_t alignment,
                                         CUdeviceptr, unsigned long long) {
  FAKE_ENTER("cuMemAddressReserve");
  if (!IsWhole(size) || alignment > kGranularity) return CUDA_ERROR_INVALID_VALUE;
  char* const base = ReserveHost(size);
  char* const shadow = base == nullptr ? nullptr : ReserveHost(size);
  if (shadow == nullptr) {
    if (base != nullptr) ::munmap(base, size);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  *address = reinterpret_cast<std::uint64_t>(base);
  process.reservations[*address] = {size, shadow};
  return CUDA_SUCCESS;
}

FAKE_EXPORT CUresult cuMemAddressFree(CUdeviceptr address, std::size_t size) {
  FAKE_ENTER("cuMemAddressFree");
  const auto reservation = process.reservations.find(address);
  if (reservation == process.reservations.end() || reservation->second.bytes != size) {
    // cuMemAddressFree: "The size must match what was given to memAddressReserve and the ptr given must
    // match".
    process.Break("partial-address-free", "cuMemAddressFree of no whole reservation");
    return CUDA_ERROR_INVALID_VALUE;
  }
  const auto first = process.mappings.lower_bound(address);
  if (first != process.mappings.end() && first->first < address + size) {
    process.Break("free-of-mapped-range", "cuMemAddressFree while memory is mapped there");
    return CUDA_ERROR_INVALID_VALUE;
  }
  ::munmap(reinterpret_cast<void*>(address), size);
  ::munmap(reservation->second.shadow, size);
  process.reservations.erase(reservation);
  return CUDA_SUCCESS;
}

FAKE_EXPORT CUresult cuMemMap(CUdeviceptr address, std::size_t size, std::size_t offset,
                              CUmemGenericAllocationHandle handle, unsigned long long flags) {
  FAKE_ENTER("cuMemMap");
  Handle* found = nullptr;
  if (const CUresult known = FindHandle(process, handle, "cuMemMap", &found); known != CUDA_SUCCESS) {
    return known;
  }
  if (offset != 0) {
    // cuMemMap: "Note: currently must be zero".
    process.Break("non-zero-map-offset", "cuMemMap with offset " + std::to_string(offset));
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (!HasContext(process, found->memory->card)) {
    // Every known program has a primary context before it maps; without one nobody knows.
    process.Break("no-context", "cuMemMap in a process without a context of the card");
    return CUDA_ERROR_INVALID_CONTEXT;
  }
  auto reservation = process.reservations.upper_bound(address);
  if (flags != 0 || !IsWhole(size) || address % kGranularity != 0 || size > found->memory->bytes ||
      reservation == process.reservations.begin()) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  --reservation;
  if (address + size > reservation->first + reservation->second.bytes) return CUDA_ERROR_INVALID_VALUE;
  const auto next = process.mappings.lower_bound(address);
  const bool hits_next = next != process.mappings.end() && next->first < address + size;
  const bool hits_previous =
      next != process.mappings.begin() && std::prev(next)->first + std::prev(next)->second.bytes > address;
  // cuMemMap: "can only create mappings on VA range reservations that are not currently mapped".
  if (hits_next || hits_previous) return CUDA_ERROR_INVALID_VALUE;
  char* const shadow = reservation->second.shadow + (address - reservation->first);
  // A second mapping of the same shared memory, which takes no descriptor.
  if (::mremap(found->memory->data, 0, size, MREMAP_MAYMOVE | MREMAP_FIXED, shadow) == MAP_FAILED) {
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  process.mappings[address] = {found->memory, size, {}};
  return CUDA_SUCCESS;
}

FAKE_EXPORT CUresult cuMemUnmap(CUdeviceptr address, std::size_t size) {
  FAKE_ENTER("cuMemUnmap");
  const auto mapping = process.mappings.find(address);
  if (mapping == process.mappings.end() || mapping->second.bytes != size) {
    // cuMemUnmap: "cannot unmap a sub-range of an address range mapped".
    process.Break("sub-range-unmap", "cuMemUnmap of " + std::to_string(size) + " bytes that are no mapping");
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (process.IsInUse(address, size)) {
    // A kernel that meets unmapped memory dies later, and its context with it; this call says nothing.
    process.Break("unmap-under-work", "cuMemUnmap while queued work touches the mapping");
    process.sticky = CUDA_ERROR_ILLEGAL_ADDRESS;
    return CUDA_SUCCESS;
  }
  auto reservation = process.reservations.upper_bound(address);
  --reservation;
  char* const shadow = reservation->second.shadow + (address - reservation->first);
  ::mmap(shadow, size, PROT_NONE, kReserved | MAP_FIXED, -1, 0);
  ::madvise(shadow, size, MADV_DONTFORK);
  process.mappings.erase(mapping);
  return CUDA_SUCCESS;
}

FAKE_EXPORT CUresult cuMemSetAccess(CUdeviceptr address, std::size_t size, const CUmemAccessDesc* desc,
                                    std::size_t count) {
  FAKE_ENTER("cuMemSetAccess");
  if (count != 1) return CUDA_ERROR_INVALID_VALUE;
  const int card = CardOf(desc->location.id);
  if (card < 0 || desc->location.type != CU_MEM_LOCATION_TYPE_DEVICE) return CUDA_ERROR_INVALID_DEVICE;
  if (!HasContext(process, card)) {
    process.Break("no-context", "cuMemSetAccess in a process without a context of the card");
    return CUDA_ERROR_INVALID_CONTEXT;
  }
  std::uint64_t reached = address;
  for (auto at = process.mappings.find(address); reached < address + size; ++at) {
    if (at == process.mappings.end() || at->first != reached) {
      // cuMemSetAccess: "must be a fully mapped address range containing all allocations".
      process.Break("access-of-partial-range", "cuMemSetAccess of a range that is not all whole mappings");
      return CUDA_ERROR_INVALID_VALUE;
    }
    reached += at->second.bytes;
  }
  if (reached != address + size || size == 0) {
    process.Break("access-of-partial-range", "cuMemSetAccess that ends inside a mapping");
    return CUDA_ERROR_INVALID_VALUE;
  }
  for (auto at = process.mappings.find(address); at != process.mappings.end() && at->first < address + size;
       ++at) {
    if (at->second.memory->card != card && !process.file->state().peers) return CUDA_ERROR_INVALID_DEVICE;
    at->second.access[card] = desc->flags;
  }
  return CUDA_SUCCESS;
}

FAKE_EXPORT CUresult cuMemHostAlloc(void** address, std::size_t size, unsigned flags) {
  FAKE_ENTER("cuMemHostAlloc");
  Context* context = nullptr;
  if (const CUresult current = process.CurrentContext(&context, "cuMemHostAlloc"); current != CUDA_SUCCESS) {
    return current;
  }
  if (size == 0 || (flags & ~unsigned{CU_MEMHOSTALLOC_PORTABLE}) != 0) return CUDA_ERROR_INVALID_VALUE;
  void* const data = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
  process.host_memory[reinterpret_cast<std::uint64_t>(data)] = size;
  *address = data;
  return CUDA_SUCCESS;
}

FAKE_EXPORT CUresult cuMemFreeHost(void* address) {
  FAKE_ENTER("cuMemFreeHost");
  Context* context = nullptr;
  if (const CUresult current = process.CurrentContext(&context, "cuMemFreeHost"); current != CUDA_SUCCESS) {
    return current;
  }
  const auto known = process.host_memory.find(reinterpret_cast<std::uint64_t>(address));
  if (known == process.host_memory.end()) return CUDA_ERROR_INVALID_VALUE;
  if (process.IsInUse(known->first, known->second)) {
    process.Break("free-under-work", "cuMemFreeHost while queued work reads or writes the memory");
  }
  ::munmap(address, known->second);
  process.host_memory.erase(known);
  return CUDA_SUCCESS;
}

// What programs without lgpu use, for the benchmarks: an allocation of its own, mapped at once.
FAKE_EXPORT CUresult cuMemAlloc_v2(CUdeviceptr* address, std::size_t size) {
  const std::size_t bytes = (size + kGranularity - 1) / kGranularity * kGranularity;
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  CUmemAccessDesc access{};
  access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  CUmemGenericAllocationHandle handle = 0;
  CUresult result = cuMemCreate(&handle, bytes, &properties, 0);
  if (result != CUDA_SUCCESS) return result;
  result = cuMemAddressReserve(address, bytes, 0, 0, 0);
  if (result == CUDA_SUCCESS) result = cuMemMap(*address, bytes, 0, handle, 0);
  if (result == CUDA_SUCCESS) result = cuMemSetAccess(*address, bytes, &access, 1);
  cuMemRelease(handle);  // the mapping keeps it
  return result;
}

FAKE_EXPORT CUresult cuMemFree_v2(CUdeviceptr address) {
  std::uint64_t bytes = 0;
  {
    FAKE_ENTER("cuMemFree");
    const auto reservation = process.reservations.find(address);
    if (reservation == process.reservations.end()) return CUDA_ERROR_INVALID_VALUE;
    bytes = reservation->second.bytes;
  }
  const CUresult result = cuMemUnmap(address, bytes);
  return result == CUDA_SUCCESS ? cuMemAddressFree(address, bytes) : result;
}
