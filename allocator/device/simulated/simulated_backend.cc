#include "allocator/device/simulated/simulated_backend.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "allocator/device/backend_checks.h"
#include "allocator/device/simulated/memfd.h"
#include "allocator/device/simulated/memfd_holders.h"
#include "allocator/device/simulated/simulated_backend_impl.h"
#include "lgpu/refusal.h"
#include "lgpu/status.h"

namespace lgpu {

namespace {

std::vector<std::uint64_t> Sorted(std::span<const std::uint64_t> numbers) {
  std::vector<std::uint64_t> sorted(numbers.begin(), numbers.end());
  std::sort(sorted.begin(), sorted.end());
  return sorted;
}

}  // namespace

absl::Status SimulatedBackend::CheckAlive() const {
  return epoch_.IsForked() ? ForkedBackendError() : absl::OkStatus();
}

absl::Status SimulatedBackend::CheckDevice(int device) const {
  LGPU_RETURN_IF_ERROR(CheckAlive());
  return CheckDeviceIndex(device, options_.devices.size());
}

absl::Status SimulatedBackend::CheckChunkSize(int device, Bytes bytes) const {
  LGPU_RETURN_IF_ERROR(CheckDevice(device));
  return CheckWholeUnits("a chunk", bytes, options_.devices[static_cast<std::size_t>(device)].granularity);
}

// ---- physical memory

absl::StatusOr<MemoryHandle> SimulatedBackend::Create(int device, Bytes bytes) {
  LGPU_RETURN_IF_ERROR(CheckChunkSize(device, bytes));
  const PhysicalDevice& about = options_.devices[static_cast<std::size_t>(device)];
  if (bytes > about.total) {
    Refusal refusal;
    refusal.reason = RefusalReason::kBackend;
    refusal.what = "chunk of device memory";
    refusal.asked = bytes;
    refusal.card = absl::StrCat("GPU ", device, " (simulated)");
    refusal.card_total = about.total;
    return RefusalStatus(refusal);
  }
  LGPU_ASSIGN_OR_RETURN(UniqueFd fd, CreateChunkMemfd(bytes, options_.sparse, ChunkMemfdName(about.uuid)));
  return memory_.Insert(std::make_shared<ChunkFile>(ChunkFile{std::move(fd), device, bytes}));
}

absl::StatusOr<ExportedFd> SimulatedBackend::Export(MemoryHandle memory) {
  LGPU_RETURN_IF_ERROR(CheckAlive());
  LGPU_ASSIGN_OR_RETURN(std::shared_ptr<ChunkFile> file, memory_.Find(memory));
  const UniqueFd* const fd = &file->fd;
  return ExportedFd(std::move(file), fd);
}

absl::StatusOr<MemoryHandle> SimulatedBackend::Import(int device, UniqueFd fd, Bytes bytes) {
  LGPU_RETURN_IF_ERROR(CheckChunkSize(device, bytes));
  LGPU_RETURN_IF_ERROR(CheckChunkMemfd(fd.get(), bytes));
  return memory_.Insert(std::make_shared<ChunkFile>(ChunkFile{std::move(fd), device, bytes}));
}

absl::Status SimulatedBackend::Release(MemoryHandle memory) {
  LGPU_RETURN_IF_ERROR(CheckAlive());
  return memory_.RemoveUnmapped(memory).status();
}

absl::Status SimulatedBackend::Reclaim(MemoryHandle memory) {
  LGPU_RETURN_IF_ERROR(CheckAlive());
  LGPU_ASSIGN_OR_RETURN(const std::shared_ptr<ChunkFile> file, memory_.FindUnmapped(memory));
  // The reference stays until the pages are gone, so that the caller may try again after an error.
  LGPU_RETURN_IF_ERROR(EmptyChunkMemfd(file->fd.get()));
  return memory_.RemoveUnmapped(memory).status();
}

std::uint64_t SimulatedBackend::Identity(MemoryHandle memory) {
  if (!CheckAlive().ok()) return 0;
  const absl::StatusOr<std::shared_ptr<ChunkFile>> file = memory_.Find(memory);
  struct stat info = {};
  return file.ok() && fstat((*file)->fd.get(), &info) == 0 ? info.st_ino : 0;
}

std::vector<absl::Status> SimulatedBackend::ReclaimLost(std::span<const std::uint64_t> identities) {
  absl::flat_hash_map<std::uint64_t, absl::Status> found;
  const std::vector<std::uint64_t> sorted = Sorted(identities);
  const absl::StatusOr<std::vector<MemfdHolder>> holders = FindMemfdHolders(kChunkMemfdName);
  if (!holders.ok()) {
    return std::vector<absl::Status>(identities.size(),
                                     absl::UnavailableError(std::string(holders.status().message())));
  }
  for (const MemfdHolder& holder : *holders) {
    if (!std::binary_search(sorted.begin(), sorted.end(), holder.inode)) continue;
    const absl::Status emptied = EmptyHeldMemfd(holder);
    const auto [entry, is_new] = found.emplace(holder.inode, emptied);
    // One way of many is enough: emptying through it frees the pages.
    if (!is_new && emptied.ok()) entry->second = emptied;
  }
  std::vector<absl::Status> results;
  for (const std::uint64_t identity : identities) {
    const auto entry = found.find(identity);
    results.push_back(entry == found.end() ? absl::OkStatus() : entry->second);
  }
  return results;
}

absl::StatusOr<std::vector<DeviceMemory::Stray>> SimulatedBackend::FindStrays(
    int device, std::span<const std::uint64_t> known) {
  LGPU_RETURN_IF_ERROR(CheckDevice(device));
  std::vector<Stray> strays;
  const std::string name = ChunkMemfdName(options_.devices[static_cast<std::size_t>(device)].uuid);
  std::vector<std::uint64_t> seen = Sorted(known);
  LGPU_ASSIGN_OR_RETURN(const std::vector<MemfdHolder> holders, FindMemfdHolders(name));
  for (const MemfdHolder& holder : holders) {
    const auto place = std::lower_bound(seen.begin(), seen.end(), holder.inode);
    // A mapping shows no size. A process that maps a chunk has it open too, except while it closes the chunk.
    if (holder.name != name || holder.bytes.is_zero() || (place != seen.end() && *place == holder.inode)) {
      continue;
    }
    seen.insert(place, holder.inode);
    strays.push_back({.identity = holder.inode, .pid = holder.pid, .bytes = holder.bytes});
  }
  return strays;
}

// ---- address space

absl::StatusOr<std::byte*> SimulatedBackend::Reserve(int device, Bytes bytes) {
  LGPU_RETURN_IF_ERROR(CheckDevice(device));
  LGPU_RETURN_IF_ERROR(CheckWholeUnits("an address range", bytes,
                                       options_.devices[static_cast<std::size_t>(device)].granularity));
  return regions_.Reserve(bytes);
}

absl::Status SimulatedBackend::Unreserve(std::byte* base, Bytes bytes) {
  LGPU_RETURN_IF_ERROR(CheckAlive());
  return regions_.Unreserve(base, bytes);
}

absl::Status SimulatedBackend::Map(std::byte* address, MemoryHandle memory) {
  LGPU_RETURN_IF_ERROR(CheckAlive());
  LGPU_ASSIGN_OR_RETURN(const std::shared_ptr<ChunkFile> file, memory_.SetMapped(memory));
  const MappedRanges::Mapping mapping{memory, file->device, file->bytes};
  const Bytes granularity = options_.devices[static_cast<std::size_t>(file->device)].granularity;
  absl::Status status = regions_.ranges().BeginMap(address, mapping, granularity);
  if (status.ok()) {
    void* const result =
        mmap(address, file->bytes.count(), PROT_NONE, MAP_SHARED | MAP_FIXED, file->fd.get(), 0);
    if (result == MAP_FAILED) {
      status = MappingError("mmap of a chunk", errno, file->bytes);
    } else if (madvise(address, file->bytes.count(), MADV_DONTFORK) != 0) {
      status = MappingError("madvise(MADV_DONTFORK) of a chunk", errno, file->bytes);
      MakeUnmapped(address, file->bytes).IgnoreError();
    }
    regions_.ranges().Settle(address, status.ok());
  }
  if (!status.ok()) memory_.SetUnmapped(memory);
  return status;
}

absl::Status SimulatedBackend::SetAccess(std::byte* address, Bytes bytes) {
  LGPU_RETURN_IF_ERROR(CheckAlive());
  if (bytes.is_zero()) return absl::InvalidArgumentError("set access: an empty range");
  LGPU_ASSIGN_OR_RETURN(const std::vector<MappedRanges::MappedRange> ranges,
                        regions_.ranges().BeginAccess(address, bytes));
  absl::Status status;
  if (options_.asynchronous) {
    for (const MappedRanges::MappedRange& range : ranges) {
      status.Update(windows_.Add(range.mapping.device, range.address, range.mapping.bytes));
    }
  } else if (mprotect(address, bytes.count(), PROT_READ | PROT_WRITE) != 0) {
    status = MappingError("mprotect of mapped chunks", errno, bytes);
  }
  regions_.ranges().SettleAccess(ranges, status.ok());
  return status;
}

absl::Status SimulatedBackend::CheckNothingQueued(int device) {
  for (const auto& [handle, stream] : streams_.All()) {
    if (stream.device == device && stream.queue != nullptr && !stream.queue->IsIdle()) {
      return absl::FailedPreconditionError(
          absl::StrCat("unmap: work is queued on stream ", handle.value,
                       " and may use the mapping; record a fence and wait for it first"));
    }
  }
  return absl::OkStatus();
}

absl::Status SimulatedBackend::Unmap(std::byte* address) {
  LGPU_RETURN_IF_ERROR(CheckAlive());
  LGPU_ASSIGN_OR_RETURN(const MappedRanges::Mapping mapping, regions_.ranges().BeginUnmap(address));
  if (options_.asynchronous) {
    if (absl::Status status = CheckNothingQueued(mapping.device); !status.ok()) {
      regions_.ranges().Settle(address, /*mapped=*/true);
      return status;
    }
    windows_.Remove(mapping.device, address);
  }
  const absl::Status status = MakeUnmapped(address, mapping.bytes);
  regions_.ranges().Settle(address, /*mapped=*/!status.ok());
  if (status.ok()) memory_.SetUnmapped(mapping.memory);
  return status;
}

namespace {

// FNV-1a: the same on every machine and in every build, which std::hash does not promise.
std::uint64_t StableHash(std::string_view text) {
  std::uint64_t hash = 0xcbf29ce484222325;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  return hash ^ (hash >> 29);
}

}  // namespace

std::unique_ptr<DeviceBackend> MakeSimulatedBackend(SimulatedBackendOptions options) {
  std::sort(options.devices.begin(), options.devices.end(),
            [](const PhysicalDevice& a, const PhysicalDevice& b) { return a.pci_bus_id < b.pci_bus_id; });
  return std::make_unique<SimulatedBackend>(std::move(options));
}

std::unique_ptr<DeviceMemory> MakeSimulatedMemory(SimulatedBackendOptions options) {
  return MakeSimulatedBackend(std::move(options));
}

PhysicalDevice SimulatedDevice(int index, Bytes memory, const std::string& seed) {
  const std::uint64_t high = StableHash(absl::StrCat("lgpu simulated ", index, " of ", seed));
  const std::uint64_t low = StableHash(absl::StrCat(seed, " has simulated ", index));
  PhysicalDevice device;
  device.uuid = absl::StrFormat("GPU-%08x-%04x-%04x-%04x-%012x", high >> 32, (high >> 16) & 0xffff,
                                high & 0xffff, low >> 48, low & 0xffffffffffff);
  device.name = "Simulated GPU";
  device.pci_bus_id = absl::StrFormat("%04x:%02x:00.0", (index + 1) >> 8, (index + 1) & 0xff);
  device.total = memory;
  device.granularity = 2_MiB;
  device.compute_major = 9;  // so that reserves and texts are those of a present-day card
  device.simulated = true;
  device.minor = index;
  return device;
}

}  // namespace lgpu
