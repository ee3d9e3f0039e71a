#ifndef LGPU_ALLOCATOR_DEVICE_SIMULATED_SIMULATED_REGIONS_H_
#define LGPU_ALLOCATOR_DEVICE_SIMULATED_SIMULATED_REGIONS_H_

#include <cstddef>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "allocator/device/mapped_ranges.h"
#include "lgpu/bytes.h"

namespace lgpu {

/// SimulatedRegions is the address space of a simulated backend: reserved ranges without access, and
/// the mappings in them. It does the system calls of reserving; those of mapping are the backend's,
/// between the two steps of `ranges()`. Thread-safe. The destructor unmaps everything, unless the process is
/// a forked child, which calls Forget before.
class SimulatedRegions {
 public:
  SimulatedRegions();
  ~SimulatedRegions();
  SimulatedRegions(const SimulatedRegions&) = delete;
  SimulatedRegions& operator=(const SimulatedRegions&) = delete;

  absl::StatusOr<std::byte*> Reserve(Bytes bytes);
  absl::Status Unreserve(std::byte* base, Bytes bytes);

  MappedRanges& ranges() { return ranges_; }
  void Forget() { ranges_.Forget(); }

 private:
  MappedRanges ranges_;
};

/// Replaces all mappings in the range by reserved addresses.
absl::Status MakeUnmapped(std::byte* address, Bytes bytes);

}  // namespace lgpu

#endif  // LGPU_ALLOCATOR_DEVICE_SIMULATED_SIMULATED_REGIONS_H_
