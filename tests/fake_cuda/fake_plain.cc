// The calls of the fake driver on memory that has an address at once: plain, pitched, managed, of the host,
// and shared by the old kind of handle.

#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <string>

#include "tests/fake_cuda/fake_blocks.h"
#include "tests/fake_cuda/fake_calls.h"

namespace lgpu::fake_cuda {
namespace {

// Smaller pieces are cut from blocks of this size, as far as is known of the real driver.
constexpr std::uint64_t kSmall = kGranularity;
constexpr std::uint64_t kPitch = 512;

CUresult AllocatePlain(Process& process, Context* context, std::uint64_t bytes, CUdeviceptr* address) {
  if (bytes == 0 || address == nullptr) return CUDA_ERROR_INVALID_VALUE;
  Piece piece{.bytes = bytes, .card = context->card, .context = context->owner()};
  if (bytes < kSmall) {
    if (const CUresult cut = context->owner()->blocks->Allocate(process, bytes, address);
        cut != CUDA_SUCCESS) {
      return cut;
    }
    piece.blocks = context->owner()->blocks;
  } else {
    std::shared_ptr<Allocation> memory;
    if (const CUresult made = NewAllocation(process, context->card, bytes, StateFile::Kind::kMemory, &memory);
        made != CUDA_SUCCESS) {
      return made;
    }
    *address = piece.mapping = MapMemory(process, std::move(memory), SeenBy::kDevice);
    if (*address == 0) return CUDA_ERROR_OUT_OF_MEMORY;
  }
  process.pieces[*address] = std::move(piece);
  return CUDA_SUCCESS;
}

CUresult AllocateHost(void** address, std::size_t size, unsigned flags, const char* name) {
  static Call call{"cuMemHostAlloc"};
  const Inside inside(call);
  if (inside.result() != CUDA_SUCCESS) return inside.result();
  Process& process = Process::This();
  const std::lock_guard lock(process.mutex);
  Context* context = nullptr;
  if (const CUresult current = process.CurrentContext(&context, name); current != CUDA_SUCCESS) {
    return current;
  }
  constexpr unsigned kKnown =
      CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP | CU_MEMHOSTALLOC_WRITECOMBINED;
  if (size == 0 || (flags & ~kKnown) != 0) return CUDA_ERROR_INVALID_VALUE;
  void* const data = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
  process.host_memory[reinterpret_cast<std::uint64_t>(data)] = size;
  *address = data;
  return CUDA_SUCCESS;
}

/// The contents of a handle of cuIpcGetMemHandle.
struct SharedPiece {
  std::uint64_t slot, offset, bytes;
  std::int32_t card;
};
static_assert(sizeof(SharedPiece) <= sizeof(CUipcMemHandle));

}  // namespace
}  // namespace lgpu::fake_cuda

using namespace lgpu::fake_cuda;

FAKE_EXPORT CUresult cuMemGetInfo_v2(std::size_t* free, std::size_t* total) {
  FAKE_ENTER_CONTEXT("cuMemGetInfo");
  const StateFile::Lock state(*process.file);
  process.file->Sweep();
  const Card& card = process.file->state().cards[context->card];
  // Either may be null: OptiX asks for the total alone.
  if (free != nullptr) *free = card.total - card.used;
  if (total != nullptr) *total = card.total;
  return CUDA_SUCCESS;
}

FAKE_EXPORT CUresult cuMemAlloc_v2(CUdeviceptr* address, std::size_t size) {
  FAKE_ENTER_CONTEXT("cuMemAlloc");
  return AllocatePlain(process, context, size, address);
}

