#ifndef LGPU_ALLOCATOR_POOL_CACHE_H_
#define LGPU_ALLOCATOR_POOL_CACHE_H_

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "allocator/mutex.h"
#include "allocator/process_epoch.h"
#include "lgpu/bytes.h"

namespace lgpu {

/// A FrontCache keeps freed small blocks of exact sizes for the thread that freed them, in a shard for each
/// thread. It knows blocks by their slot in the sub-allocator's nodes only.
///
/// Only the thread that owns a shard puts blocks in; anybody takes them out, by exchanging a slot with zero.
/// So neither side ever waits: the owner's hit is one exchange, and Drain empties all shards from any thread.
/// A shard whose thread is gone stays with what it holds until a drain, and passes to a new thread.
/// Nothing thread-local knows of it.
class FrontCache {
 public:
  static constexpr Bytes kUnit = Bytes(512);
  static constexpr Bytes kLargest = Bytes(std::uint64_t{64} << 10);
  static constexpr std::uint32_t kSizes = 128;  // kLargest / kUnit

  class alignas(64) Shard {
   public:
    // Of the owner.
    /// The index of a block of `size` units, or zero.
    std::uint32_t Take(std::uint32_t size);
    /// False: there is no room.
    bool Put(std::uint32_t size, std::uint32_t index, std::int64_t budget);
    /// A block whose owner asked for `padding` bytes less than its size is handed out (+) or came back (-).
    void AddPadding(std::int64_t padding) { Add(padding_, padding); }
    /// How many there were before.
    std::uint64_t CountHit() {
      Add(hits_, std::uint64_t{1});
      return hits_.load(std::memory_order_relaxed) - 1;
    }
    /// True if the shard holds less than ever since as much as now is charged to the pool.
    bool IsLow(std::uint64_t charged);

    // Of anybody.
    std::int64_t bytes() const {
      return bytes_.load(std::memory_order_relaxed) - drained_bytes_.load(std::memory_order_relaxed);
    }

   private:
    friend class FrontCache;
    static constexpr std::uint32_t kWays = 16;
    // A few of every size, fewer of the large ones: what one size may pin is bounded as well.
    static std::uint32_t WaysOf(std::uint32_t size) {
      return std::clamp<std::uint32_t>(512 / size, 4, kWays);
    }
    template <typename T>
    static void Add(std::atomic<T>& counter, T by) {  // one writer, so no read-modify-write
      counter.store(counter.load(std::memory_order_relaxed) + by, std::memory_order_relaxed);
    }

    std::atomic<std::int32_t> owner_{0};  // a thread's number
    // Written by the owner.
    std::atomic<std::int64_t> bytes_{0};  // put - taken by the owner
    std::atomic<std::int64_t> blocks_{0};
    std::atomic<std::int64_t> padding_{0};
    std::atomic<std::int64_t> low_{0};  // since low_charged_
    std::atomic<std::uint64_t> low_charged_{0};
    std::atomic<std::uint64_t> hits_{0};
    std::array<std::atomic<std::uint8_t>, kSizes> tops_{};  // at and above it all ways are empty
    // Written under the pool's lock.
    alignas(64) std::atomic<std::int64_t> drained_bytes_{0};
    std::atomic<std::int64_t> drained_blocks_{0};
    alignas(64) std::array<std::array<std::atomic<std::uint32_t>, kWays>, kSizes> slots_{};
  };

  FrontCache() = default;
  FrontCache(const FrontCache&) = delete;
  FrontCache& operator=(const FrontCache&) = delete;

  /// This thread's shard; null where it has none and there is none to be had.
  Shard* Mine();

  /// Takes everything out, one call at a time: visit(index) for each block. True if there was any.
  template <typename Visit>
  bool Drain(Visit visit) {
    bool any = false;
    ForEachShard([&](Shard& shard) { any |= DrainShard(shard, visit); });
    return any;
  }

  struct Totals {
    std::int64_t bytes = 0;
    std::int64_t blocks = 0;
    std::int64_t padding = 0;
    std::uint64_t hits = 0;
  };
  Totals totals() const;
  std::int64_t bytes() const;
  /// Only one thread ever had a shard.
  bool is_single() const { return count_.load(std::memory_order_relaxed) == 1; }

 private:
  static constexpr std::uint32_t kMostShards = 64;
  static constexpr std::uint32_t kProbes = 8;

