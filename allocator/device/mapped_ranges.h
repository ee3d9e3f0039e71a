#ifndef LGPU_ALLOCATOR_DEVICE_MAPPED_RANGES_H_
#define LGPU_ALLOCATOR_DEVICE_MAPPED_RANGES_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "allocator/device/device_memory.h"
#include "base/mutex.h"
#include "lgpu/bytes.h"

namespace lgpu {

/// A MappedRanges records a backend's address space: the reserved ranges, the mappings in them, and which
/// mappings have access. It holds the rules of DeviceMemory and touches no memory; changes are two-step
/// (Begin..., then Settle) so that no lock is held over the calls in between. Thread-safe.
class MappedRanges {
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

  /// `max_mappings`: more are refused, with vm.max_map_count as the reason.
  explicit MappedRanges(std::uint64_t max_mappings = ~std::uint64_t{0}) : max_mappings_(max_mappings) {}

  void AddReservation(std::byte* base, Bytes bytes);
  /// Forgets a whole reserved range with nothing mapped in it.
  absl::Status TakeReservation(std::byte* base, Bytes bytes);

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
  absl::Status CheckAccessible(const std::byte* address, Bytes bytes) const {
    return DeviceOf(address, bytes).status();
  }
  /// The same, and the device whose memory it is; 0 for no bytes at all. INVALID_ARGUMENT for a range that
  /// spans memory of several.
  absl::StatusOr<int> DeviceOf(const std::byte* address, Bytes bytes) const;

  // Mappings that other devices may read. A copy keeps its mappings as they are meanwhile.
  static constexpr int kMostPeers = 64;
  /// The mappings under the range that are not open to device `peer` < kMostPeers.
  std::vector<MappedRange> NotOpenTo(int peer, const std::byte* address, Bytes bytes) const;
  void SetOpenTo(int peer, const std::vector<MappedRange>& ranges);

  struct Everything {
    std::vector<MappedRange> mappings;
    std::vector<std::pair<std::byte*, Bytes>> reservations;
  };
  /// Forgets everything, and returns it.
  Everything TakeAll();
  /// Forgets everything without a lock: for a forked child, which has none of it.
  void Forget();

 private:
  struct Entry {
    Mapping mapping;
    bool changing = false;      // between Begin and Settle
    bool accessible = false;    // SetAccess was done
    std::uint64_t open_to = 0;  // a bit for each other device that may read it
  };

  const std::uint64_t max_mappings_;
  mutable Mutex mutex_;
  std::map<std::byte*, Bytes> reservations_ ABSL_GUARDED_BY(mutex_);
  std::map<std::byte*, Entry> mappings_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace lgpu

#endif  // LGPU_ALLOCATOR_DEVICE_MAPPED_RANGES_H_
