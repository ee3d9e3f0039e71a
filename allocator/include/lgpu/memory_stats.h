#ifndef LGPU_MEMORY_STATS_H_
#define LGPU_MEMORY_STATS_H_

#include <cstdint>

#include "lgpu/bytes.h"
#include "lgpu/refusal.h"

namespace lgpu {

/// MemoryStats are the numbers of a Pool at one moment; a value type. A call of another thread that runs
/// meanwhile may be in one number and not yet in another.
struct MemoryStats {
  Bytes limit;               // as asked for; used never exceeds it
  Bytes requested;           // what the owners of live blocks asked for
  Bytes used;                // bytes in live blocks, after rounding
  Bytes peak_used;           // since the start, or the last reset
  Bytes held;                // bytes in chunks that this program was granted
  Bytes workspace;           // in live blocks of scratch memory; in neither requested, used, nor peak_used
  Bytes idle;                // bytes of held chunks that no live, cached or fenced block touches
  Bytes cached;              // freed, in a thread's front cache
  Bytes fenced;              // freed, waiting for fences of other streams
  Bytes largest_free_block;  // the largest request that mapped memory serves now
  std::uint64_t live_blocks = 0;   // without scratch memory, and so is num_allocs
  std::uint64_t num_allocs = 0;    // successful allocations
  std::uint64_t num_refusals = 0;  // allocations that were refused
  std::uint64_t cache_hits = 0;    // allocations that a front cache served
  std::uint64_t cache_flushes = 0;
  std::uint64_t source_round_trips = 0;        // calls of RegionSource::Grow on an allocation's path
  std::uint64_t source_round_trips_ahead = 0;  // calls of it by Maintain
  std::uint64_t remapped_chunks = 0;           // chunks moved to another address
  std::uint64_t fences_recorded = 0;
  std::uint64_t fence_waits = 0;  // times that a thread had to wait for one
  RefusalReason last_refusal = RefusalReason::kUnspecified;

  Bytes slack() const { return SaturatingSub(held, used + workspace); }
  /// 1 - largest free block / slack, of the one program; 0 where there is no slack.
  double Fragmentation() const {
    const Bytes free = slack();
    return free.is_zero()
               ? 0.0
               : 1.0 - static_cast<double>(largest_free_block.count()) / static_cast<double>(free.count());
  }
};

}  // namespace lgpu

#endif  // LGPU_MEMORY_STATS_H_
