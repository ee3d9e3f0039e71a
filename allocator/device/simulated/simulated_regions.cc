#include "allocator/device/simulated/simulated_regions.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>

#include "allocator/device/simulated/memfd.h"

namespace lgpu {
namespace {

constexpr Bytes kRegionAlignment = 2_MiB;
// Chunks leave these mappings to the process: without any it cannot even grow its heap.
constexpr std::uint64_t kMappingsForTheRest = 1024;
constexpr int kReservedFlags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;

}  // namespace

SimulatedRegions::SimulatedRegions()
    : ranges_(std::max(MaxMappings(), kMappingsForTheRest) - kMappingsForTheRest) {}

SimulatedRegions::~SimulatedRegions() {
  for (const auto& [base, bytes] : ranges_.TakeAll().reservations) munmap(base, bytes.count());
}

absl::StatusOr<std::byte*> SimulatedRegions::Reserve(Bytes bytes) {
  const Bytes padded = bytes + kRegionAlignment;
  void* raw = mmap(nullptr, padded.count(), PROT_NONE, kReservedFlags, -1, 0);
  if (raw == MAP_FAILED) {
    const int error = errno;
    if (error == ENOMEM) {
      return MachineRefusal(RefusalReason::kAddressRange, "reserved addresses of a region", bytes);
    }
    return SystemCallError("mmap of reserved addresses", error);
  }
  auto* const start = static_cast<std::byte*>(raw);
  const auto number = reinterpret_cast<std::uintptr_t>(start);
  const std::size_t skip = RoundUp(Bytes(number), kRegionAlignment).count() - number;
  std::byte* const base = start + skip;
  if (skip != 0) munmap(start, skip);
  munmap(base + bytes.count(), kRegionAlignment.count() - skip);
  if (madvise(base, bytes.count(), MADV_DONTFORK) != 0) {
    const int error = errno;
    munmap(base, bytes.count());
    return SystemCallError("madvise(MADV_DONTFORK) of a region", error);
  }
  ranges_.AddReservation(base, bytes);
  return base;
}

absl::Status SimulatedRegions::Unreserve(std::byte* base, Bytes bytes) {
  if (absl::Status taken = ranges_.TakeReservation(base, bytes); !taken.ok()) return taken;
  if (munmap(base, bytes.count()) != 0) return SystemCallError("munmap of reserved addresses", errno);
  return absl::OkStatus();
}

absl::Status MakeUnmapped(std::byte* address, Bytes bytes) {
  void* const result = mmap(address, bytes.count(), PROT_NONE, kReservedFlags | MAP_FIXED, -1, 0);
  if (result == MAP_FAILED) return SystemCallError("mmap of reserved addresses over a mapping", errno);
  // Lets the range merge with its neighbours again; a child may inherit an empty range.
  madvise(address, bytes.count(), MADV_DONTFORK);
  return absl::OkStatus();
}

}  // namespace lgpu
