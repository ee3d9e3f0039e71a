#include "allocator/pool/use_meter.h"

#include <algorithm>
#include <utility>

namespace lgpu {
namespace {

// All caches together may hold at most the limit: 64 shards of a 64th.
constexpr std::uint64_t kCacheShare = 64;
constexpr std::uint64_t kCacheShareAboveHalf = 4096;
// The front caches see the charged bytes in this many steps.
constexpr std::uint64_t kChargedSteps = 256;

}  // namespace

bool UseMeter::Reassess(Bytes limit) {
  limit_ = limit;
  // An upper bound is enough: close to the limit, where it matters, nothing is cached.
  step_ = (limit.count() / kChargedSteps) + 1;
  const std::uint64_t sixteenth = limit.count() / 16;
  const bool scarce = charged_ >= sixteenth * (level_ == Level::kScarce ? 12 : 13);
  const bool half = charged_ >= sixteenth * (level_ == Level::kAmple ? 8 : 7);
  const Level level = scarce ? Level::kScarce : half ? Level::kHalf : Level::kAmple;
  level_begin_ = scarce ? sixteenth * 12 : half ? sixteenth * 7 : 0;
  level_end_ = scarce ? ~std::uint64_t{0} : sixteenth * (half ? 13 : 8);
  const Bytes share = limit / (half ? kCacheShareAboveHalf : kCacheShare);
  const Bytes budget = scarce ? Bytes() : std::min(cache_per_thread_, share);
  bounds_.cache_budget.store(static_cast<std::int64_t>(budget.count()), std::memory_order_relaxed);
  return std::exchange(level_, level) < level;
}

// Charged memory without scratch memory is an upper bound of used memory: a look at all caches is worth its
// cost only where that bound is above the peak.
void UseMeter::RaisePeak(std::uint64_t owned) {
  const std::int64_t used = static_cast<std::int64_t>(owned) - cache_.bytes() -
                            static_cast<std::int64_t>(fenced_.load(std::memory_order_relaxed));
  std::uint64_t peak = peak_used_.load(std::memory_order_relaxed);
  while (
      used > 0 && static_cast<std::uint64_t>(used) > peak &&
      !peak_used_.compare_exchange_weak(peak, static_cast<std::uint64_t>(used), std::memory_order_relaxed)) {
  }
}

void UseMeter::ResetPeak(Bytes used) {
  peak_used_.store(used.count(), std::memory_order_relaxed);
  peak_owned_ = 0;
}

}  // namespace lgpu
