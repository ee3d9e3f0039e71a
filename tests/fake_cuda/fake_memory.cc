// The calls of the fake driver on physical memory and addresses. Rules that cuda.h states are cited by the
// call's name there.

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <set>
#include <string>

#include "tests/fake_cuda/fake_blocks.h"
#include "tests/fake_cuda/fake_calls.h"

namespace lgpu::fake_cuda {
namespace {

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

// cuda.h names no context for cuMemCreate: a process may make memory before, between and after its contexts.
CUresult PrepareCreate(Process& process, int card) {
  const std::uint64_t bytes = process.file->state().cards[card].create_bytes;
  if (bytes == 0 || process.HasContext(card) || process.create_memory.contains(card)) return CUDA_SUCCESS;
  std::shared_ptr<Allocation> made;
  const CUresult result = NewAllocation(process, card, bytes, StateFile::Kind::kMemory, &made);
  if (result == CUDA_SUCCESS) process.create_memory[card] = std::move(made);
  return result;
}

std::uint64_t AddHandle(Process& process, std::shared_ptr<Allocation> memory) {
  const std::uint64_t handle = process.next_handle++;
  process.handles[handle] = {std::move(memory), 1};
  return handle;
}

}  // namespace
}  // namespace lgpu::fake_cuda

using namespace lgpu::fake_cuda;

