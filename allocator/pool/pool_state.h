#ifndef LGPU_ALLOCATOR_POOL_POOL_STATE_H_
#define LGPU_ALLOCATOR_POOL_POOL_STATE_H_

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <type_traits>
#include <unordered_map>
#include <unordered_set>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "allocator/pool/address_index.h"
#include "allocator/pool/block_entry.h"
#include "allocator/pool/chunk_store.h"
#include "allocator/pool/decay.h"
#include "allocator/pool/front_cache.h"
#include "allocator/pool/growth_plan.h"
#include "allocator/pool/owner_names.h"
#include "allocator/pool/stream_order.h"
#include "allocator/pool/thread_uses.h"
#include "allocator/pool/trace_recorder.h"
#include "allocator/pool/use_meter.h"
#include "allocator/suballocator.h"
#include "base/mutex.h"
#include "base/process_epoch.h"
#include "base/this_thread.h"
#include "lgpu/pool.h"
#include "lgpu/refusal.h"

namespace lgpu {

/// A PoolState has the parts that a Pool's classes share: its blocks and chunks under one lock, and the steps
/// that hand blocks out and take them back. Only Unmap and Return call the source, without the lock; nothing
/// here calls the fences.
///
/// A block of the sub-allocator is live there also while it lies in a front cache or waits for fences. The
/// state of its Node says which:
///
///   charged = used + scratch + cached + fenced;   charged + pending <= limit when a request starts to grow
///
/// While no call of the source is on its way, mapped pages are exactly those of mapped chunks, and no byte is
/// pending.
struct PoolState {
  using Streams = StreamOrder::Streams;
  using Clock = std::chrono::steady_clock;

  PoolState(std::unique_ptr<RegionSource> source, PoolOptions options, const GrowthPolicy& policy);

  // ---- Constant.
  const std::unique_ptr<RegionSource> source;
  const PoolOptions options;
  const GrowthPolicy policy;
  StreamFences* const fences;  // of options; may be null
  const ProcessEpoch epoch;
  std::byte* const base;
  const Bytes reserved;
  const Bytes page;
  const GrowthSteps steps;
  const bool has_wake;  // options.wake is set

  // ---- Blocks and chunks.
  alignas(64) mutable Mutex mutex;
  Suballocator blocks ABSL_GUARDED_BY(mutex);

  // Every hit of a front cache reads these fields, and no hit writes them. They have cache lines of their
  // own: otherwise a thread that takes the lock would take the line away from all others.
  alignas(64) const NodeTable& nodes;  // of blocks; Node says what may be read and written without the lock
  HitBounds bounds;
  std::atomic<TraceRecorder*> trace{nullptr};
  std::atomic<std::uint32_t> tick{0};  // milliseconds, as of the last look at the clock
  FrontCache cache;
  OwnerNames owners;

  alignas(64) std::atomic<std::uint64_t> fenced{0};  // bytes in blocks that wait for fences
  std::atomic<bool> wake_due{false};
  UseMeter meter;

  ChunkStore chunks ABSL_GUARDED_BY(mutex);
  StreamOrder order ABSL_GUARDED_BY(mutex);
  std::unordered_map<std::uint32_t, Streams> shared
      ABSL_GUARDED_BY(mutex);  // other streams of kShared blocks
  AddressIndex by_address ABSL_GUARDED_BY(mutex);
  Decay decay ABSL_GUARDED_BY(mutex);

  // ---- Scratch memory.
  std::unordered_set<std::uint32_t> scratch_blocks ABSL_GUARDED_BY(mutex);
  Bytes scratch ABSL_GUARDED_BY(mutex);             // bytes in them
  Bytes scratch_padding ABSL_GUARDED_BY(mutex);     // of padding
  std::int64_t padding ABSL_GUARDED_BY(mutex) = 0;  // of live blocks, less the padding that the caches count

  // ---- Requests on their way.
  Bytes pending ABSL_GUARDED_BY(mutex);              // bytes that growing requests are going to use
  int calls ABSL_GUARDED_BY(mutex) = 0;              // requests that grow, and trims
  int waiting ABSL_GUARDED_BY(mutex) = 0;            // of these: that wait for others
  int patient ABSL_GUARDED_BY(mutex) = 0;            // of these: in a Grow that may wait
  std::uint64_t changes ABSL_GUARDED_BY(mutex) = 0;  // how often chunks or room came back
  CondVar changed;
  CondVar fence_recorded;
  CondVar freed;
  int free_waiters ABSL_GUARDED_BY(mutex) = 0;  // for freed
  ThreadUses uses ABSL_GUARDED_BY(mutex);       // of blocks, under the lock

