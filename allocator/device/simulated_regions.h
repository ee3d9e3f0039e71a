#ifndef LGPU_ALLOCATOR_DEVICE_SIMULATED_REGIONS_H_
#define LGPU_ALLOCATOR_DEVICE_SIMULATED_REGIONS_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "allocator/device/device_backend.h"
#include "allocator/mutex.h"
#include "lgpu/bytes.h"

namespace lgpu {

/// SimulatedRegions is the address space of a simulated backend: reserved ranges that nobody can
/// touch, and which mappings lie in them. It knows the rules and does the system calls of reserving;
/// mapping is two-step (Begin..., then Commit or Abandon) so that no lock is held meanwhile.
/// Thread-safe. The destructor unmaps everything, unless the process is a forked child.
class SimulatedRegions {
 public:
  struct Mapping {
    MemoryHandle memory;
    int device = 0;
    Bytes bytes;
  };
  struct MappedRange {
    std::byte* address;
    Mapping mapping;
  };

  SimulatedRegions();
  ~SimulatedRegions();
  SimulatedRegions(const SimulatedRegions&) = delete;
  SimulatedRegions& operator=(const SimulatedRegions&) = delete;

  absl::StatusOr<std::byte*> Reserve(Bytes bytes);
  absl::Status Unreserve(std::byte* base, Bytes bytes);

  /// Claims [address, address + mapping.bytes) for a mapping that is about to be made.
  absl::Status BeginMap(std::byte* address, const Mapping& mapping, Bytes granularity);
  /// Claims the mapping that starts at `address` to take it away.
  absl::StatusOr<Mapping> BeginUnmap(std::byte* address);
  /// The claimed mapping exists now (`mapped`), with the access it had before, or is gone.
  void Settle(std::byte* address, bool mapped);

  /// The mappings that make up exactly [address, address + bytes), claimed.
  absl::StatusOr<std::vector<MappedRange>> BeginAccess(std::byte* address, Bytes bytes);
  void SettleAccess(const std::vector<MappedRange>& ranges, bool accessible);
  /// FAILED_PRECONDITION unless kernels and copies may touch the whole range.
  absl::Status CheckAccessible(const std::byte* address, Bytes bytes) const;

  /// Forgets everything without touching the address space: for a forked child, which has none of it.
  void Forget();

 private:
  struct Entry {
    Mapping mapping;
    bool changing = false;    // between Begin and Settle
    bool accessible = false;  // SetAccess was done
  };

  const std::uint64_t max_mappings_;
  mutable Mutex mutex_;
  std::map<std::byte*, Bytes> reservations_ ABSL_GUARDED_BY(mutex_);
  std::map<std::byte*, Entry> mappings_ ABSL_GUARDED_BY(mutex_);
};

/// Replaces whatever is mapped at the range by reserved addresses.
absl::Status MakeUnmapped(std::byte* address, Bytes bytes);

}  // namespace lgpu

#endif  // LGPU_ALLOCATOR_DEVICE_SIMULATED_REGIONS_H_
