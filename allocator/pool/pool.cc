#include "lgpu/pool.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <ctime>
#include <type_traits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "allocator/pool/pool_impl.h"
#include "lgpu/status.h"

namespace lgpu {
namespace {

// What all caches together may hold is at most the limit: 64 shards of a 64th.
constexpr std::uint64_t kCacheShare = 64;
constexpr std::uint64_t kCacheShareAboveHalf = 4096;
// How many steps of what is charged the front caches tell apart.
constexpr std::uint64_t kChargedSteps = 256;

}  // namespace

std::chrono::steady_clock::time_point Pool::Impl::DeadlineAfter(std::chrono::nanoseconds timeout) {
  constexpr std::chrono::hours kLongest{24};  // one far beyond this would overflow the clock
  return std::chrono::steady_clock::now() + std::clamp<std::chrono::nanoseconds>(timeout, {}, kLongest);
}

Pool::Pool(std::unique_ptr<RegionSource> source, PoolOptions options)
    : impl_(std::make_unique<Impl>(std::move(source), std::move(options))) {}
Pool::~Pool() = default;

absl::StatusOr<Block> Pool::Allocate(Bytes bytes, const AllocateOptions& options) {
  return impl_->Allocate(bytes, options);
}
absl::Status Pool::Free(const void* address) { return impl_->Free(address); }
absl::StatusOr<Block> Pool::Find(const void* address) { return impl_->Find(address); }
absl::Status Pool::UseOn(const Block& block, StreamId stream) { return impl_->UseOn(block, stream); }
absl::StatusOr<Bytes> Pool::Trim(Bytes at_most) { return impl_->Trim(at_most); }
absl::StatusOr<Pool::Trimmed> Pool::TrimFor(Bytes bytes) { return impl_->TrimFor(bytes); }
std::optional<std::chrono::steady_clock::time_point> Pool::Maintain(
    std::chrono::steady_clock::time_point now) {
  return impl_->Maintain(now);
}
MemoryStats Pool::stats() const { return impl_->stats(); }
Bytes Pool::limit() const { return impl_->limit(); }
void Pool::ResetPeak() { impl_->ResetPeak(); }
MemorySnapshot Pool::Snapshot() const { return impl_->Snapshot(); }
std::vector<MemoryOwner> Pool::LargestOwners(std::size_t n) const { return impl_->LargestOwners(n); }
absl::Status Pool::StartTrace(const std::string& path) { return impl_->StartTrace(path); }
absl::Status Pool::StopTrace() { return impl_->StopTrace(); }
absl::Status Pool::CheckInvariants() const { return impl_->CheckInvariants(); }

Pool::Impl::Impl(std::unique_ptr<RegionSource> source, PoolOptions options)
    : source_(std::move(source)),
      options_(std::move(options)),
      fences_(options_.fences.get()),
      base_(source_->base()),
      reserved_(RoundDown(std::min(source_->reserved(), Suballocator::kMaxReserved), source_->granularity())),
      granularity_(source_->granularity()),
      blocks_(reserved_, granularity_),
      nodes_(blocks_.nodes()) {}

Pool::Impl::~Impl() {
  if (!epoch_.IsForked()) {
    StopTrace().IgnoreError();
  }
}

absl::Status Pool::Impl::ForkedError() const {
  return absl::FailedPreconditionError(
      "this process is a forked child: device memory does not work across fork; exec a program, or open a "
      "context in the child only");
}

absl::Status Pool::Impl::CheckRequest(Bytes bytes, const AllocateOptions& options) const {
  LGPU_RETURN_IF_ERROR(CheckAlive());
  if (bytes.is_zero()) {
    return absl::InvalidArgumentError("a block of 0 bytes was asked for; ask for one byte at least");
  }
  if (!IsAlignment(options.alignment)) {
    return absl::InvalidArgumentError(absl::StrCat("an alignment of ", options.alignment.count(),
                                                   " bytes was asked for; it has to be a power of two, at "
                                                   "most ",
                                                   FormatBytes(granularity_)));
  }
  if (options.scratch && (IsCacheable(bytes) || options.stream != StreamOrder::kHome)) {
    return absl::InvalidArgumentError(absl::StrCat("scratch memory of ", bytes.count(), " bytes for stream ",
                                                   options.stream, " was asked for; it has to be more than ",
                                                   FormatBytes(FrontCache::kLargest), ", for stream 0"));
  }
  if (options.filled_on != StreamOrder::kHome &&
      (IsCacheable(bytes) || options.stream != StreamOrder::kHome || options.scratch)) {
    return absl::InvalidArgumentError(
        absl::StrCat("a block of ", bytes.count(), " bytes for stream ", options.stream,
                     ", filled on stream ", options.filled_on, ", was asked for; it has to be more than ",
                     FormatBytes(FrontCache::kLargest), ", for stream 0, and no scratch memory"));
  }
  LGPU_RETURN_IF_ERROR(CheckStreamId(options.filled_on));
  return CheckStreamId(options.stream);
}

// ---- entries of blocks

inline void Pool::Impl::Describe(Node& node, Bytes padding, const AllocateOptions& options) {
  node.behind = BlockEntry::About(static_cast<std::uint32_t>(padding.count()), options.stream,
                                  owners_.IdOf(options.op));
  node.before = tick_.load(std::memory_order_relaxed);
}

[[gnu::always_inline]] inline Block Pool::Impl::BlockAt(std::uint32_t index) const {
  const Node& node = nodes_[index];
  Block block;
  block.node = index;
  block.generation = node.generation();
  // In one piece, for callers copy it so: a processor waits where a load needs what two stores wrote.
  using Pair = std::uint64_t __attribute__((vector_size(16)));
  const Pair head = {reinterpret_cast<std::uintptr_t>(base_ + (Suballocator::kGranule * node.offset).count()),
                     (Suballocator::kGranule * node.size).count()};
  static_assert(offsetof(Block, bytes) == 8 && sizeof(Bytes) == 8 && std::is_trivially_copyable_v<Block>);
  std::memcpy(static_cast<void*>(&block), &head, sizeof(head));
  return block;
}

std::uint32_t Pool::Impl::HandOut(Suballocator::Handle handle, Bytes requested,
                                  const AllocateOptions& options) {
  const std::uint32_t index = Suballocator::SlotOf(handle);
  Node& node = nodes_[index];
  if (by_address_.is_on()) {
    by_address_.Insert(node.offset, index);
  }
  const Bytes padding = Suballocator::kGranule * node.size - requested;
  padding_ += static_cast<std::int64_t>(padding.count());
  if (options.scratch) {
    scratch_blocks_.insert(index);
    scratch_ += Suballocator::kGranule * node.size;
    scratch_padding_ += padding;
  } else {
    ++num_allocs_;
  }
  NoteCharged();
  Tick();
  Describe(node, padding, options);
  return index;
}

void Pool::Impl::Release(std::uint32_t index, std::uint32_t stamp) {
  if (by_address_.is_on()) {
    by_address_.Erase(nodes_[index].offset);
  }
  blocks_.Free(blocks_.HandleAt(index), stamp);
  NoteCharged();
  if (free_waiters_ > 0) [[unlikely]] {
    freed_.NotifyAll();
  }
}

// Where little is left of the limit, every hole counts: searches are careful, and nothing is cached.
void Pool::Impl::SetLevel(std::uint64_t charged) {
  const std::uint64_t sixteenth = limit_seen_.count() / 16;
  const bool scarce = charged >= sixteenth * (level_ == Level::kScarce ? 12 : 13);
  const bool half = charged >= sixteenth * (level_ == Level::kAmple ? 8 : 7);
  const Level level = scarce ? Level::kScarce : half ? Level::kHalf : Level::kAmple;
  level_begin_ = scarce ? sixteenth * 12 : half ? sixteenth * 7 : 0;
  level_end_ = scarce ? ~std::uint64_t{0} : sixteenth * (half ? 13 : 8);
  const Bytes share = limit_seen_ / (half ? kCacheShareAboveHalf : kCacheShare);
  const Bytes budget = scarce ? Bytes() : std::min(options_.cache_per_thread, share);
  cache_budget_.store(static_cast<std::int64_t>(budget.count()), std::memory_order_relaxed);
  blocks_.SetScarce(scarce);
  if (std::exchange(level_, level) < level) {
    FlushCaches();
  }
}

void Pool::Impl::NoteCharged() {
  const std::uint64_t charged = blocks_.used().count();
  charged_.store(charged, std::memory_order_relaxed);
  const std::uint64_t owned = charged - scratch_.count();
  owned_.store(owned, std::memory_order_relaxed);
  // A look at all caches takes their lines from their threads.
  if (owned > peak_used_.load(std::memory_order_relaxed) && (cache_.is_single() || owned > peak_owned_)) {
    peak_owned_ = owned;
    RaisePeak(owned);
  }
  if (charged < level_begin_ || charged >= level_end_) [[unlikely]] {
    SetLevel(charged);
  }
  // An upper bound that seldom changes. Where that matters, close to the limit, there are no hits anyway.
  const std::uint64_t step = (limit_seen_.count() / kChargedSteps) + 1;
  const std::uint64_t bound = charged_at_most_.load(std::memory_order_relaxed);
  if (charged > bound || bound - charged > 2 * step) [[unlikely]] {
    charged_at_most_.store(charged + step, std::memory_order_relaxed);
  }
  NoteDemand();
}

// What is charged, without scratch memory, is an upper bound of what is used: only where that is beyond the
// peak it is worth while to look at all caches.
void Pool::Impl::RaisePeak(std::uint64_t owned) {
  const std::int64_t used = static_cast<std::int64_t>(owned) - cache_.bytes() -
                            static_cast<std::int64_t>(fenced_.load(std::memory_order_relaxed));
  std::uint64_t peak = peak_used_.load(std::memory_order_relaxed);
  while (
      used > 0 && static_cast<std::uint64_t>(used) > peak &&
      !peak_used_.compare_exchange_weak(peak, static_cast<std::uint64_t>(used), std::memory_order_relaxed)) {
  }
}

// ---- front cache

// Most looks at the clock find the same time.
void Pool::Impl::Tick() {
  const std::uint32_t now = CoarseMilliseconds();
  if (tick_.load(std::memory_order_relaxed) != now) {
    tick_.store(now, std::memory_order_relaxed);
  }
}

[[gnu::always_inline]] inline std::uint32_t Pool::Impl::TakeCached(Shard& shard, Bytes requested,
                                                                   const AllocateOptions& options) {
  // A lowered limit holds for cached blocks as well.
  if (Bytes(charged_at_most_.load(std::memory_order_relaxed)) > source_->limit()) [[unlikely]] {
    return 0;
  }
  const auto size = static_cast<std::uint32_t>((requested.count() + FrontCache::kUnit.count() - 1) /
                                               FrontCache::kUnit.count());
  const std::uint32_t index = shard.Take(size);
  if (index == 0) {
    return 0;
  }
  Node& node = nodes_[index];
  const Bytes padding = FrontCache::kUnit * size - requested;
  // Even this clock would be a tenth of a hit.
  constexpr std::uint64_t kHitsPerTick = 64;
  if (shard.CountHit(size, static_cast<std::int64_t>(padding.count())) % kHitsPerTick == 0) {
    Tick();
  }
  Describe(node, padding, options);
  node.word.store(Node::Word(node.generation() + 1, Node::kLive), std::memory_order_release);
  // Several threads would read each other's lines here: their peak is looked at where the lock is held.
  if (cache_.is_single()) {
    const std::uint64_t owned = owned_.load(std::memory_order_relaxed);
    if (owned - static_cast<std::uint64_t>(shard.bytes()) > peak_used_.load(std::memory_order_relaxed))
        [[unlikely]] {
      RaisePeak(owned);
    }
  }
  return index;
}

// What was freed and lies in a queue.
bool Pool::Impl::ReleaseQueue(Shard& shard) {
  const bool any = shard.DrainQueue([this](std::uint32_t index) {
    mutex_.AssertHeld();
    Release(index, order_.stamp());
  });
  if (any) {
    order_.NoteFree(StreamOrder::Only(StreamOrder::kHome));
  }
  return any;
}

bool Pool::Impl::ReleaseQueues() {
  const bool any = cache_.DrainQueues([this](std::uint32_t index) {
    mutex_.AssertHeld();
    Release(index, order_.stamp());
  });
  if (any) {
    order_.NoteFree(StreamOrder::Only(StreamOrder::kHome));
  }
  return any;
}

bool Pool::Impl::FlushCaches() {
  const bool any = cache_.Drain([this](std::uint32_t index) {
    mutex_.AssertHeld();
    Release(index, order_.stamp());
  });
  if (any) {
    order_.NoteFree(StreamOrder::Only(StreamOrder::kHome));
    ++cache_flushes_;
  }
  return any;
}

// ---- Allocate

bool Pool::Impl::Fits(Bytes rounded, Bytes limit) const {
  return SaturatingAdd(blocks_.used() + pending_, rounded) <= limit;
}

// What others are about to use may not come to be.
void Pool::Impl::WaitForPending(Bytes rounded, Bytes limit, std::chrono::nanoseconds timeout) {
  const auto deadline = DeadlineAfter(timeout);
  ++calls_;
  ++waiting_;
  while (!Fits(rounded, limit) && SaturatingAdd(blocks_.used(), rounded) <= limit &&
         changed_.WaitUntil(mutex_, deadline)) {
  }
  --waiting_;
  --calls_;
}

absl::StatusOr<Block> Pool::Impl::Allocate(Bytes bytes, const AllocateOptions& options) {
  if (bytes.is_zero() || !IsAlignment(options.alignment) || options.stream != StreamOrder::kHome ||
      options.scratch || options.filled_on != StreamOrder::kHome || epoch_.IsForked()) [[unlikely]] {
    LGPU_RETURN_IF_ERROR(CheckRequest(bytes, options));
  }
  Shard* const shard = cache_.Mine();
  std::uint32_t index = 0;
  if (IsCacheable(bytes) && shard != nullptr && options.alignment <= Suballocator::kGranule &&
      options.stream == StreamOrder::kHome) {
    index = TakeCached(*shard, bytes, options);
  }
  if (index == 0) {
    absl::Status status = AllocateUncached(shard, bytes, options, index);
    if (!status.ok()) [[unlikely]] {
      if (options.spare_only && absl::IsResourceExhausted(status)) {
        return NoneToSpare();
      }
      RecordAllocate(nullptr, bytes, options);
      return status;
    }
  }
  if (trace_.load(std::memory_order_relaxed) != nullptr) [[unlikely]] {
    RecordAllocate(BlockAt(index).address, bytes, options);
  }
  return BlockAt(index);
}

// The part under the lock, out of mapped memory. kSlow: an attempt may get it, and is counted as pending.
Pool::Impl::Quick Pool::Impl::TryMapped(const Shard* shard, Bytes bytes, const AllocateOptions& options,
                                        Bytes limit, std::uint32_t& index) {
  const Bytes rounded = RoundUp(bytes, Suballocator::kGranule);
  if (options.stream != StreamOrder::kHome) {
    other_streams_ = true;
    index = Fits(Bytes(), limit) ? TakeParked(bytes, options) : 0;
    if (index != 0) {
      return Quick::kParked;
    }
  }
  if (!Fits(rounded, limit)) {
    ReleaseQueues();
    FlushCaches();
    if (!Fits(rounded, limit) && fenced_.load(std::memory_order_relaxed) == 0 && !options.spare_only) {
      WaitForPending(rounded, limit, options.timeout);
    }
    if (!Fits(rounded, limit)) {
      return Quick::kOver;
    }
  }
  if (rounded > reserved_) {
    return Quick::kOver;
  }
  if (const auto handle =
          blocks_.Allocate({.bytes = bytes, .alignment = options.alignment, .home = HomeOf(shard)},
                           Suballocator::Effort::kQuick)) {
    index = HandOut(*handle, bytes, options);
    return Quick::kDone;
  }
  pending_ += rounded;
  ++calls_;
  return Quick::kSlow;
}

[[gnu::noinline]] absl::Status Pool::Impl::AllocateOnce(Shard* shard, Bytes bytes,
                                                        const AllocateOptions& options,
                                                        std::uint32_t& index) {
  const Bytes limit = source_->limit();
  Quick quick;
  Suballocator::Stamp freed_at = 0;
  {
    MutexLock lock(mutex_);
    NoteThread();
    if (limit != limit_seen_) {
      limit_seen_ = limit;
      SetLevel(blocks_.used().count());
    }
    if (shard != nullptr) {
      ReleaseQueue(*shard);
    }
    quick = TryMapped(shard, bytes, options, limit, index);
    freed_at = blocks_.freed_at();
  }
  WakeIfDue();
  if (quick == Quick::kOver && options.spare_only) {
    return NoneToSpare();
  }
  if (quick == Quick::kOver && fenced_.load(std::memory_order_relaxed) != 0) {
    // Blocks that streams are not done with yet count against the limit: the last that can be had back.
    LGPU_RETURN_IF_ERROR(AwaitFences());
    MutexLock lock(mutex_);
    quick = TryMapped(shard, bytes, options, limit, index);
    freed_at = blocks_.freed_at();
  }
  if (quick == Quick::kParked) {
    return absl::OkStatus();
  }
  if (quick == Quick::kOver) {
    return RefuseOver(bytes, options, limit);
  }
  if (quick == Quick::kSlow) {
    LGPU_ASSIGN_OR_RETURN(index, AllocatePending(shard, bytes, options, limit, freed_at));
  }
  const StreamId first = options.filled_on != StreamOrder::kHome ? options.filled_on : options.stream;
  if (first != StreamOrder::kHome) {
    if (absl::Status status = OrderAfterHome(first, freed_at); !status.ok()) {
      Free(BlockAt(std::exchange(index, 0))).IgnoreError();
      return status;
    }
  }
  return absl::OkStatus();
}

absl::Status Pool::Impl::NoneToSpare() { return absl::ResourceExhaustedError("no memory lies ready"); }

absl::Status Pool::Impl::RefuseOver(Bytes bytes, const AllocateOptions& options, Bytes limit) {
  const Attempt attempt{.bytes = bytes, .options = options, .limit = limit};
  Refusal refusal;
  {
    MutexLock lock(mutex_);
    refusal = MakeRefusal(bytes <= reserved_ ? RefusalReason::kLimit : RefusalReason::kAddressRange, attempt);
  }
  return RefusalStatus(refusal);
}

absl::StatusOr<std::uint32_t> Pool::Impl::AllocatePending(const Shard* shard, Bytes bytes,
                                                          const AllocateOptions& options, Bytes limit,
                                                          Suballocator::Stamp& freed_at) {
  Attempt attempt{.bytes = bytes,
                  .options = options,
                  .shard = shard,
                  .deadline = DeadlineAfter(options.timeout),
                  .limit = limit};
  absl::StatusOr<std::uint32_t> index = AllocateSlowly(attempt);
  freed_at = attempt.freed_at;
  WakeIfDue();
  MutexLock lock(mutex_);
  --calls_;
  NoteChange();
  return index;
}

void Pool::Impl::CountRefusal(RefusalReason reason) {
  ++num_refusals_;
  last_refusal_ = reason;
}

}  // namespace lgpu
