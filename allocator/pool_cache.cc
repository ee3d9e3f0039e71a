#include "allocator/pool_cache.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "allocator/process_epoch.h"

namespace lgpu {
namespace {

// The kernel's number of this thread, which it asks for once; a forked child's only thread asks again. Nobody
// else who lives has the same.
struct ThisThread {
  std::uint64_t epoch;
  std::int32_t tid;
};
[[gnu::tls_model("initial-exec")]] constinit thread_local ThisThread this_thread{~std::uint64_t{0}, 0};

std::int32_t Self() {
  const std::uint64_t epoch = ProcessEpoch::Now();
  if (this_thread.epoch != epoch) {
    this_thread = {epoch, static_cast<std::int32_t>(syscall(SYS_gettid))};
  }
  return this_thread.tid;
}

std::uint32_t HashOf(std::int32_t tid) { return static_cast<std::uint32_t>(tid) * 0x9e3779b9u >> 26; }

bool IsGone(std::int32_t tid) { return syscall(SYS_tgkill, getpid(), tid, 0) != 0 && errno == ESRCH; }

// A few of every size, fewer of the large ones: what a size may pin is bounded as well.
std::uint32_t WaysOf(std::uint32_t size) { return std::clamp<std::uint32_t>(256 / size, 2, 8); }

}  // namespace

std::uint32_t FrontCache::Shard::Take(std::uint32_t size) {
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

bool FrontCache::Shard::Put(std::uint32_t size, std::uint32_t index, std::int64_t budget) {
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

bool FrontCache::Shard::IsLow(std::uint64_t charged) {
  const std::int64_t now = bytes();
  if (charged == low_charged_.load(std::memory_order_relaxed) &&
      now >= low_.load(std::memory_order_relaxed)) {
    return false;
  }
  low_charged_.store(charged, std::memory_order_relaxed);
  low_.store(now, std::memory_order_relaxed);
  return true;
}

FrontCache::Shard* FrontCache::Mine() {
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
  // More threads than shards: now and then one of them is gone.
  constexpr std::uint32_t kPatience = 1024;
  return crowded_.fetch_add(1, std::memory_order_relaxed) % kPatience == 0 ? Claim(self) : nullptr;
}

// A place near the thread's own, so that it is found again: an empty one, or that of a thread that is gone.
FrontCache::Shard* FrontCache::Claim(std::int32_t self) {
  const std::uint32_t hash = HashOf(self);
  MutexLock lock(claim_mutex_);
  for (std::uint32_t i = 0; i < kProbes; ++i) {
    std::atomic<Shard*>& place = shards_[(hash + i) % kMostShards];
    Shard* shard = place.load(std::memory_order_relaxed);
    if (shard == nullptr) {
      shard = owned_.emplace_back(std::make_unique<Shard>()).get();
    } else if (!IsGone(shard->owner_.load(std::memory_order_relaxed))) {
      continue;
    }
    shard->owner_.store(self, std::memory_order_relaxed);
    place.store(shard, std::memory_order_release);
    return shard;
  }
  return nullptr;
}

FrontCache::Totals FrontCache::totals() const {
  Totals totals;
  for (const std::atomic<Shard*>& place : shards_) {
    if (const Shard* const shard = place.load(std::memory_order_acquire)) {
      totals.bytes += shard->bytes();
      totals.blocks += shard->blocks_.load(std::memory_order_relaxed) -
                       shard->drained_blocks_.load(std::memory_order_relaxed);
      totals.padding += shard->padding_.load(std::memory_order_relaxed);
      totals.hits += shard->hits_.load(std::memory_order_relaxed);
    }
  }
  return totals;
}

std::int64_t FrontCache::bytes() const { return totals().bytes; }

std::vector<std::uint32_t> FrontCache::Contents() const {
  std::vector<std::uint32_t> contents;
  for (const std::atomic<Shard*>& place : shards_) {
    if (const Shard* const shard = place.load(std::memory_order_acquire)) {
      for (const auto& ways : shard->slots_) {
        for (const std::atomic<std::uint32_t>& slot : ways) {
          if (const std::uint32_t index = slot.load(std::memory_order_acquire); index != 0) {
            contents.push_back(index);
          }
        }
      }
    }
  }
  return contents;
}

}  // namespace lgpu
