#ifndef LGPU_ALLOCATOR_POOL_FRONT_CACHE_H_
#define LGPU_ALLOCATOR_POOL_FRONT_CACHE_H_

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "base/mutex.h"
#include "base/this_thread.h"
#include "lgpu/bytes.h"

namespace lgpu {

namespace front_cache_internal {

constexpr std::uint32_t kSizes = 128;

// The number of places for a size. When random blocks of 512 B to 64 KiB replace a thousand live blocks,
// about 206 / size have one size, give or take its root; as many come and go. Eight times that keeps misses
// rare.
constexpr std::uint32_t WaysOf(std::uint32_t size) {
  std::uint32_t ways = 10;
  while ((ways + 1) * (ways + 1) * size <= 112 * 112) ++ways;
  return ways;
}

// The index of each size's first place.
constexpr std::array<std::uint16_t, kSizes + 2> MakePlaces() {
  std::array<std::uint16_t, kSizes + 2> first{};
  for (std::uint32_t size = 1; size <= kSizes; ++size) {
    first[size + 1] = static_cast<std::uint16_t>(first[size] + WaysOf(size));
  }
  return first;
}

}  // namespace front_cache_internal

/// A FrontCache keeps freed small blocks of exact sizes for the thread that freed them, in a shard for each
/// thread. It knows blocks by their slot in the sub-allocator's nodes only.
///
/// Only the thread that owns a shard puts blocks in; any thread takes them out, by exchanging a slot with
/// zero. So neither side ever waits: the owner's hit is one exchange, and Drain empties all shards from any
/// thread. A shard whose thread has ended keeps its blocks until a drain, and passes to a new thread. No
/// thread-local variable refers to it.
///
/// A freed block that finds no place in the shard waits in its queue, until a thread that has the pool's lock
/// hands the queue to the sub-allocator.
class FrontCache {
 public:
  static constexpr Bytes kUnit = Bytes(512);
  static constexpr Bytes kLargest = Bytes(std::uint64_t{64} << 10);
  static constexpr std::uint32_t kSizes = front_cache_internal::kSizes;  // kLargest / kUnit

  class alignas(64) Shard {
    static constexpr std::uint32_t kQueue = 16;

   public:
    explicit Shard(std::uint32_t number) : number_(number) {}

    // For the owner.
    /// The slot of a block of `size` units, or zero.
    std::uint32_t Take(std::uint32_t size);
    /// False: there is no room. `padding`: the block's size less the size asked for.
    bool Put(std::uint32_t size, std::uint32_t index, std::int64_t padding, std::int64_t budget);
    /// As Put, into the queue: for a block that finds no place.
    bool Queue(std::uint32_t size, std::uint32_t index, std::int64_t padding, std::int64_t budget);
    /// A block of this shard was handed out; gives the number of hits before.
    std::uint64_t CountHit(std::uint32_t size, std::int64_t padding) {
      Add(bytes_, -BytesOf(size));
      Add(blocks_, std::int64_t{-1});
      Add(padding_, padding);
      Add(hits_, std::uint64_t{1});
      return hits_.load(std::memory_order_relaxed) - 1;
    }

    // For any thread.
    /// The number of shards that were made before this one: below kMostShards.
    std::uint32_t number() const { return number_; }
    std::int64_t bytes() const {
      return bytes_.load(std::memory_order_relaxed) - drained_bytes_.load(std::memory_order_relaxed);
    }

    // With the pool's lock.
    bool has_queue() const {
      return tail_.load(std::memory_order_acquire) != head_.load(std::memory_order_relaxed);
    }
    /// Takes the queue out: visit(index) for each block. True if there was any.
    template <typename Visit>
    bool DrainQueue(Visit visit) {
      const std::uint32_t tail = tail_.load(std::memory_order_acquire);
      std::uint32_t head = head_.load(std::memory_order_relaxed);
      if (head == tail) return false;
      // Empties the queue before the visits: a visit may look at the queue again.
      std::array<std::uint64_t, kQueue> entries;
      const std::uint32_t blocks = tail - head;
      std::int64_t bytes = 0;
      for (std::uint32_t i = 0; i < blocks; ++i, ++head) {
        entries[i] = queue_[head % kQueue].load(std::memory_order_relaxed);
        bytes += BytesOf(static_cast<std::uint32_t>(entries[i] >> 32));
      }
      head_.store(head, std::memory_order_release);
      for (std::uint32_t i = 0; i < blocks; ++i) visit(static_cast<std::uint32_t>(entries[i]));
      Drained(blocks, bytes);  // last: a block that neither side counts would look used
      return true;
    }

