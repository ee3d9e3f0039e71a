#include "allocator/pool/pool_state.h"

#include <algorithm>
#include <ctime>
#include <utility>

#include "allocator/pool/chunk_store.h"

namespace lgpu {

PoolState::PoolState(std::unique_ptr<RegionSource> source_of_chunks, PoolOptions pool_options,
                     const GrowthPolicy& growth_policy)
    : source(std::move(source_of_chunks)),
      options(std::move(pool_options)),
      policy(growth_policy),
      fences(options.fences.get()),
      base(source->base()),
      reserved(RoundDown(std::min(source->reserved(), Suballocator::kMaxReserved), source->granularity())),
      page(source->granularity()),
      steps{.page = page, .least = options.growth_step, .ahead = options.grow_ahead},
      has_wake(static_cast<bool>(options.wake)),
      blocks(reserved, page),
      nodes(blocks.nodes()),
      meter(options.cache_per_thread, bounds, cache, fenced),
      chunks(page) {}

absl::Status PoolState::ForkedError() {
  return absl::FailedPreconditionError(
      "this process is a forked child: device memory does not work across fork; exec a program, or open a "
      "context in the child only");
}

// ---- The clock.

// Block ages need no better than the kernel's tick, which is much cheaper to read.
std::uint32_t PoolState::CoarseMilliseconds() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
  return static_cast<std::uint32_t>(now.tv_sec * 1000 + now.tv_nsec / 1'000'000);
}

// Most looks at the clock find the same time.
void PoolState::Tick() {
  const std::uint32_t now = CoarseMilliseconds();
  if (tick.load(std::memory_order_relaxed) != now) tick.store(now, std::memory_order_relaxed);
}

PoolState::Clock::time_point PoolState::DeadlineAfter(std::chrono::nanoseconds timeout) {
  constexpr std::chrono::hours kLongest{24};  // one far beyond this would overflow the clock
  return Clock::now() + std::clamp<std::chrono::nanoseconds>(timeout, {}, kLongest);
}

// ---- Blocks.

void PoolState::Park(std::uint32_t index, bool is_shared, StreamId stream) {
  Streams streams = StreamOrder::Only(stream);
  if (is_shared) {
    const auto others = shared.find(index);
    streams |= others->second;
    shared.erase(others);
  }
  Node& node = nodes[index];
  const std::uint32_t generation = node.generation();
  node.word.store(Node::Word(generation, Node::kFenced), std::memory_order_release);
  order.Park(index, generation, streams, node.size);
  fenced.fetch_add((Suballocator::kGranule * node.size).count(), std::memory_order_relaxed);
  ++counts.fenced_blocks;
  NoteCharged();  // a pool that is asleep must ask the fences
}

bool PoolState::NoteReleased(bool any) {
  if (any) order.NoteFree(StreamOrder::Only(StreamOrder::kHome));
  return any;
}

bool PoolState::ReleaseQueue(FrontCache::Shard& shard) {
  return NoteReleased(shard.DrainQueue([this](std::uint32_t index) {
    mutex.AssertHeld();
    Release(index, order.stamp());
  }));
}

bool PoolState::ReleaseQueues() {
  return NoteReleased(cache.DrainQueues([this](std::uint32_t index) {
    mutex.AssertHeld();
    Release(index, order.stamp());
  }));
}

bool PoolState::FlushCaches() {
  const bool any = NoteReleased(cache.Drain([this](std::uint32_t index) {
    mutex.AssertHeld();
    Release(index, order.stamp());
  }));
  counts.cache_flushes += any ? 1 : 0;
  return any;
}

void PoolState::Reassess(Bytes limit) {
  const bool flush = meter.Reassess(limit);
  blocks.SetScarce(meter.is_scarce());
  if (flush) FlushCaches();
  if (asleep) meter.StopCaching();
}

void PoolState::NoteDemand() {
  const Bytes used = blocks.used();
  const Bytes held = chunks.held();
  const bool rises = used > grown_for && SaturatingSub(held, used) < StepAhead() / 2 &&
                     held < RoundDown(meter.limit(), page);
  if (asleep || rises || grew) {
    wake_sent = true;
    wake_due.store(true, std::memory_order_relaxed);
  }
}

void PoolState::FallAsleep() {
  asleep = true;
  meter.StopCaching();
}

void PoolState::StayAwake() {
  if (std::exchange(asleep, false)) Reassess(meter.limit());
}