  template <typename Visit>
  bool DrainShard(Shard& shard, Visit visit) {
    std::int64_t bytes = 0;
    std::int64_t blocks = 0;
    for (std::uint32_t size = 0; size < kSizes; ++size) {
      for (std::atomic<std::uint32_t>& slot : shard.slots_[size]) {
        if (slot.load(std::memory_order_relaxed) == 0) {
          continue;
        }
        if (const std::uint32_t index = slot.exchange(0, std::memory_order_acq_rel); index != 0) {
          bytes += static_cast<std::int64_t>(kUnit.count()) * (size + 1);
          ++blocks;
          visit(index);
        }
      }
    }
    Shard::Add(shard.drained_bytes_, bytes);
    Shard::Add(shard.drained_blocks_, blocks);
    return blocks != 0;
  }
  template <typename Visit>
  void ForEachShard(Visit visit) const {
    const std::uint32_t count = count_.load(std::memory_order_acquire);
    for (std::uint32_t i = 0; i < count; ++i) {
      visit(*all_[i].load(std::memory_order_relaxed));
    }
  }

  // The kernel's number of this thread, which it asks for once; a forked child's only thread asks again.
  // Nobody else who lives has the same.
  struct ThisThread {
    std::uint64_t epoch;
    std::int32_t tid;
  };
  [[gnu::tls_model("initial-exec")]] static constinit thread_local ThisThread this_thread;
  static std::int32_t Self() {
    return this_thread.epoch == ProcessEpoch::Now() ? this_thread.tid : AskForSelf();
  }
  static std::int32_t AskForSelf();
  static std::uint32_t HashOf(std::int32_t tid) {
    return static_cast<std::uint32_t>(tid) * 0x9e3779b9u >> 26;
  }

  Shard* MineOfMany(std::int32_t self);
  Shard* Claim(std::int32_t self);

  std::array<std::atomic<Shard*>, kMostShards> shards_{};  // by hash
  std::array<std::atomic<Shard*>, kMostShards> all_{};     // as they came
  std::atomic<std::uint32_t> count_{0};
  std::atomic<std::uint32_t> crowded_{0};
  Mutex claim_mutex_;
  std::vector<std::unique_ptr<Shard>> owned_ ABSL_GUARDED_BY(claim_mutex_);
};

inline std::uint32_t FrontCache::Shard::Take(std::uint32_t size) {
  std::atomic<std::uint8_t>& top = tops_[size - 1];
  for (std::uint32_t way = top.load(std::memory_order_relaxed); way-- > 0;) {
    std::atomic<std::uint32_t>& slot = slots_[size - 1][way];
    if (slot.load(std::memory_order_relaxed) == 0) {
      continue;
    }
    if (const std::uint32_t index = slot.exchange(0, std::memory_order_acq_rel); index != 0) {
      top.store(static_cast<std::uint8_t>(way), std::memory_order_relaxed);
      Add(bytes_, -static_cast<std::int64_t>(kUnit.count() * size));
      Add(blocks_, std::int64_t{-1});
      return index;
    }
  }
  top.store(0, std::memory_order_relaxed);
  return 0;
}

inline bool FrontCache::Shard::Put(std::uint32_t size, std::uint32_t index, std::int64_t budget) {
  const auto added = static_cast<std::int64_t>(kUnit.count() * size);
  if (bytes() + added > budget) {
    return false;
  }
  const std::uint32_t ways = WaysOf(size);
  std::atomic<std::uint8_t>& top = tops_[size - 1];
  std::uint32_t way = top.load(std::memory_order_relaxed);
  if (way == ways) {
    // A drain may have emptied any of them.
    for (way = 0; way < ways && slots_[size - 1][way].load(std::memory_order_relaxed) != 0; ++way) {
    }
    if (way == ways) {
      return false;
    }
  } else {
    top.store(static_cast<std::uint8_t>(way + 1), std::memory_order_relaxed);
  }
  slots_[size - 1][way].store(index, std::memory_order_release);
  Add(bytes_, added);
  Add(blocks_, std::int64_t{1});
  return true;
}

inline bool FrontCache::Shard::IsLow(std::uint64_t charged) {
  const std::int64_t now = bytes();
  if (charged == low_charged_.load(std::memory_order_relaxed) &&
      now >= low_.load(std::memory_order_relaxed)) {
    return false;
  }
  low_charged_.store(charged, std::memory_order_relaxed);
  low_.store(now, std::memory_order_relaxed);
  return true;
}

inline FrontCache::Shard* FrontCache::Mine() {
  const std::int32_t self = Self();
  const std::uint32_t hash = HashOf(self);
  for (std::uint32_t i = 0; i < kProbes; ++i) {
    Shard* const shard = shards_[(hash + i) % kMostShards].load(std::memory_order_acquire);
    if (shard == nullptr) {
      return Claim(self);
    }
    if (shard->owner_.load(std::memory_order_relaxed) == self) {
      return shard;
    }
  }
  return MineOfMany(self);
}

inline std::int64_t FrontCache::bytes() const {
  std::int64_t bytes = 0;
  ForEachShard([&bytes](const Shard& shard) { bytes += shard.bytes(); });
  return bytes;
}

}  // namespace lgpu

#endif  // LGPU_ALLOCATOR_POOL_CACHE_H_
