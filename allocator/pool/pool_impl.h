#ifndef LGPU_ALLOCATOR_POOL_POOL_IMPL_H_
#define LGPU_ALLOCATOR_POOL_POOL_IMPL_H_

#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "allocator/pool/block_entry.h"
#include "allocator/pool/pool_cache.h"
#include "allocator/pool/pool_lookup.h"
#include "allocator/pool/pool_owners.h"
#include "allocator/pool/pool_streams.h"
#include "allocator/pool/pool_trace.h"
#include "allocator/suballocator.h"
#include "base/mutex.h"
#include "base/process_epoch.h"
#include "lgpu/pool.h"
#include "lgpu/refusal.h"

namespace lgpu {

std::vector<ChunkId> IdsOf(const std::vector<Chunk>& chunks);

/// The inside of a Pool: a Suballocator under a lock, the chunks under it, and what stands in front of it.
///
///   pool.cc            Allocate, from the front cache down to the sub-allocator
///   pool_free.cc       Free, up again
///   pool_growth.cc     what happens when mapped memory does not suffice
///   pool_fences.cc     memory that streams are not done with yet
///   pool_maintain.cc   growing ahead, decay, Trim
///   pool_wait.cc       waiting at the limit for other threads
///   pool_find.cc       addresses without handles, and what to say of wrong ones
///   pool_stats.cc      statistics, invariants
///   pool_snapshot.cc   everything for people to look at
///
/// A block of the sub-allocator is live there also while it lies in a front cache or waits for fences
/// ("charged"). The state of its Node says which:
///
///   charged = used + scratch + cached + fenced;   charged + pending <= limit when an attempt starts
///
/// A request that does not fit into mapped memory is an Attempt. It alternates between steps under the
/// lock, which decide what is missing, and calls of the source without it, which get it. Whatever an
/// attempt has in its hands (chunks, a claimed place, detached ranges) is nobody else's meanwhile, and
/// goes back when a call fails. held, which CheckInvariants() compares when no call is on its way, is
///
///   held = chunks that are mapped + spare chunks;   mapped pages are exactly those of mapped chunks
///
/// The promise: a refusal by the limit means exactly that, with everything flushed and all fences waited for,
///
///   bytes in live blocks + bytes asked for > limit, or pinned + needed > limit in whole pages
///   pinned = bytes of all chunks that hold a byte of a live or fenced block
///   needed = the fewest bytes of pages, in no pinned chunk, that the block touches, over all places that
///            hold no live block
///
/// for every mix of chunk classes, of a source that grants at_least as long as it fits and no chunk larger
/// than `wanted`: idle chunks move, and larger ones than fit go back in exchange for smaller ones, hole by
/// hole. Where a source has only larger chunks, what is needed counts in those.
class Pool::Impl {
 public:
  Impl(std::unique_ptr<RegionSource> source, PoolOptions options);
  ~Impl();

  absl::StatusOr<Block> Allocate(Bytes bytes, const AllocateOptions& options);
  absl::Status Free(const Block& block);
  absl::Status Free(const void* address);
  absl::StatusOr<Block> Find(const void* address);
  absl::Status UseOn(const Block& block, StreamId stream);
  absl::StatusOr<Bytes> Trim(Bytes at_most);
  absl::StatusOr<Trimmed> TrimFor(Bytes bytes);
  std::optional<std::chrono::steady_clock::time_point> Maintain(std::chrono::steady_clock::time_point now);
  MemoryStats stats() const;
  Bytes limit() const;
  void ResetPeak();
  MemorySnapshot Snapshot() const;
  std::vector<MemoryOwner> LargestOwners(std::size_t n) const;
  absl::Status StartTrace(const std::string& path);
  absl::Status StopTrace();
  absl::Status CheckInvariants() const;

