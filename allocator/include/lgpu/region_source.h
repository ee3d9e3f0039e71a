#ifndef LGPU_REGION_SOURCE_H_
#define LGPU_REGION_SOURCE_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "lgpu/bytes.h"
#include "lgpu/export.h"
#include "lgpu/id.h"

namespace lgpu {

/// Granted memory, without an address.
struct Chunk {
  ChunkId id;
  Bytes bytes;  // a multiple of the granularity
};

/// Where a chunk is to lie: `offset` from the start of the region, a multiple of the granularity.
struct ChunkPlacement {
  ChunkId id;
  Bytes offset;
};

struct GrowRequest {
  Bytes at_least;  // the source gives this much or an error; a multiple of the granularity
  Bytes wanted;    // >= at_least: the useful amount; the source never waits for more than at_least
  /// How long the source may wait for memory that other devices hold or that is leaving.
  std::chrono::nanoseconds timeout{0};
  /// No allocation needs it yet: a refusal is not reported and needs no reason.
  bool ahead = false;
};

/// A RegionSource gives a Pool its memory: one range of reserved addresses (the region) of one logical
/// device, and the right to chunks that can be mapped into it. The upstream of the allocator: a daemon
/// (client/session/leased_region_source), this process's own broker (client/session/local_region_source), or
/// a test's.
///
/// Thread-safety: all calls may come from any thread, at the same time. A call may block; callers
/// hold no lock over it. Nothing calls back.
/// Ownership: chunks that were granted belong to the caller until Return; the destructor of a source gives
/// back all that are left, mapped or not. Errors change nothing, unless said otherwise.
class LGPU_API RegionSource {
 public:
  virtual ~RegionSource() = default;
  RegionSource(const RegionSource&) = delete;
  RegionSource& operator=(const RegionSource&) = delete;

  /// The first address of the region; aligned to the granularity at least. Constant.
  virtual std::byte* base() const = 0;
  /// How much address space the region has; a multiple of the granularity. Constant.
  virtual Bytes reserved() const = 0;
  /// The unit of chunks, a power of two (2 MiB). Constant.
  virtual Bytes granularity() const = 0;
  /// The memory_limit as it stands now; it may change while running.
  virtual Bytes limit() const = 0;

  /// Gets chunks. RESOURCE_EXHAUSTED with a Refusal when the limit or the card does not allow
  /// `at_least` within the timeout; UNAVAILABLE when the other side is gone; FAILED_PRECONDITION after
  /// a fork or once the owner was closed.
  virtual absl::StatusOr<std::vector<Chunk>> Grow(const GrowRequest& request) = 0;

  /// Maps unmapped chunks at the given places, each place free, and makes them accessible (one access
  /// call per contiguous run). On an error none of them is mapped.
  virtual absl::Status Map(std::span<const ChunkPlacement> placements) = 0;
  /// Takes mapped chunks out of the region; their contents go. The caller makes sure that nothing
  /// queued on the device still uses them (the fences of their last use have passed). FAILED_PRECONDITION:
  /// the device knows of work that uses one of them.
  virtual absl::Status Unmap(std::span<const ChunkId> chunks) = 0;
  /// Gives unmapped chunks back. They count as held until the other side confirms that they are free. If it
  /// does not (UNAVAILABLE, or another error of its own), they no longer belong to the caller either. For
  /// chunks that are mapped or unknown nothing changes.
  virtual absl::Status Return(std::span<const ChunkId> chunks) = 0;

 protected:
  RegionSource() = default;
};

}  // namespace lgpu

#endif  // LGPU_REGION_SOURCE_H_