void PoolState::Wake() {
  if (wake_due.exchange(false, std::memory_order_relaxed)) options.wake();
}

// ---- Blocks that wait for fences.

void PoolState::Unpark(std::uint32_t index) {
  fenced.fetch_sub((Suballocator::kGranule * nodes[index].size).count(), std::memory_order_relaxed);
  --counts.fenced_blocks;
}

std::uint32_t PoolState::TakeParked(Bytes requested, const AllocateOptions& of_block) {
  const std::uint64_t size = RoundUp(requested, Suballocator::kGranule) / Suballocator::kGranule;
  if (of_block.alignment > Suballocator::kGranule || size > ~std::uint32_t{0}) return 0;
  const auto parked = order.TakeParked(of_block.stream, static_cast<std::uint32_t>(size));
  if (!parked) return 0;
  Unpark(parked->index);
  if (by_address.is_on()) by_address.Erase(nodes[parked->index].offset);
  return HandOut(blocks.Rename(blocks.HandleAt(parked->index)), requested, of_block);
}

void PoolState::ReleaseReady() {
  while (const auto ready = order.NextReady()) {
    Unpark(ready->index);
    Release(ready->index, ready->stamp);
  }
}

Suballocator::Stamp PoolState::SettledStamp() const {
  return fences == nullptr ? Suballocator::kYoungest : order.passed();
}

void PoolState::RebaseStamps() {
  const std::uint32_t by = order.SmallerBy();
  if (by == 0) [[likely]] {
    return;
  }
  order.Rebase(by);
  blocks.RebaseStamps(by);
  decay.Rebase(by);
}

// ---- Numbers.

Bytes PoolState::Used() const {
  const std::int64_t cached = std::max<std::int64_t>(cache.bytes(), 0);
  return SaturatingSub(blocks.used() - scratch,
                       Bytes(static_cast<std::uint64_t>(cached) + fenced.load(std::memory_order_relaxed)));
}

std::uint64_t PoolState::LiveBlocks() const {
  const std::int64_t live =
      static_cast<std::int64_t>(blocks.live_blocks() - counts.fenced_blocks - scratch_blocks.size()) -
      cache.totals().blocks;
  return static_cast<std::uint64_t>(std::max<std::int64_t>(live, 0));
}

void PoolState::NoteChange() {
  ++changes;
  if (waiting > 0) changed.NotifyAll();
}

Refusal PoolState::MakeRefusal(RefusalReason reason, Bytes asked, const AllocateOptions& of_block,
                               Bytes limit) const {
  Refusal refusal;
  refusal.reason = reason;
  refusal.device = options.device;
  refusal.lease = options.lease;
  refusal.what = of_block.what;
  refusal.asked = asked;
  refusal.limit = limit;
  refusal.used = Used();
  refusal.peak_used = std::max(meter.peak_used(), Used());
  refusal.live_blocks = LiveBlocks();
  refusal.largest_free_block = blocks.largest_free();
  if (reason == RefusalReason::kLimit) {
    refusal.advice.push_back("free blocks of this device, or ask for a higher memory_limit");
    if (SaturatingAdd(blocks.used(), asked) <= limit) {
      refusal.advice.push_back(
          "the free memory lies between live blocks: allocate large blocks first, or free more");
    }
  } else if (reason == RefusalReason::kAddressRange) {
    refusal.advice.push_back("ask for smaller blocks: the addresses that the device reserved are used up");
  }
  return refusal;
}

// ---- Calls of the source.

absl::Status PoolState::Unmap(std::span<const ChunkStore::Run> runs) {
  if (runs.empty()) return absl::OkStatus();
  std::vector<ChunkId> ids;
  for (const ChunkStore::Run& run : runs) {
    const std::vector<ChunkId> of_run = IdsOf(run.chunks);
    ids.insert(ids.end(), of_run.begin(), of_run.end());
  }
  const absl::Status status = source->Unmap(ids);
  MutexLock lock(mutex);
  for (const ChunkStore::Run& run : runs) {
    if (status.ok()) {
      blocks.CommitUnmapped(run.detached);
      chunks.NoteUnmapped(run.range);
    } else {
      blocks.Reattach(run.detached);
    }
  }
  return status;
}

absl::Status PoolState::Return(std::span<const Chunk> returned) {
  if (returned.empty()) return absl::OkStatus();
  const absl::Status status = source->Return(IdsOf(returned));
  MutexLock lock(mutex);
  chunks.NoteReturned(returned);
  return status;
}

}  // namespace lgpu