  // ---- Growing ahead.
  bool grew ABSL_GUARDED_BY(mutex) = false;    // on an allocation's path, since the last Maintain
  bool asleep ABSL_GUARDED_BY(mutex) = false;  // Maintain is not called before the next wake
  bool wake_sent ABSL_GUARDED_BY(mutex) = false;
  Bytes grown_for ABSL_GUARDED_BY(mutex);  // what was used when it last grew ahead
  std::uint64_t trims ABSL_GUARDED_BY(mutex) = 0;

  struct Counts {
    std::uint64_t fenced_blocks = 0;
    std::uint64_t cache_flushes = 0;
    std::uint64_t fences_recorded = 0;
    std::uint64_t fence_waits = 0;
    std::uint64_t allocs = 0;
    std::uint64_t refusals = 0;
    std::uint64_t round_trips = 0;
    std::uint64_t round_trips_ahead = 0;
    std::uint64_t remapped_chunks = 0;
    RefusalReason last_refusal = RefusalReason::kUnspecified;
  };
  Counts counts ABSL_GUARDED_BY(mutex);

  // ---- Blocks, without the lock.
  absl::Status CheckAlive() const { return epoch.IsForked() ? ForkedError() : absl::OkStatus(); }
  static absl::Status ForkedError();
  /// The word of its node; zero if the block is not live.
  std::uint32_t LiveWord(const Block& block) const;
  Block BlockAt(std::uint32_t index) const;
  void Describe(Node& node, Bytes padding_of_block, const AllocateOptions& of_block);
  void Tick();
  static std::uint32_t CoarseMilliseconds();
  static Clock::time_point DeadlineAfter(std::chrono::nanoseconds timeout);
  /// Calls options.wake where that is due.
  void WakeIfDue() {
    if (wake_due.load(std::memory_order_relaxed)) [[unlikely]] {
      Wake();
    }
  }

  // ---- Blocks, under the lock.
  /// Makes the entry of a block that the sub-allocator just made.
  std::uint32_t HandOut(Suballocator::Handle handle, Bytes requested, const AllocateOptions& of_block)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  /// Takes a block that its owner freed: to the sub-allocator, or aside until its streams are done with it.
  void TakeBack(std::uint32_t index, bool is_shared, StreamId stream) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  /// Gives a block that has no owner back to the sub-allocator.
  void Release(std::uint32_t index, std::uint32_t stamp) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  /// Gives queued blocks to the sub-allocator; true if there were any.
  bool ReleaseQueue(FrontCache::Shard& shard) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  bool ReleaseQueues() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  /// Empties the front caches; true if there was anything in them.
  bool FlushCaches() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  void NoteLimit(Bytes limit) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    if (limit != meter.limit()) [[unlikely]] {
      Reassess(limit);
    }
  }
  bool Fits(Bytes rounded, Bytes limit) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    return SaturatingAdd(blocks.used() + pending, rounded) <= limit;
  }

  // ---- Blocks that wait for fences, under the lock.
  /// A block of exactly this size that only `stream` used, and gave back; zero: there is none.
  std::uint32_t TakeParked(Bytes requested, const AllocateOptions& of_block)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  /// Releases the blocks whose fences have passed.
  void ReleaseReady() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  /// No stream uses memory that was freed up to this stamp.
  Suballocator::Stamp SettledStamp() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  void RebaseStamps() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);

  // ---- Numbers, under the lock.
  Bytes Used() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  std::uint64_t LiveBlocks() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  Bytes StepAhead() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    return steps.StepFor({}, blocks.used(), false);
  }
  /// Nothing is cached until StayAwake, and the next change of a block wakes the pool's thread.
  void FallAsleep() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  void StayAwake() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  /// Chunks or room came back: wakes requests that wait for others.
  void NoteChange() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  Refusal MakeRefusal(RefusalReason reason, Bytes asked, const AllocateOptions& of_block, Bytes limit) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);

  // ---- Calls of the source, without the lock.
  absl::Status Unmap(std::span<const ChunkStore::Run> runs);
  /// Error: the other side did not confirm; the chunks no longer belong to the pool in any case.
  absl::Status Return(std::span<const Chunk> returned);

 private:
  void Park(std::uint32_t index, bool is_shared, StreamId stream) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  void NoteCharged() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  [[gnu::cold]] void Reassess(Bytes limit) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  void NoteDemand() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  void Wake();
  bool NoteReleased(bool any) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  void Unpark(std::uint32_t index) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
};

