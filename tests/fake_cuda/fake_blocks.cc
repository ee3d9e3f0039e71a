#include "tests/fake_cuda/fake_blocks.h"

#include <sys/mman.h>

#include <algorithm>
#include <utility>

#include "tests/fake_cuda/fake_calls.h"

namespace lgpu::fake_cuda {
namespace {

constexpr std::uint64_t kAlignment = 512;

std::uint64_t RoundUp(std::uint64_t bytes, std::uint64_t unit) { return (bytes + unit - 1) / unit * unit; }

// Reserved, aligned addresses.
char* ReserveHost(std::uint64_t bytes) {
  void* const raw = ::mmap(nullptr, bytes + kGranularity, PROT_NONE, kReserved, -1, 0);
  if (raw == MAP_FAILED) return nullptr;
  const auto start = reinterpret_cast<std::uint64_t>(raw);
  const std::uint64_t base = RoundUp(start, kGranularity);
  if (base != start) ::munmap(raw, base - start);
  ::munmap(reinterpret_cast<void*>(base + bytes), start + kGranularity - base);
  ::madvise(reinterpret_cast<void*>(base), bytes, MADV_DONTFORK);
  return reinterpret_cast<char*>(base);
}

}  // namespace

CUresult NewAllocation(Process& process, int card, std::uint64_t bytes, StateFile::Kind kind,
                       std::shared_ptr<Allocation>* made) {
  if (bytes > std::uint64_t{1} << 45) return CUDA_ERROR_OUT_OF_MEMORY;
  const UniqueFd memory = process.file->OpenMemory(card);
  if (!memory) return CUDA_ERROR_OPERATING_SYSTEM;
  const StateFile::Lock state(*process.file);
  const Slot* const slot = process.file->Allocate(card, RoundUp(bytes, kGranularity), kind, memory.get());
  if (slot == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
  *made = Allocation::Hold(memory.get(), *slot);
  return *made == nullptr ? CUDA_ERROR_OPERATING_SYSTEM : CUDA_SUCCESS;
}

CUdeviceptr ReserveAddresses(Process& process, std::uint64_t bytes, SeenBy seen_by) {
  char* const base = ReserveHost(bytes);
  char* const shadow = seen_by == SeenBy::kHostToo || base == nullptr ? base : ReserveHost(bytes);
  if (shadow == nullptr) {
    if (base != nullptr) ::munmap(base, bytes);
    return 0;
  }
  const auto address = reinterpret_cast<CUdeviceptr>(base);
  process.reservations[address] = {bytes, shadow};
  return address;
}

CUdeviceptr MapMemory(Process& process, std::shared_ptr<Allocation> memory, SeenBy seen_by, CUdeviceptr at) {
  const CUdeviceptr address = at != 0 ? at : ReserveAddresses(process, memory->bytes, seen_by);
  if (address == 0) return 0;
  // A second mapping of the same shared memory, which takes no descriptor.
  ::mremap(memory->data, 0, memory->bytes, MREMAP_MAYMOVE | MREMAP_FIXED,
           process.reservations[address].shadow);
  Mapping& mapping = process.mappings[address];
  mapping.bytes = memory->bytes;
  mapping.memory = std::move(memory);
  for (int card = 0; card < process.file->state().card_count; ++card) {
    mapping.access[card] = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  }
  return address;
}

void UnmapMemory(Process& process, CUdeviceptr address) {
  const auto reservation = process.reservations.find(address);
  process.mappings.erase(address);
  ::munmap(reinterpret_cast<void*>(address), reservation->second.bytes);
  if (reservation->second.shadow != reinterpret_cast<char*>(address)) {
    ::munmap(reservation->second.shadow, reservation->second.bytes);
  }
  process.reservations.erase(reservation);
}

Blocks::~Blocks() { Clear(Process::This()); }

CUresult Blocks::Grow(Process& process, std::uint64_t bytes) {
  std::shared_ptr<Allocation> memory;
  CUresult made = NewAllocation(process, card_, std::max(bytes, unit_), kind_, &memory);
  if (made == CUDA_ERROR_OUT_OF_MEMORY && bytes < unit_) {
    made = NewAllocation(process, card_, bytes, kind_, &memory);
  }
  if (made != CUDA_SUCCESS) return made;
  const std::uint64_t size = memory->bytes;
  const CUdeviceptr address = MapMemory(process, memory, SeenBy::kDevice);
  if (address == 0) return CUDA_ERROR_OUT_OF_MEMORY;
  blocks_[address] = {std::move(memory), {{0, size}}};
  reserved_ += size;
  most_reserved = std::max(most_reserved, reserved_);
  return CUDA_SUCCESS;
}

CUresult Blocks::Allocate(Process& process, std::uint64_t bytes, CUdeviceptr* address) {
  const std::uint64_t size = RoundUp(bytes, kAlignment);
  if (size < bytes) return CUDA_ERROR_OUT_OF_MEMORY;
  for (int attempt = 0; attempt < 2; ++attempt) {
    for (auto& [start, block] : blocks_) {
      const auto hole = std::find_if(block.free.begin(), block.free.end(),
                                     [size](const auto& candidate) { return candidate.second >= size; });
      if (hole == block.free.end()) continue;
      const auto [offset, available] = *hole;
      block.free.erase(hole);
      if (available > size) block.free[offset + size] = available - size;
      used_ += size;
      most_used = std::max(most_used, used_);
      *address = start + offset;
      return CUDA_SUCCESS;
    }
    if (const CUresult grown = attempt == 0 ? Grow(process, size) : CUDA_SUCCESS; grown != CUDA_SUCCESS) {
      return grown;
    }
  }
  return CUDA_ERROR_OUT_OF_MEMORY;
}

void Blocks::Free(CUdeviceptr address, std::uint64_t bytes) {
  auto& [start, block] = *std::prev(blocks_.upper_bound(address));
  const std::uint64_t size = RoundUp(bytes, kAlignment);
  auto hole = block.free.emplace(address - start, size).first;
  if (const auto next = std::next(hole);
      next != block.free.end() && next->first == hole->first + hole->second) {
    hole->second += next->second;
    block.free.erase(next);
  }
  if (hole != block.free.begin()) {
    const auto previous = std::prev(hole);
    if (previous->first + previous->second == hole->first) {
      previous->second += hole->second;
      block.free.erase(hole);
    }
  }
  used_ -= size;
}

void Blocks::Trim(Process& process, std::uint64_t keep) {
  for (auto at = blocks_.begin(); at != blocks_.end() && reserved_ > keep;) {
    const std::uint64_t bytes = at->second.memory->bytes;
    if (at->second.free.size() != 1 || at->second.free.begin()->second != bytes) {
      ++at;
      continue;
    }
    UnmapMemory(process, at->first);
    at = blocks_.erase(at);
    reserved_ -= bytes;
  }
}

void Blocks::Clear(Process& process) {
  for (const auto& [address, block] : blocks_) UnmapMemory(process, address);
  blocks_.clear();
  reserved_ = used_ = 0;
}

std::shared_ptr<Allocation> Blocks::Find(CUdeviceptr address, CUdeviceptr* start) const {
  const auto block = std::prev(blocks_.upper_bound(address));
  *start = block->first;
  return block->second.memory;
}

}  // namespace lgpu::fake_cuda