   private:
    friend class FrontCache;
    static constexpr std::array kFirst = front_cache_internal::MakePlaces();
    static constexpr std::uint32_t kSlots = kFirst[kSizes + 1];
    static std::int64_t BytesOf(std::uint32_t size) {
      return static_cast<std::int64_t>(kUnit.count()) * static_cast<std::int64_t>(size);
    }
    template <typename T>
    static void Add(std::atomic<T>& counter, T by) {  // one writer, so no read-modify-write
      counter.store(counter.load(std::memory_order_relaxed) + by, std::memory_order_relaxed);
    }
    void NotePut(std::uint32_t size, std::int64_t padding) {
      Add(bytes_, BytesOf(size));
      Add(blocks_, std::int64_t{1});
      Add(padding_, -padding);
    }
    void Drained(std::uint32_t blocks, std::int64_t bytes) {
      Add(drained_bytes_, bytes);
      Add(drained_blocks_, std::int64_t{blocks});
    }

    std::atomic<std::uint64_t> owner_{0};  // a thread's number; those whose shards lie beside it read it
    std::int32_t owner_tid_ = 0;           // the kernel's; with the cache's claim_mutex_
    const std::uint32_t number_;
    // Written by the owner.
    alignas(64) std::atomic<std::int64_t> bytes_{0};  // put - taken by the owner
    std::atomic<std::int64_t> blocks_{0};
    std::atomic<std::int64_t> padding_{0};
    std::atomic<std::uint64_t> hits_{0};
    std::atomic<std::uint32_t> tail_{0};  // of the queue
    static_assert(front_cache_internal::WaysOf(1) <= 255, "tops_ counts up to that");
    std::array<std::atomic<std::uint8_t>, kSizes + 1> tops_{};  // by size: at and above it all ways are empty
    // Written under the pool's lock.
    alignas(64) std::atomic<std::int64_t> drained_bytes_{0};
    std::atomic<std::int64_t> drained_blocks_{0};
    std::atomic<std::uint32_t> head_{0};
    alignas(64) std::array<std::atomic<std::uint64_t>, kQueue> queue_{};  // size, index
    alignas(64) std::array<std::atomic<std::uint32_t>, kSlots> slots_{};
  };

  static constexpr std::uint32_t kMostShards = 64;

  FrontCache() = default;
  FrontCache(const FrontCache&) = delete;
  FrontCache& operator=(const FrontCache&) = delete;

  /// This thread's shard; null where it has none and all near places are taken.
  Shard* Mine();

