#include "lgpu/pool.h"

#include <algorithm>
#include <chrono>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "allocator/pool/pool_impl.h"
#include "base/interrupt.h"
#include "lgpu/refusal.h"
#include "lgpu/status.h"

namespace lgpu {
namespace {

// Blocks that other threads free into their caches wake no waiter, so waiters look for them.
constexpr std::chrono::milliseconds kFirstLook{1};
constexpr std::chrono::milliseconds kLongestLook{16};

static_assert(FrontCache::kMostShards <= Suballocator::kHomes);
std::uint32_t HomeOf(const FrontCache::Shard* shard) { return shard == nullptr ? 0 : shard->number(); }

}  // namespace

Pool::Pool(std::unique_ptr<RegionSource> source, PoolOptions options)
    : impl_(std::make_unique<Impl>(std::move(source), std::move(options))) {}
Pool::Pool(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Pool::~Pool() = default;

std::unique_ptr<Pool> MakePoolWithPolicy(std::unique_ptr<RegionSource> source, PoolOptions options,
                                         const GrowthPolicy& policy) {
  return std::unique_ptr<Pool>(
      new Pool(std::make_unique<Pool::Impl>(std::move(source), std::move(options), policy)));
}

absl::StatusOr<Block> Pool::Allocate(Bytes bytes, const AllocateOptions& options) {
  return impl_->Allocate(bytes, options);
}
absl::Status Pool::Free(const void* address) { return impl_->Free(address); }
absl::StatusOr<Block> Pool::Find(const void* address) { return impl_->Find(address); }
absl::Status Pool::UseOn(const Block& block, StreamId stream) { return impl_->UseOn(block, stream); }
absl::StatusOr<Bytes> Pool::RequestedOf(const Block& block) const { return impl_->RequestedOf(block); }
absl::StatusOr<Bytes> Pool::Trim(Bytes at_most) { return impl_->upkeep().Trim(at_most); }
absl::StatusOr<Pool::Trimmed> Pool::TrimFor(Bytes bytes) { return impl_->upkeep().TrimFor(bytes); }
std::optional<std::chrono::steady_clock::time_point> Pool::Maintain(
    std::chrono::steady_clock::time_point now) {
  return impl_->upkeep().Maintain(now);
}
absl::Status Pool::Suspend() { return impl_->suspension().Suspend(); }
bool Pool::is_suspended() const { return impl_->suspension().is_suspended(); }
absl::Status Pool::Resume(std::chrono::nanoseconds timeout) { return impl_->suspension().Resume(timeout); }
MemoryStats Pool::stats() const { return impl_->stats(); }
Bytes Pool::limit() const { return impl_->limit(); }
void Pool::ResetPeak() { impl_->ResetPeak(); }
MemorySnapshot Pool::Snapshot() const { return impl_->Snapshot(); }
absl::StatusOr<PoolBlocks> Pool::Blocks(std::uint64_t at_most) const { return impl_->Blocks(at_most); }
std::vector<MemoryOwner> Pool::LargestOwners(std::size_t n) const { return impl_->LargestOwners(n); }
absl::Status Pool::StartTrace(const std::string& path) { return impl_->StartTrace(path); }
absl::Status Pool::StopTrace() { return impl_->StopTrace(); }
absl::Status Pool::CheckInvariants() const { return impl_->CheckInvariants(); }

Pool::Impl::Impl(std::unique_ptr<RegionSource> source, PoolOptions options, const GrowthPolicy& policy)
    : state_(std::move(source), std::move(options), policy) {}

Pool::Impl::~Impl() {
  if (!state_.epoch.IsForked()) StopTrace().IgnoreError();
}

// ---- Requests that are wrong in every state.

absl::Status Pool::Impl::CheckStreamId(StreamId stream) const {
  if (stream == StreamOrder::kHome || (stream < kMaxStreams && state_.fences != nullptr)) {
    return absl::OkStatus();
  }
  if (state_.fences == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat("stream ", stream,
                     " was named, but this pool knows one stream only, 0: it was made without "
                     "PoolOptions.fences"));
  }
  return absl::InvalidArgumentError(
      absl::StrCat("stream ", stream, " was named; numbers of streams are below ", kMaxStreams));
}

absl::Status Pool::Impl::CheckRequest(Bytes bytes, const AllocateOptions& options) const {
  LGPU_RETURN_IF_ERROR(state_.CheckAlive());
  if (bytes.is_zero()) {
    return absl::InvalidArgumentError("a block of 0 bytes was asked for; ask for one byte at least");
  }
  if (!IsAlignment(options.alignment)) {
    return absl::InvalidArgumentError(absl::StrCat("an alignment of ", options.alignment.count(),
                                                   " bytes was asked for; it has to be a power of two, at "
                                                   "most ",
                                                   FormatBytes(state_.page)));
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

// ---- The front cache.

[[gnu::always_inline]] inline std::uint32_t Pool::Impl::TakeCached(Shard& shard, Bytes requested,
                                                                   const AllocateOptions& options) {
  // A lowered limit holds for cached blocks as well.
  if (Bytes(state_.bounds.charged_at_most.load(std::memory_order_relaxed)) > state_.source->limit())
      [[unlikely]] {
    return 0;
  }
  const auto size = static_cast<std::uint32_t>((requested.count() + FrontCache::kUnit.count() - 1) /
                                               FrontCache::kUnit.count());
  const std::uint32_t index = shard.Take(size);
  if (index == 0) return 0;
  Node& node = state_.nodes[index];
  const Bytes padding = FrontCache::kUnit * size - requested;
  // Even the kernel's coarse clock would be a tenth of a hit.
  constexpr std::uint64_t kHitsPerTick = 64;
  if (shard.CountHit(size, static_cast<std::int64_t>(padding.count())) % kHitsPerTick == 0) state_.Tick();
  state_.Describe(node, padding, options);
  node.word.store(Node::Word(node.generation() + 1, Node::kLive), std::memory_order_release);
  state_.meter.NoteHit(shard.bytes());
  return index;
}

// ---- Allocate.

absl::StatusOr<Block> Pool::Impl::Allocate(Bytes bytes, const AllocateOptions& options) {
  if (bytes.is_zero() || !IsAlignment(options.alignment) || options.stream != StreamOrder::kHome ||
      options.scratch || options.filled_on != StreamOrder::kHome || state_.epoch.IsForked()) [[unlikely]] {
    LGPU_RETURN_IF_ERROR(CheckRequest(bytes, options));
  }
  Shard* const shard = state_.cache.Mine();
  std::uint32_t index = 0;
  if (IsCacheable(bytes) && shard != nullptr && options.alignment <= Suballocator::kGranule &&
      options.stream == StreamOrder::kHome) {
    index = TakeCached(*shard, bytes, options);
  }
  if (index == 0) {
    absl::Status status = AllocateUncached(shard, bytes, options, index);
    if (!status.ok()) [[unlikely]] {
      if (options.spare_only && absl::IsResourceExhausted(status)) return NoneToSpare();
      RecordAllocate(nullptr, bytes, options);
      return status;
    }
  }
  if (state_.trace.load(std::memory_order_relaxed) != nullptr) [[unlikely]] {
    RecordAllocate(state_.BlockAt(index).address, bytes, options);
  }
  return state_.BlockAt(index);
}

absl::Status Pool::Impl::AllocateUncached(Shard* shard, Bytes bytes, const AllocateOptions& options,
                                          std::uint32_t& index) {
  absl::Status status = AllocateOnce(shard, bytes, options, index);
  if (status.ok()) [[likely]] {
    return status;
  }
  if (MayComeFree(status, bytes, options)) status = AwaitFrees(shard, bytes, options, index);
  if (absl::IsResourceExhausted(status) && !options.spare_only) {
    const std::optional<Refusal> known = GetRefusal(status);
    MutexLock lock(state_.mutex);
    ++state_.counts.refusals;
    state_.counts.last_refusal = known ? known->reason : RefusalReason::kUnspecified;
  }
  return status;
}

[[gnu::noinline]] absl::Status Pool::Impl::AllocateOnce(Shard* shard, Bytes bytes,
                                                        const AllocateOptions& options,
                                                        std::uint32_t& index) {
  Bytes limit;
  Quick quick;
  Suballocator::Stamp freed_at = 0;
  for (Attempt attempt = Attempt::kFirst;; attempt = Attempt::kBehindFences) {
    limit = state_.source->limit();
    {
      MutexLock lock(state_.mutex);
      state_.NoteLimit(limit);
      if (shard != nullptr && shard->has_queue()) state_.ReleaseQueue(*shard);
      quick = TryMapped(shard, bytes, options, limit, attempt, index);
      freed_at = state_.blocks.freed_at();
    }
    state_.WakeIfDue();
    if (quick != Quick::kOver || options.spare_only || attempt == Attempt::kBehindFences ||
        state_.fenced.load(std::memory_order_relaxed) == 0) {
      break;
    }
    // Blocks that wait for fences count against the limit. Waiting for them is the last means.
    LGPU_RETURN_IF_ERROR(fences_.Await());
  }
  if (quick == Quick::kParked) return absl::OkStatus();
  if (quick == Quick::kOver) {
    if (options.spare_only) return NoneToSpare();
    if (Interrupt::HasHappened()) return Interrupt::Error();
    const auto reason = bytes <= state_.reserved ? RefusalReason::kLimit : RefusalReason::kAddressRange;
    MutexLock lock(state_.mutex);
    return RefusalStatus(state_.MakeRefusal(reason, bytes, options, limit));
  }
  if (quick == Quick::kSlow) {
    LGPU_ASSIGN_OR_RETURN(const Growth::Result result, growth_.Allocate(bytes, options, HomeOf(shard)));
    index = result.index;
    freed_at = result.freed_at;
  }
  const StreamId first = options.filled_on != StreamOrder::kHome ? options.filled_on : options.stream;
  if (first != StreamOrder::kHome) {
    if (absl::Status status = fences_.OrderAfterHome(first, freed_at); !status.ok()) {
      const std::uint32_t about = state_.nodes[index].behind;
      FreeUncached(shard, std::exchange(index, 0), false, about);
      MutexLock lock(state_.mutex);
      --state_.counts.allocs;
      return status;
    }
    state_.WakeIfDue();
  }
  return absl::OkStatus();
}

// Takes the block from mapped memory. kSlow: Growth may get it; the request is counted as pending.
Pool::Impl::Quick Pool::Impl::TryMapped(const Shard* shard, Bytes bytes, const AllocateOptions& options,
                                        Bytes limit, Attempt attempt, std::uint32_t& index) {
  const Bytes rounded = RoundUp(bytes, Suballocator::kGranule);
  if (options.stream != StreamOrder::kHome) {
    index = state_.Fits(Bytes(), limit) ? state_.TakeParked(bytes, options) : 0;
    if (index != 0) return Quick::kParked;
  }
  if (!state_.Fits(rounded, limit)) {
    state_.FlushCaches();
    const bool waits =
        attempt == Attempt::kBehindFences || state_.fenced.load(std::memory_order_relaxed) == 0;
    if (!state_.Fits(rounded, limit) && waits && !options.spare_only) {
      WaitForPending(rounded, limit, options.timeout);
    }
    if (!state_.Fits(rounded, limit)) return Quick::kOver;
  }
  if (rounded > state_.reserved) return Quick::kOver;
  if (const auto handle =
          state_.blocks.Allocate({.bytes = bytes, .alignment = options.alignment, .home = HomeOf(shard)},
                                 Suballocator::Effort::kQuick)) {
    index = state_.HandOut(*handle, bytes, options);
    return Quick::kDone;
  }
  state_.pending += rounded;
  ++state_.calls;
  return Quick::kSlow;
}

// ---- Waiting at the limit.

// Requests that are growing may release the bytes they reserved; wait for them before refusing.
void Pool::Impl::WaitForPending(Bytes rounded, Bytes limit, std::chrono::nanoseconds timeout) {
  const auto deadline = PoolState::DeadlineAfter(timeout);
  ++state_.calls;
  ++state_.waiting;
  while (!state_.Fits(rounded, limit) && SaturatingAdd(state_.blocks.used(), rounded) <= limit &&
         Interrupt::WaitUntil(state_.changed, state_.mutex, deadline)) {
  }
  --state_.waiting;
  --state_.calls;
}

// Also false where no other thread used the pool of late: this thread would wait in vain.
bool Pool::Impl::MayComeFree(const absl::Status& refused, Bytes bytes, const AllocateOptions& options) {
  if (options.timeout <= std::chrono::nanoseconds(0)) return false;
  const std::optional<Refusal> refusal = GetRefusal(refused);
  if (!refusal || refusal->reason != RefusalReason::kLimit || bytes > state_.source->limit()) return false;
  MutexLock lock(state_.mutex);
  const std::uint32_t now = PoolState::CoarseMilliseconds();
  const std::optional<std::uint32_t> used = state_.uses.LastOfOthers(ThisThread::Number(), now);
  return used && std::chrono::milliseconds(now - *used) <= options.timeout;
}

absl::Status Pool::Impl::AwaitFrees(Shard* shard, Bytes bytes, const AllocateOptions& options,
                                    std::uint32_t& index) {
  using Clock = PoolState::Clock;
  const Clock::time_point start = Clock::now();
  const Clock::time_point deadline = PoolState::DeadlineAfter(options.timeout);
  AllocateOptions again = options;
  Clock::duration look = kFirstLook;
  while (true) {
    {
      MutexLock lock(state_.mutex);
      ++state_.free_waiters;
      Interrupt::WaitUntil(state_.freed, state_.mutex, std::min(deadline, Clock::now() + look));
      --state_.free_waiters;
    }
    if (Interrupt::HasHappened()) return Interrupt::Error();
    look = std::min<Clock::duration>(2 * look, kLongestLook);
    const Clock::time_point now = Clock::now();
    again.timeout = std::max<std::chrono::nanoseconds>(deadline - now, {});
    const absl::Status status = AllocateOnce(shard, bytes, again, index);
    std::optional<Refusal> refusal = GetRefusal(status);
    if (!refusal || refusal->reason != RefusalReason::kLimit) return status;
    if (now >= deadline) {
      refusal->waited = std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - start);
      return RefusalStatus(*refusal);
    }
  }
}

}  // namespace lgpu