 private:
  using Shard = FrontCache::Shard;
  using Streams = StreamOrder::Streams;
  /// Neighbouring chunks that were taken out of use together.
  struct Run {
    Suballocator::Handle detached = 0;
    Suballocator::Range range{};
    std::vector<Chunk> chunks{};
  };
  enum class Step { kDone, kGrow, kMove, kReturn, kSettle, kMap, kFail };
  struct Attempt {
    Bytes bytes{};
    const AllocateOptions& options;
    const Shard* shard = nullptr;  // of the thread that asks
    std::chrono::steady_clock::time_point deadline{};
    Bytes limit{};
    std::vector<Chunk> chunks{};   // granted and not mapped, for this attempt
    std::vector<ChunkId> grown{};  // which of them the source gave to this attempt
    std::optional<absl::Status> grow_refused{};
    bool hasty = false;    // that was without waiting, for there is idle memory to try first
    bool patient = false;  // it was tried
    std::uint64_t seen_changes = 0;
    int retries = 0;
    int steps = 0;
    int pressure_steps = 0;
    bool larger_came = false;  // the source gave a larger chunk than it was asked for
    bool any_chunk = false;    // the source has none of one page for a small block
    Bytes room_behind{};       // the source has none that are small enough: this much may stick out
    bool exact = false;        // ask for no more than is missing
    bool coarse = false;       // the source had only larger chunks even so
    bool combined = false;     // idle chunks were taken to make a refused step of growth smaller
    bool fences_asked = false;
    bool fences_passed = false;
    // What the next step needs.
    GrowRequest request{};
    std::vector<Run> runs{};
    std::vector<Chunk> surplus{};  // to be returned
    Suballocator::Claim claim{};
    std::vector<ChunkPlacement> placements{};
    std::vector<Chunk> placed{};  // in the order of placements
    // The result.
    std::uint32_t index = 0;
    Suballocator::Stamp freed_at = 0;  // of what was there before
    absl::Status status{};
  };
  enum class Bound { kAtLeast, kAtMost };
  /// Chunks for the pages that a place needs, out of those at hand.
  struct Fill {
    std::vector<Chunk> chunks{};
    std::vector<Suballocator::Range> places{};
    Bytes missing{};       // what no chunk was there for
    Bytes largest_hole{};  // of what is missing, in one piece
    bool small = false;    // only chunks of one page will do
  };

  absl::Status CheckAlive() const { return epoch_.IsForked() ? ForkedError() : absl::OkStatus(); }
  absl::Status CheckStreamId(StreamId stream) const {
    return stream == StreamOrder::kHome ? absl::OkStatus() : CheckOtherStream(stream);
  }
  absl::Status CheckOtherStream(StreamId stream) const;
  absl::Status ForkedError() const;
  static std::uint32_t CoarseMilliseconds();
  bool IsAlignment(Bytes alignment) const {
    const std::uint64_t bytes = alignment.count();
    return bytes != 0 && (bytes & (bytes - 1)) == 0 && alignment <= granularity_;
  }
  absl::Status CheckRequest(Bytes bytes, const AllocateOptions& options) const;
  Refusal MakeRefusal(RefusalReason reason, const Attempt& attempt) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status WithNumbers(const absl::Status& status, const Attempt& attempt)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // Blocks.
  absl::Status AllocateUncached(Shard* shard, Bytes bytes, const AllocateOptions& options,
                                std::uint32_t& index);
  absl::Status AllocateOnce(Shard* shard, Bytes bytes, const AllocateOptions& options, std::uint32_t& index);
  /// AllocateOnce again and again, until other threads freed enough or the timeout is over.
  absl::Status AwaitFrees(Shard* shard, Bytes bytes, const AllocateOptions& options, std::uint32_t& index);
  bool MayComeFree(const absl::Status& refused, Bytes bytes, const AllocateOptions& options) const;
  void NoteThread() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  static std::chrono::steady_clock::time_point DeadlineAfter(std::chrono::nanoseconds timeout);
  /// Makes the entry of a block that the sub-allocator just made.
  std::uint32_t HandOut(Suballocator::Handle handle, Bytes requested, const AllocateOptions& options)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  Block BlockAt(std::uint32_t index) const;
  /// A block out of this thread's cache; no address: there is none.
  std::uint32_t TakeCached(Shard& shard, Bytes requested, const AllocateOptions& options);
  /// What is cached gets its next name without the sub-allocator.
  static bool HasNames(std::uint32_t generation) { return generation + 2 < Node::kGenerations; }
  static bool IsCacheable(Bytes bytes) { return bytes <= FrontCache::kLargest; }
  void Describe(Node& node, Bytes padding, const AllocateOptions& options);
  static absl::Status NoneToSpare();
  absl::Status RefuseOver(Bytes bytes, const AllocateOptions& options, Bytes limit);
  absl::StatusOr<std::uint32_t> AllocatePending(const Shard* shard, Bytes bytes,
                                                const AllocateOptions& options, Bytes limit,
                                                Suballocator::Stamp& freed_at);
  absl::Status FreeSmall(const Block& block);
  void FreeUncached(Shard* shard, std::uint32_t index, bool is_shared, std::uint32_t about);
  absl::Status FreeLarge(const Block& block);
  bool FreeLargeLive(const Block& block);
  void GiveUp(std::uint32_t index, bool is_shared, StreamId stream) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void RecordAllocate(std::byte* address, Bytes bytes, const AllocateOptions& options) const;
  void RecordFree(TraceRecorder& trace, const Block& block) const;
  enum class Quick { kDone, kParked, kOver, kSlow };
  Quick TryMapped(const Shard* shard, Bytes bytes, const AllocateOptions& options, Bytes limit,
                  std::uint32_t& index) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  /// Gives a block, which is nobody's any more, back to the sub-allocator.
  void Release(std::uint32_t index, std::uint32_t stamp) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  /// Gives what is queued for it to the sub-allocator; true if there was anything.
  bool ReleaseQueue(Shard& shard) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool ReleaseQueues() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  /// Empties the front caches; true if there was anything in them.
  bool FlushCaches() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  /// What is charged changed.
  void SetLevel(std::uint64_t charged) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Tick();
  void NoteCharged() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::uint64_t LiveBlocks() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  Bytes Used() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void RaisePeak(std::uint64_t owned);
  void CountRefusal(RefusalReason reason) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status NotLive(const Block& block) const;
  /// The word of its entry; zero if it is not live.
  std::uint32_t LiveWord(const Block& block) const;
  void IndexAddresses() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::string DescribeAddress(const void* address) const;

