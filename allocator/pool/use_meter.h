#ifndef LGPU_ALLOCATOR_POOL_USE_METER_H_
#define LGPU_ALLOCATOR_POOL_USE_METER_H_

#include <atomic>
#include <cstdint>

#include "allocator/pool/front_cache.h"
#include "lgpu/bytes.h"

namespace lgpu {

/// The bounds that every hit of a front cache reads. They seldom change, so threads do not take their cache
/// line from each other.
struct HitBounds {
  std::atomic<std::uint64_t> charged_at_most{0};  // an upper bound of the bytes in blocks, in coarse steps
  std::atomic<std::int64_t> cache_budget{0};      // bytes that one thread's cache may hold
};

/// A UseMeter follows how many bytes of a pool are in blocks: the peak, and how scarce memory is.
///
///   charged = bytes in blocks of the sub-allocator = used + scratch + cached + fenced
///
/// Thread-safety: peak_used and NoteHit may be called by any thread; the pool's lock guards the rest.
class UseMeter {
 public:
  /// `cache_per_thread`: see PoolOptions. `fenced`: bytes in blocks that wait for fences.
  UseMeter(Bytes cache_per_thread, HitBounds& bounds, const FrontCache& cache,
           const std::atomic<std::uint64_t>& fenced)
      : cache_per_thread_(cache_per_thread), bounds_(bounds), cache_(cache), fenced_(fenced) {}

  /// Where little is left of the limit every hole counts: searches are careful, and nothing is cached.
  bool is_scarce() const { return level_ == Level::kScarce; }
  Bytes limit() const { return limit_; }
  /// The bytes in blocks changed. True: Reassess is due.
  bool Update(Bytes charged, Bytes scratch) {
    charged_ = charged.count();
    const std::uint64_t owned = (charged - scratch).count();
    owned_.store(owned, std::memory_order_relaxed);
    // A look at all caches takes their lines from their threads.
    if (owned > peak_used_.load(std::memory_order_relaxed) && (cache_.is_single() || owned > peak_owned_)) {
      peak_owned_ = owned;
      RaisePeak(owned);
    }
    const std::uint64_t bound = bounds_.charged_at_most.load(std::memory_order_relaxed);
    if (charged_ > bound || bound - charged_ > 2 * step_) [[unlikely]] {
      bounds_.charged_at_most.store(charged_ + step_, std::memory_order_relaxed);
    }
    return charged_ < level_begin_ || charged_ >= level_end_;
  }
  /// While nothing is cached every free reaches the sub-allocator, which wakes a pool that is asleep.
  void StopCaching() { bounds_.cache_budget.store(0, std::memory_order_relaxed); }
  /// Decides anew how scarce memory is under `limit`. True: the caches have to be flushed.
  bool Reassess(Bytes limit);

  Bytes charged() const { return Bytes(charged_); }
  Bytes peak_used() const { return Bytes(peak_used_.load(std::memory_order_relaxed)); }
  void ResetPeak(Bytes used);
  /// A thread took a block out of its cache, which holds `cached` bytes now. Several threads would read each
  /// other's lines here, so their peak is looked at by Update alone.
  void NoteHit(std::int64_t cached) {
    if (cache_.is_single()) {
      const std::uint64_t owned = owned_.load(std::memory_order_relaxed);
      if (owned - static_cast<std::uint64_t>(cached) > peak_used_.load(std::memory_order_relaxed))
          [[unlikely]] {
        RaisePeak(owned);
      }
    }
  }

 private:
  enum class Level { kAmple, kHalf, kScarce };
  void RaisePeak(std::uint64_t owned);

  const Bytes cache_per_thread_;
  HitBounds& bounds_;
  const FrontCache& cache_;
  const std::atomic<std::uint64_t>& fenced_;
  std::atomic<std::uint64_t> owned_{0};  // charged, less scratch memory
  std::atomic<std::uint64_t> peak_used_{0};
  std::uint64_t charged_ = 0;
  std::uint64_t peak_owned_ = 0;  // at the last look at the peak
  // Reassess is not due while charged is in this range.
  std::uint64_t level_begin_ = 0;
  std::uint64_t level_end_ = 0;
  std::uint64_t step_ = 1;  // of charged_at_most
  Bytes limit_;
  Level level_ = Level::kAmple;
};

}  // namespace lgpu

#endif  // LGPU_ALLOCATOR_POOL_USE_METER_H_