FAKE_EXPORT CUresult cuMemGetAllocationGranularity(std::size_t* granularity, const CUmemAllocationProp* prop,
                                                   CUmemAllocationGranularity_flags) {
  FAKE_ENTER("cuMemGetAllocationGranularity");
  if (granularity == nullptr || prop == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (prop->type != CU_MEM_ALLOCATION_TYPE_PINNED) return CUDA_ERROR_INVALID_VALUE;
  *granularity = kGranularity;
  return CUDA_SUCCESS;
}

FAKE_EXPORT CUresult cuMemCreate(CUmemGenericAllocationHandle* handle, std::size_t size,
                                 const CUmemAllocationProp* prop, unsigned long long flags) {
  FAKE_ENTER("cuMemCreate");
  if (handle == nullptr || prop == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const bool is_device = prop->location.type == CU_MEM_LOCATION_TYPE_DEVICE;
  // Memory of the host is a file of card 0 here, and takes none of it.
  const int card = CardOf(is_device ? prop->location.id : 0);
  const bool is_host = prop->location.type == CU_MEM_LOCATION_TYPE_HOST ||
                       prop->location.type == CU_MEM_LOCATION_TYPE_HOST_NUMA;
  if (card < 0 || !(is_device || is_host)) return CUDA_ERROR_INVALID_DEVICE;
  if (flags != 0 || !IsWhole(size)) {
    process.Break("granularity", "cuMemCreate of " + std::to_string(size) + " bytes");
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (is_device) {
    if (const CUresult prepared = PrepareCreate(process, card); prepared != CUDA_SUCCESS) return prepared;
  }
  std::shared_ptr<Allocation> allocation;
  const auto kind = is_device ? StateFile::Kind::kMemory : StateFile::Kind::kOnHost;
  if (const CUresult made = NewAllocation(process, card, size, kind, &allocation); made != CUDA_SUCCESS) {
    return made;
  }
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
  if (shareable == nullptr) return CUDA_ERROR_INVALID_VALUE;
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
  found->memory->is_shared = true;
  ::fcntl(fd.get(), F_SETFD, 0);  // whether the driver's is closed on exec is not documented
  *static_cast<int*>(shareable) = fd.Release();
  return CUDA_SUCCESS;
}

FAKE_EXPORT CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle* handle, void* shareable,
                                                    CUmemAllocationHandleType type) {
  FAKE_ENTER("cuMemImportFromShareableHandle");
  if (handle == nullptr || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) return CUDA_ERROR_INVALID_VALUE;
  const int fd = static_cast<int>(reinterpret_cast<std::intptr_t>(shareable));
  const int card = process.file->CardOfDescriptor(fd);
  if (card < 0) {
    const int result = process.file->state().foreign_descriptor;
    return result == 0 ? CUDA_ERROR_INVALID_VALUE : static_cast<CUresult>(result);
  }
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
  allocation->is_shared = true;
  *handle = AddHandle(process, std::move(allocation));
  return CUDA_SUCCESS;
}

FAKE_EXPORT CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle* handle, void* address) {
  FAKE_ENTER("cuMemRetainAllocationHandle");
  if (handle == nullptr) return CUDA_ERROR_INVALID_VALUE;
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
  if (prop == nullptr) return CUDA_ERROR_INVALID_VALUE;
  Handle* found = nullptr;
  if (const CUresult known = FindHandle(process, handle, "cuMemGetAllocationPropertiesFromHandle", &found);
      known != CUDA_SUCCESS) {
    return known;
  }
  *prop = {};
  prop->type = CU_MEM_ALLOCATION_TYPE_PINNED;
  prop->location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  prop->location.id = process.OrdinalOf(found->memory->card);
  return CUDA_SUCCESS;
}

FAKE_EXPORT CUresult cuMemAddressReserve(CUdeviceptr* address, std::size_t size, std::size_t alignment,
                                         CUdeviceptr, unsigned long long) {
  FAKE_ENTER("cuMemAddressReserve");
  if (address == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (!IsWhole(size) || alignment > kGranularity) return CUDA_ERROR_INVALID_VALUE;
  *address = ReserveAddresses(process, size);
  return *address == 0 ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
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
  UnmapMemory(process, address);
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
  if (!process.HasContext(found->memory->card)) {
    // Every known program has a primary context before it maps; without one the device is unknown.
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
  // Several mappings that lie side by side go at once, as llama.cpp's pool lets go of all that it has.
  std::uint64_t reached = address;
  auto last = process.mappings.find(address);
  while (last != process.mappings.end() && last->first == reached && reached < address + size) {
    reached += last->second.bytes;
    ++last;
  }
  if (size == 0 || reached != address + size) {
    // cuMemUnmap: "cannot unmap a sub-range of an address range mapped".
    process.Break("sub-range-unmap",
                  "cuMemUnmap of " + std::to_string(size) + " bytes that are no whole mappings");
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
  process.mappings.erase(process.mappings.find(address), last);
  return CUDA_SUCCESS;
}

FAKE_EXPORT CUresult cuMemSetAccess(CUdeviceptr address, std::size_t size, const CUmemAccessDesc* desc,
                                    std::size_t count) {
  FAKE_ENTER("cuMemSetAccess");
  if (desc == nullptr || count == 0) return CUDA_ERROR_INVALID_VALUE;
  std::set<int> cards;
  for (std::size_t i = 0; i < count; ++i) {
    const int card = CardOf(desc[i].location.id);
    if (card < 0 || desc[i].location.type != CU_MEM_LOCATION_TYPE_DEVICE) return CUDA_ERROR_INVALID_DEVICE;
    if (!process.HasContext(card)) {
      process.Break("no-context", "cuMemSetAccess in a process without a context of the card");
      return CUDA_ERROR_INVALID_CONTEXT;
    }
    cards.insert(card);
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
    for (const int card : cards) {
      if (at->second.memory->card != card && !process.file->state().peers) return CUDA_ERROR_INVALID_DEVICE;
      at->second.access[card] = desc->flags;
    }
  }
  return CUDA_SUCCESS;
}

FAKE_EXPORT CUresult cuMemGetAccess(unsigned long long* flags, const CUmemLocation* location,
                                    CUdeviceptr address) {
  FAKE_ENTER("cuMemGetAccess");
  if (flags == nullptr || location == nullptr) return CUDA_ERROR_INVALID_VALUE;
  auto mapping = process.mappings.upper_bound(address);
  if (mapping == process.mappings.begin()) return CUDA_ERROR_INVALID_VALUE;
  --mapping;
  const auto access = mapping->second.access.find(CardOf(location->id));
  *flags = access == mapping->second.access.end() ? 0 : static_cast<unsigned long long>(access->second);
  return CUDA_SUCCESS;
}
