#ifndef LGPU_CLIENT_SESSION_REGION_H_
#define LGPU_CLIENT_SESSION_REGION_H_

#include <cstddef>
#include <map>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "allocator/device/device_memory.h"
#include "base/mutex.h"
#include "base/process_epoch.h"
#include "lgpu/bytes.h"
#include "lgpu/region_source.h"

namespace lgpu {

/// A Region is the reserved address range of one logical device and the chunks that this process has for
/// it, mapped or not: the half of a RegionSource that does not depend on the source of the chunks. Its calls
/// have the contracts of RegionSource's.
///
/// Thread-safe; no lock is held over a call of the backend. Its destructor unmaps and releases the chunks
/// that are left.
class Region {
 public:
  /// A chunk as the backend knows it.
  struct Held {
    Chunk chunk;
    MemoryHandle memory;
  };

  /// Reserves 8 times `limit` of addresses, and at least 4 times the card's memory, to which a limit may be
  /// raised; 8 or 4 times `limit` where the system refuses so many. `backend` outlives it.
  static absl::StatusOr<std::unique_ptr<Region>> Reserve(DeviceMemory& backend, int device, Bytes granularity,
                                                         Bytes limit);
  ~Region();
  Region(const Region&) = delete;
  Region& operator=(const Region&) = delete;

  std::byte* base() const { return base_; }
  Bytes reserved() const { return reserved_; }
  Bytes granularity() const { return granularity_; }
  DeviceMemory& backend() const { return backend_; }
  int device() const { return device_; }
  bool IsForked() const { return epoch_.IsForked(); }

  /// Takes over a chunk that was just created or imported; it is unmapped. ALREADY_EXISTS, and nothing
  /// changes, for an id that is here.
  absl::Status Add(const Held& held);
  absl::Status Map(std::span<const ChunkPlacement> placements);
  absl::Status Unmap(std::span<const ChunkId> chunks);
  /// Hands unmapped chunks over to the caller: all of them, or none on an error.
  absl::StatusOr<std::vector<Held>> Take(std::span<const ChunkId> chunks);
  /// All chunks, mapped or not.
  std::vector<Held> All();
  /// Unmaps the mapped chunks and hands all over. For destructors: no other call may run.
  std::vector<Held> TakeAll();

 private:
  enum class State { kUnmapped, kMapped, kBusy };
  struct Entry {
    Held held;
    State state = State::kUnmapped;
    Bytes offset = {};  // of its place, unless kUnmapped
  };
  /// A mapping that is about to be made or taken away.
  struct Move {
    ChunkId id;
    MemoryHandle memory;
    Bytes offset;
    Bytes bytes;
  };

  Region(DeviceMemory& backend, int device, Bytes granularity, std::byte* base, Bytes reserved)
      : backend_(backend), device_(device), granularity_(granularity), base_(base), reserved_(reserved) {}

  absl::StatusOr<Entry*> Find(ChunkId id) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::StatusOr<Move> ClaimPlace(const ChunkPlacement& placement) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  /// Settles claimed chunks; places without a chunk become free.
  void Settle(std::span<const Move> moves, State state) ABSL_LOCKS_EXCLUDED(mutex_);
  /// Maps all of `moves`, in order of their offsets, and makes them accessible; or none of them.
  absl::Status MapAll(std::span<const Move> moves);

  DeviceMemory& backend_;
  const int device_;
  const Bytes granularity_;
  std::byte* const base_;
  const Bytes reserved_;
  const ProcessEpoch epoch_;

  Mutex mutex_;
  std::unordered_map<ChunkId, Entry> chunks_ ABSL_GUARDED_BY(mutex_);
  std::map<Bytes, Bytes> places_ ABSL_GUARDED_BY(mutex_);  // taken ones: offset to size
};

}  // namespace lgpu

#endif  // LGPU_CLIENT_SESSION_REGION_H_