/// The failure of a request with AllocateOptions::spare_only.
inline absl::Status NoneToSpare() { return absl::ResourceExhaustedError("no memory lies ready"); }

inline std::uint32_t PoolState::LiveWord(const Block& block) const {
  if (!nodes.Has(block.node)) return 0;
  const Node& node = nodes[block.node];
  const std::uint32_t word = node.word.load(std::memory_order_acquire);
  // One comparison for both: live, or shared.
  const bool is_live = (word & ~1u) == Node::Word(block.generation, Node::kLive) &&
                       block.bytes == Suballocator::kGranule * node.size &&
                       block.address == base + (Suballocator::kGranule * node.offset).count();
  return is_live ? word : 0;
}

[[gnu::always_inline]] inline Block PoolState::BlockAt(std::uint32_t index) const {
  const Node& node = nodes[index];
  Block block;
  block.node = index;
  block.generation = node.generation();
  // One store, because callers copy the block as one: a load that needs two stores makes a processor wait.
  using Pair = std::uint64_t __attribute__((vector_size(16)));
  const Pair head = {reinterpret_cast<std::uintptr_t>(base + (Suballocator::kGranule * node.offset).count()),
                     (Suballocator::kGranule * node.size).count()};
  static_assert(offsetof(Block, bytes) == 8 && sizeof(Bytes) == 8 && std::is_trivially_copyable_v<Block>);
  std::memcpy(static_cast<void*>(&block), &head, sizeof(head));
  return block;
}

inline void PoolState::Describe(Node& node, Bytes padding_of_block, const AllocateOptions& of_block) {
  node.behind = BlockEntry::About(static_cast<std::uint32_t>(padding_of_block.count()), of_block.stream,
                                  owners.IdOf(of_block.op));
  node.before = tick.load(std::memory_order_relaxed);
}

// Called where memory was taken or freed; the hook itself is called without the lock.
[[gnu::always_inline]] inline void PoolState::NoteCharged() {
  if (meter.Update(blocks.used(), scratch)) [[unlikely]] {
    Reassess(meter.limit());
  }
  if (has_wake && !wake_sent) NoteDemand();
}

[[gnu::always_inline]] inline std::uint32_t PoolState::HandOut(Suballocator::Handle handle, Bytes requested,
                                                               const AllocateOptions& of_block) {
  const std::uint32_t index = Suballocator::SlotOf(handle);
  Node& node = nodes[index];
  if (by_address.is_on()) [[unlikely]] {
    by_address.Insert(node.offset, index);
  }
  Tick();
  const Bytes padding_of_block = Suballocator::kGranule * node.size - requested;
  padding += static_cast<std::int64_t>(padding_of_block.count());
  if (of_block.scratch) [[unlikely]] {
    scratch_blocks.insert(index);
    scratch += Suballocator::kGranule * node.size;
    scratch_padding += padding_of_block;
  } else {
    ++counts.allocs;
    uses.NoteTaken(ThisThread::Number(), tick.load(std::memory_order_relaxed));
  }
  NoteCharged();
  Describe(node, padding_of_block, of_block);
  return index;
}

[[gnu::always_inline]] inline void PoolState::Release(std::uint32_t index, std::uint32_t stamp) {
  if (by_address.is_on()) [[unlikely]] {
    by_address.Erase(nodes[index].offset);
  }
  blocks.Free(blocks.HandleAt(index), stamp);
  NoteCharged();
  if (free_waiters > 0) [[unlikely]] {
    freed.NotifyAll();
  }
}

[[gnu::always_inline]] inline void PoolState::TakeBack(std::uint32_t index, bool is_shared, StreamId stream) {
  if (is_shared || stream != StreamOrder::kHome) [[unlikely]] {
    Park(index, is_shared, stream);
    return;
  }
  order.NoteFree(StreamOrder::Only(StreamOrder::kHome));
  Release(index, order.stamp());
}

}  // namespace lgpu

#endif  // LGPU_ALLOCATOR_POOL_POOL_STATE_H_
