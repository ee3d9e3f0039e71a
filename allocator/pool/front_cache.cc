#include "allocator/pool/front_cache.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>

namespace lgpu {
namespace {

bool IsGone(std::int32_t tid) { return syscall(SYS_tgkill, getpid(), tid, 0) != 0 && errno == ESRCH; }

}  // namespace

// With more threads than shards, looks now and then for a shard whose thread has ended.
FrontCache::Shard* FrontCache::MineOfMany(std::uint64_t self) {
  constexpr std::uint32_t kPatience = 1024;
  return crowded_.fetch_add(1, std::memory_order_relaxed) % kPatience == 0 ? Claim(self) : nullptr;
}

// Takes a place near the thread's hash: an empty one, or one whose thread has ended. A new thread may have
// the kernel's number of an ended one, which then only looks as if it lived: `owner_` is a number that never
// comes again.
FrontCache::Shard* FrontCache::Claim(std::uint64_t self) {
  const std::uint32_t hash = HashOf(self);
  MutexLock lock(claim_mutex_);
  for (std::uint32_t i = 0; i < kProbes; ++i) {
    std::atomic<Shard*>& place = shards_[(hash + i) % kMostShards];
    Shard* shard = place.load(std::memory_order_relaxed);
    if (shard == nullptr) {
      const std::uint32_t number = count_.load(std::memory_order_relaxed);
      shard = owned_.emplace_back(std::make_unique<Shard>(number)).get();
      all_[number].store(shard, std::memory_order_relaxed);
      count_.fetch_add(1, std::memory_order_release);
    } else if (!IsGone(shard->owner_tid_)) {
      continue;
    }
    shard->owner_tid_ = static_cast<std::int32_t>(syscall(SYS_gettid));
    shard->owner_.store(self, std::memory_order_relaxed);
    place.store(shard, std::memory_order_release);
    return shard;
  }
  return nullptr;
}

FrontCache::Totals FrontCache::totals() const {
  Totals totals;
  ForEachShard([&totals](const Shard& shard) {
    totals.bytes += shard.bytes();
    totals.blocks +=
        shard.blocks_.load(std::memory_order_relaxed) - shard.drained_blocks_.load(std::memory_order_relaxed);
    totals.padding += shard.padding_.load(std::memory_order_relaxed);
    totals.hits += shard.hits_.load(std::memory_order_relaxed);
  });
  return totals;
}

}  // namespace lgpu