  // Growing ahead and giving back.
  Bytes GrowthStep(Bytes missing, bool small) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void NoteDemand() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void WakeIfDue();
  void GrowAhead();
  struct Surplus {
    Bytes bytes{};
    bool with_spare = false;
    bool rather_more = false;  // a chunk that is larger than what is left of `bytes` goes too
    Suballocator::Stamp settled = 0;
  };
  absl::Status SettleForTrim();
  Surplus FindSurplus(std::chrono::steady_clock::time_point now) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::optional<std::uint32_t> StampOfAge(std::chrono::steady_clock::time_point now,
                                          std::chrono::nanoseconds age) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void NoteTime(std::chrono::steady_clock::time_point now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::StatusOr<Bytes> GiveBack(const Surplus& surplus);

  // For people.
  struct EntryCopy {
    std::uint32_t offset = 0;
    std::uint32_t size = 0;
    std::uint32_t about = 0;
    std::uint32_t birth = 0;
    Node::State state = Node::kVacant;
  };
  absl::Status CheckEntries() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::vector<EntryCopy> RoomForEntries() const;
  void CopyEntries(std::vector<EntryCopy>& copies) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::vector<MemoryOwner> OwnersOf(const std::vector<EntryCopy>& entries) const;

  // Streams.
  /// A block of exactly this size that only `stream` used, and gave back.
  std::uint32_t TakeParked(Bytes requested, const AllocateOptions& options)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  /// Puts a block aside until `stream`, and the others that used it if it is shared, are done with it.
  void Park(std::uint32_t index, bool is_shared, StreamId stream) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Unpark(std::uint32_t index) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  /// Records fences for what was freed, asks those that are there, and takes what has passed. No lock.
  absl::Status PollFences();
  /// The same, and waits for all of them.
  absl::Status AwaitFences();
  absl::Status RecordFences();
  void RebaseStamps() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void ReleaseReady() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  /// Lets `stream` wait for the home stream's work with what it freed up to `stamp`.
  absl::Status OrderAfterHome(StreamId stream, Suballocator::Stamp stamp);

  bool Fits(Bytes rounded, Bytes limit) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void WaitForPending(Bytes rounded, Bytes limit, std::chrono::nanoseconds timeout)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::StatusOr<std::uint32_t> AllocateSlowly(Attempt& attempt);
  Step NextStep(Attempt& attempt) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  Step StepUnderPressure(Attempt& attempt) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  Step StepToMakeRoom(Attempt& attempt, const Suballocator::Placement& plan, const Fill& fill)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  Step StepToGrow(Attempt& attempt, const Fill& fill, Bytes room) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  Step StepToMap(Attempt& attempt, const Suballocator::Placement& plan, Fill fill)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  Step Done(Attempt& attempt, Suballocator::Handle block) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  Step Refuse(Attempt& attempt, RefusalReason reason) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  static_assert(FrontCache::kMostShards <= Suballocator::kHomes);
  static std::uint32_t HomeOf(const Shard* shard) { return shard == nullptr ? 0 : shard->number(); }
  static Suballocator::Request RequestOf(const Attempt& attempt);
  bool IsSmall(const Attempt& attempt) const;
  enum class LastChunk { kFits, kMayStickOut };
  Fill TryFill(const Attempt& attempt, const Suballocator::Placement& plan, LastChunk last) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void TakeInHand(Attempt& attempt, const std::vector<Chunk>& chunks) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  Bytes Room(const Attempt& attempt) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  Bytes Pinned(const Attempt& attempt, Suballocator::Stamp settled) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  /// Memory that was freed up to this stamp is used by nobody any more.
  Suballocator::Stamp SettledStamp() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Without the lock; false: the attempt failed with attempt.status.
  bool Grow(Attempt& attempt);
  void NoteClass(Attempt& attempt, const Chunk& chunk) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool Move(Attempt& attempt);
  bool ReturnSurplus(Attempt& attempt);
  bool WaitForFences(Attempt& attempt);
  bool Map(Attempt& attempt);
  bool WaitForOthers(Attempt& attempt);
  bool AllowAnyChunk(Attempt& attempt) const;
  absl::Status Fail(Attempt& attempt);

  void NoteChange() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  struct Wanted {  // idle chunks
    Bytes amount;
    Bound bound = Bound::kAtLeast;
    Bytes largest_chunk = Bytes(~std::uint64_t{0});
    Suballocator::Range avoid{};  // no chunk that lies wholly inside; none that overlaps unless `straddling`
    bool straddling = false;
    Suballocator::Stamp settled = Suballocator::kYoungest;
  };
  std::vector<Run> DetachIdle(const Wanted& wanted) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status UnmapRuns(const std::vector<Run>& runs);
  absl::Status ReturnChunks(const std::vector<Chunk>& chunks);

  const std::unique_ptr<RegionSource> source_;
  const PoolOptions options_;
  StreamFences* const fences_;  // of options_; may be null
  const ProcessEpoch epoch_;
  std::byte* const base_;
  const Bytes reserved_;
  const Bytes granularity_;

  alignas(64) mutable Mutex mutex_;
  Suballocator blocks_ ABSL_GUARDED_BY(mutex_);

  // What every hit reads, and hardly anybody writes: in lines of their own, or each thread that takes the
  // lock would take them away from all others.
  // Of blocks_; Node says what of it may be read and written without the lock.
  alignas(64) const NodeTable& nodes_;
  std::atomic<std::uint64_t> charged_at_most_{0};
  std::atomic<std::int64_t> cache_budget_{0};
  std::atomic<TraceRecorder*> trace_{nullptr};
  std::atomic<std::uint32_t> tick_{0};  // milliseconds, as of the last look at the clock
  FrontCache cache_;
  OwnerNames owners_;

  // Written under the lock, and peak_used_ by hits of a single thread.
  alignas(64) std::atomic<std::uint64_t> charged_{0};
  std::atomic<std::uint64_t> owned_{0};  // of these, what is no scratch memory
  std::atomic<std::uint64_t> peak_used_{0};
  std::atomic<std::uint64_t> fenced_{0};  // bytes
  std::atomic<bool> wake_due_{false};

  std::map<Bytes, Chunk> mapped_ ABSL_GUARDED_BY(mutex_);  // by offset
  std::vector<Chunk> spare_ ABSL_GUARDED_BY(mutex_);       // granted, not mapped
  bool only_large_ ABSL_GUARDED_BY(mutex_) = false;        // the source gave a larger chunk than one page
                                                           // where one page was asked for
  bool exact_small_ ABSL_GUARDED_BY(mutex_) = false;       // it gives larger ones unless asked for one page
  Bytes held_ ABSL_GUARDED_BY(mutex_);
  std::uint64_t peak_owned_ ABSL_GUARDED_BY(mutex_) = 0;  // at the last look at the peak
  enum class Level { kAmple, kHalf, kScarce };
  Level level_ ABSL_GUARDED_BY(mutex_) = Level::kAmple;  // how much of the limit is in use
  // Beyond these bytes charged it is time for another look at how scarce memory is.
  std::uint64_t level_begin_ ABSL_GUARDED_BY(mutex_) = 0;
  std::uint64_t level_end_ ABSL_GUARDED_BY(mutex_) = 0;
  Bytes pending_ ABSL_GUARDED_BY(mutex_);              // what attempts are going to use
  int calls_ ABSL_GUARDED_BY(mutex_) = 0;              // attempts and trims on their way;
  int waiting_ ABSL_GUARDED_BY(mutex_) = 0;            // of these: that wait for others
  int patient_ ABSL_GUARDED_BY(mutex_) = 0;            // of these: in a Grow that may wait
  std::uint64_t changes_ ABSL_GUARDED_BY(mutex_) = 0;  // how often chunks or room came back
  CondVar changed_;
  CondVar fence_recorded_;
  CondVar freed_;
  int free_waiters_ ABSL_GUARDED_BY(mutex_) = 0;                          // for freed_
  const char* last_thread_ ABSL_GUARDED_BY(mutex_) = nullptr;             // that took the lock for a block
  std::optional<std::uint32_t> other_thread_at_ ABSL_GUARDED_BY(mutex_);  // when another one did last
  std::int64_t padding_ ABSL_GUARDED_BY(mutex_) = 0;  // of live blocks, less what the caches know
  std::unordered_set<std::uint32_t> scratch_blocks_ ABSL_GUARDED_BY(mutex_);
  Bytes scratch_ ABSL_GUARDED_BY(mutex_);          // bytes in them
  Bytes scratch_padding_ ABSL_GUARDED_BY(mutex_);  // of padding_
  AddressIndex by_address_ ABSL_GUARDED_BY(mutex_);
  StreamOrder order_ ABSL_GUARDED_BY(mutex_);
  bool other_streams_ ABSL_GUARDED_BY(mutex_) = false;  // anything was ever for one, or used on one
  std::unordered_map<std::uint32_t, Streams> shared_
      ABSL_GUARDED_BY(mutex_);  // other streams of kShared blocks
  std::uint64_t fenced_blocks_ ABSL_GUARDED_BY(mutex_) = 0;
  std::uint64_t cache_flushes_ ABSL_GUARDED_BY(mutex_) = 0;
  std::uint64_t fences_recorded_ ABSL_GUARDED_BY(mutex_) = 0;
  std::uint64_t fence_waits_ ABSL_GUARDED_BY(mutex_) = 0;
  std::uint64_t num_allocs_ ABSL_GUARDED_BY(mutex_) = 0;
  std::uint64_t num_refusals_ ABSL_GUARDED_BY(mutex_) = 0;
  std::uint64_t source_round_trips_ ABSL_GUARDED_BY(mutex_) = 0;
  std::uint64_t remapped_chunks_ ABSL_GUARDED_BY(mutex_) = 0;
  std::uint64_t source_round_trips_ahead_ ABSL_GUARDED_BY(mutex_) = 0;
  RefusalReason last_refusal_ ABSL_GUARDED_BY(mutex_) = RefusalReason::kUnspecified;

  // Of Maintain. A mark says that memory freed up to a stamp was free by that time.
  struct Mark {
    std::uint32_t stamp = 0;
    std::chrono::steady_clock::time_point time{};
  };
  std::deque<Mark> marks_ ABSL_GUARDED_BY(mutex_);
  bool wake_sent_ ABSL_GUARDED_BY(mutex_) = false;
  bool asleep_ ABSL_GUARDED_BY(mutex_) = false;  // nobody calls Maintain before the next wake
  bool grew_ ABSL_GUARDED_BY(mutex_) = false;    // on an allocation's path, since the last Maintain
  Bytes grown_for_ ABSL_GUARDED_BY(mutex_);      // what was used when it last grew ahead
  std::uint64_t trims_ ABSL_GUARDED_BY(mutex_) = 0;
  Bytes limit_seen_ ABSL_GUARDED_BY(mutex_);
  Bytes spare_seen_ ABSL_GUARDED_BY(mutex_);
  std::chrono::steady_clock::time_point spare_since_ ABSL_GUARDED_BY(mutex_);
  std::uint64_t operations_seen_ ABSL_GUARDED_BY(mutex_) = 0;
  std::chrono::steady_clock::time_point operations_since_ ABSL_GUARDED_BY(mutex_);
  std::uint64_t round_trips_seen_ ABSL_GUARDED_BY(mutex_) = 0;
  std::optional<std::chrono::steady_clock::time_point> gave_back_ ABSL_GUARDED_BY(mutex_);
  int patience_ ABSL_GUARDED_BY(mutex_) = 1;

  std::vector<std::unique_ptr<TraceRecorder>> recorders_ ABSL_GUARDED_BY(mutex_);
};

inline std::uint32_t Pool::Impl::LiveWord(const Block& block) const {
  if (!nodes_.Has(block.node)) {
    return 0;
  }
  const Node& node = nodes_[block.node];
  const std::uint32_t word = node.word.load(std::memory_order_acquire);
  // One comparison for both: live, or shared.
  const bool is_live = (word & ~1u) == Node::Word(block.generation, Node::kLive) &&
                       block.bytes == Suballocator::kGranule * node.size &&
                       block.address == base_ + (Suballocator::kGranule * node.offset).count();
  return is_live ? word : 0;
}

}  // namespace lgpu

#endif  // LGPU_ALLOCATOR_POOL_POOL_IMPL_H_