  /// Takes everything out, one call at a time: visit(index) for each block. True if there was any.
  template <typename Visit>
  bool Drain(Visit visit) {
    bool any = false;
    ForEachShard([&](Shard& shard) { any |= DrainShard(shard, visit); });
    return any;
  }
  /// As Drain, for the queues only.
  template <typename Visit>
  bool DrainQueues(Visit visit) {
    bool any = false;
    ForEachShard([&](Shard& shard) { any |= shard.DrainQueue(visit); });
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
  /// True while only one thread has ever had a shard.
  bool is_single() const { return count_.load(std::memory_order_relaxed) == 1; }

 private:
  static constexpr std::uint32_t kProbes = 8;

  template <typename Visit>
  bool DrainShard(Shard& shard, Visit visit) {
    std::int64_t bytes = 0;
    std::uint32_t blocks = 0;
    for (std::uint32_t size = 1; size <= kSizes; ++size) {
      for (std::uint32_t at = Shard::kFirst[size]; at < Shard::kFirst[size + 1]; ++at) {
        std::atomic<std::uint32_t>& slot = shard.slots_[at];
        if (slot.load(std::memory_order_relaxed) == 0) continue;
        if (const std::uint32_t index = slot.exchange(0, std::memory_order_acq_rel); index != 0) {
          bytes += Shard::BytesOf(size);
          ++blocks;
          visit(index);
        }
      }
    }
    shard.Drained(blocks, bytes);
    return shard.DrainQueue(visit) || blocks != 0;
  }
  template <typename Visit>
  void ForEachShard(Visit visit) const {
    const std::uint32_t count = count_.load(std::memory_order_acquire);
    for (std::uint32_t i = 0; i < count; ++i) visit(*all_[i].load(std::memory_order_relaxed));
  }

  static std::uint32_t HashOf(std::uint64_t thread) {
    static_assert(kMostShards == 1u << (32 - 26));
    return static_cast<std::uint32_t>(thread) * 0x9e3779b9u >> 26;
  }

  Shard* MineOfMany(std::uint64_t self);
  Shard* Claim(std::uint64_t self);

  std::array<std::atomic<Shard*>, kMostShards> shards_{};  // by hash
  std::array<std::atomic<Shard*>, kMostShards> all_{};     // as they came
  std::atomic<std::uint32_t> count_{0};
  std::atomic<std::uint32_t> crowded_{0};
  Mutex claim_mutex_;
  std::vector<std::unique_ptr<Shard>> owned_ ABSL_GUARDED_BY(claim_mutex_);
};

[[gnu::always_inline]] inline std::uint32_t FrontCache::Shard::Take(std::uint32_t size) {
  std::atomic<std::uint32_t>* const ways = &slots_[kFirst[size]];
  for (std::uint32_t way = tops_[size].load(std::memory_order_relaxed); way-- > 0;) {
    if (ways[way].load(std::memory_order_relaxed) == 0) continue;
    if (const std::uint32_t index = ways[way].exchange(0, std::memory_order_acq_rel); index != 0) {
      tops_[size].store(static_cast<std::uint8_t>(way), std::memory_order_relaxed);
      return index;
    }
  }
  tops_[size].store(0, std::memory_order_relaxed);
  return 0;
}

[[gnu::always_inline]] inline bool FrontCache::Shard::Put(std::uint32_t size, std::uint32_t index,
                                                          std::int64_t padding, std::int64_t budget) {
  if (bytes() + BytesOf(size) > budget) return false;
  std::atomic<std::uint32_t>* const ways = &slots_[kFirst[size]];
  const std::uint32_t number = kFirst[size + 1] - std::uint32_t{kFirst[size]};
  std::uint32_t way = tops_[size].load(std::memory_order_relaxed);
  way = way == number ? 0 : way;  // a drain may have emptied them
  if (ways[way].load(std::memory_order_relaxed) != 0) {
    return false;  // full; or a running drain has not reached this place
  }
  tops_[size].store(static_cast<std::uint8_t>(way + 1), std::memory_order_relaxed);
  ways[way].store(index, std::memory_order_release);
  NotePut(size, padding);
  return true;
}

inline bool FrontCache::Shard::Queue(std::uint32_t size, std::uint32_t index, std::int64_t padding,
                                     std::int64_t budget) {
  const std::uint32_t tail = tail_.load(std::memory_order_relaxed);
  if (budget == 0 || tail - head_.load(std::memory_order_acquire) == kQueue) return false;
  queue_[tail % kQueue].store(std::uint64_t{size} << 32 | index, std::memory_order_relaxed);
  tail_.store(tail + 1, std::memory_order_release);
  NotePut(size, padding);
  return true;
}

[[gnu::always_inline]] inline FrontCache::Shard* FrontCache::Mine() {
  const std::uint64_t self = ThisThread::Number();
  const std::uint32_t hash = HashOf(self);
  for (std::uint32_t i = 0; i < kProbes; ++i) {
    Shard* const shard = shards_[(hash + i) % kMostShards].load(std::memory_order_acquire);
    if (shard == nullptr) return Claim(self);
    if (shard->owner_.load(std::memory_order_relaxed) == self) return shard;
  }
  return MineOfMany(self);
}

inline std::int64_t FrontCache::bytes() const {
  std::int64_t bytes = 0;
  ForEachShard([&bytes](const Shard& shard) { bytes += shard.bytes(); });
  return bytes;
}

}  // namespace lgpu

#endif  // LGPU_ALLOCATOR_POOL_FRONT_CACHE_H_