FAKE_EXPORT CUresult cuMemAllocPitch_v2(CUdeviceptr* address, std::size_t* pitch, std::size_t width,
                                        std::size_t height, unsigned element) {
  FAKE_ENTER_CONTEXT("cuMemAllocPitch");
  const bool has_element = element == 4 || element == 8 || element == 16;
  if (width == 0 || height == 0 || !has_element || pitch == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *pitch = (width + kPitch - 1) / kPitch * kPitch;
  return AllocatePlain(process, context, *pitch * height, address);
}

// Managed memory may exceed the card: an allocation that has no room there is on the host.
FAKE_EXPORT CUresult cuMemAllocManaged(CUdeviceptr* address, std::size_t size, unsigned flags) {
  FAKE_ENTER_CONTEXT("cuMemAllocManaged");
  const bool is_attached = flags == CU_MEM_ATTACH_GLOBAL || flags == CU_MEM_ATTACH_HOST;
  if (size == 0 || address == nullptr || !is_attached) return CUDA_ERROR_INVALID_VALUE;
  std::shared_ptr<Allocation> memory;
  CUresult made = NewAllocation(process, context->card, size, StateFile::Kind::kMemory, &memory);
  if (made == CUDA_ERROR_OUT_OF_MEMORY) {
    made = NewAllocation(process, context->card, size, StateFile::Kind::kOnHost, &memory);
  }
  if (made != CUDA_SUCCESS) return made;
  *address = MapMemory(process, std::move(memory), SeenBy::kHostToo);
  if (*address == 0) return CUDA_ERROR_OUT_OF_MEMORY;
  process.pieces[*address] = {.kind = Piece::Kind::kManaged,
                              .bytes = size,
                              .card = context->card,
                              .context = context->owner(),
                              .mapping = *address};
  return CUDA_SUCCESS;
}

FAKE_EXPORT CUresult cuMemFree_v2(CUdeviceptr address) {
  FAKE_ENTER_CONTEXT("cuMemFree");
  if (address == 0) return CUDA_SUCCESS;
  const auto found = process.pieces.find(address);
  if (found == process.pieces.end() || found->second.kind == Piece::Kind::kImported) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  // It waits for the work that uses the memory.
  while (process.IsInUse(address, found->second.bytes)) {
    lock.unlock();
    ::usleep(100);
    lock.lock();
  }
  process.FreePiece(found);
  return CUDA_SUCCESS;
}

FAKE_EXPORT CUresult cuMemGetAddressRange_v2(CUdeviceptr* base, std::size_t* size, CUdeviceptr address) {
  FAKE_ENTER_CONTEXT("cuMemGetAddressRange");
  const auto piece = process.FindPiece(address);
  auto mapping = process.mappings.upper_bound(address);
  const bool is_mapped =
      mapping != process.mappings.begin() && (--mapping, address < mapping->first + mapping->second.bytes);
  if (piece == process.pieces.end() && !is_mapped) {
    auto host = process.host_memory.upper_bound(address);
    if (host == process.host_memory.begin() || (--host, address - host->first >= host->second)) {
      return CUDA_ERROR_NOT_FOUND;
    }
    if (base != nullptr) *base = host->first;
    if (size != nullptr) *size = host->second;
    return CUDA_SUCCESS;
  }
  if (base != nullptr) *base = piece != process.pieces.end() ? piece->first : mapping->first;
  if (size != nullptr) *size = piece != process.pieces.end() ? piece->second.bytes : mapping->second.bytes;
  return CUDA_SUCCESS;
}

FAKE_EXPORT CUresult cuMemHostAlloc(void** address, std::size_t size, unsigned flags) {
  return AllocateHost(address, size, flags, "cuMemHostAlloc");
}
FAKE_EXPORT CUresult cuMemAllocHost_v2(void** address, std::size_t size) {
  return AllocateHost(address, size, 0, "cuMemAllocHost");
}

FAKE_EXPORT CUresult cuMemFreeHost(void* address) {
  FAKE_ENTER_CONTEXT("cuMemFreeHost");
  const auto known = process.host_memory.find(reinterpret_cast<std::uint64_t>(address));
  if (known == process.host_memory.end()) return CUDA_ERROR_INVALID_VALUE;
  if (process.IsInUse(known->first, known->second)) {
    process.Break("free-under-work", "cuMemFreeHost while queued work reads or writes the memory");
  }
  ::munmap(address, known->second);
  process.host_memory.erase(known);
  return CUDA_SUCCESS;
}

FAKE_EXPORT CUresult cuMemHostRegister_v2(void* address, std::size_t size, unsigned) {
  FAKE_ENTER_CONTEXT("cuMemHostRegister");
  const bool is_new = process.registered.emplace(reinterpret_cast<std::uint64_t>(address), size).second;
  return is_new ? CUDA_SUCCESS : CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
}
FAKE_EXPORT CUresult cuMemHostUnregister(void* address) {
  FAKE_ENTER_CONTEXT("cuMemHostUnregister");
  return process.registered.erase(reinterpret_cast<std::uint64_t>(address)) == 1
             ? CUDA_SUCCESS
             : CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
}

FAKE_EXPORT CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr* address, void* host, unsigned) {
  FAKE_ENTER_CONTEXT("cuMemHostGetDevicePointer");
  *address = reinterpret_cast<CUdeviceptr>(host);
  return process.IsPageLocked(host) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
FAKE_EXPORT CUresult cuMemHostGetFlags(unsigned* flags, void* host) {
  FAKE_ENTER_CONTEXT("cuMemHostGetFlags");
  *flags = CU_MEMHOSTALLOC_DEVICEMAP;
  return process.IsPageLocked(host) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

FAKE_EXPORT CUresult cuIpcGetMemHandle(CUipcMemHandle* handle, CUdeviceptr address) {
  FAKE_ENTER_CONTEXT("cuIpcGetMemHandle");
  const auto piece = process.FindPiece(address);
  // "cuIpcGetMemHandle" is for memory of cuMemAlloc.
  if (piece == process.pieces.end() || piece->second.kind != Piece::Kind::kPlain) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  CUdeviceptr start = piece->second.mapping;
  const std::shared_ptr<Allocation> memory = piece->second.blocks != nullptr
                                                 ? piece->second.blocks->Find(piece->first, &start)
                                                 : process.mappings[start].memory;
  memory->is_shared = true;
  const SharedPiece shared{memory->offset, piece->first - start, piece->second.bytes, memory->card};
  std::memset(handle, 0, sizeof(*handle));
  std::memcpy(handle, &shared, sizeof(shared));
  return CUDA_SUCCESS;
}

FAKE_EXPORT CUresult cuIpcOpenMemHandle_v2(CUdeviceptr* address, CUipcMemHandle handle, unsigned) {
  FAKE_ENTER_CONTEXT("cuIpcOpenMemHandle");
  if (address == nullptr) return CUDA_ERROR_INVALID_VALUE;
  SharedPiece shared{};
  std::memcpy(&shared, &handle, sizeof(shared));
  if (shared.card < 0 || shared.card >= process.file->state().card_count) return CUDA_ERROR_INVALID_HANDLE;
  // "cuIpcCloseMemHandle decrements the reference count": a handle that is open already is opened once more.
  for (auto& [known, piece] : process.pieces) {
    if (piece.kind != Piece::Kind::kImported || piece.slot != shared.slot ||
        piece.context != context->owner() || known - piece.mapping != shared.offset) {
      continue;
    }
    ++piece.opened;
    *address = known;
    return CUDA_SUCCESS;
  }
  std::shared_ptr<Allocation> memory;
  {
    const lgpu::UniqueFd file = process.file->OpenMemory(shared.card);
    const StateFile::Lock state(*process.file);
    const Slot* const slot = process.file->FindSlot(shared.card, shared.slot);
    if (slot == nullptr || !StateFile::LockRange(file.get(), slot->offset, slot->bytes)) {
      return CUDA_ERROR_INVALID_HANDLE;
    }
    memory = Allocation::Hold(file.get(), *slot);
    if (memory != nullptr) memory->is_shared = true;
  }
  const CUdeviceptr start = memory == nullptr ? 0 : MapMemory(process, std::move(memory), SeenBy::kDevice);
  if (start == 0) return CUDA_ERROR_MAP_FAILED;
  *address = start + shared.offset;
  process.pieces[*address] = {.kind = Piece::Kind::kImported,
                              .bytes = shared.bytes,
                              .card = shared.card,
                              .context = context->owner(),
                              .mapping = start,
                              .slot = shared.slot};
  return CUDA_SUCCESS;
}
FAKE_EXPORT CUresult cuIpcOpenMemHandle(CUdeviceptr* address, CUipcMemHandle handle, unsigned flags) {
  return cuIpcOpenMemHandle_v2(address, handle, flags);
}

FAKE_EXPORT CUresult cuIpcCloseMemHandle(CUdeviceptr address) {
  FAKE_ENTER_CONTEXT("cuIpcCloseMemHandle");
  const auto piece = process.pieces.find(address);
  if (piece == process.pieces.end() || piece->second.kind != Piece::Kind::kImported) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (--piece->second.opened == 0) process.FreePiece(piece);
  return CUDA_SUCCESS;
}
