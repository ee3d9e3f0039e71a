#ifndef LGPU_ALLOCATOR_POOL_POOL_IMPL_H_
#define LGPU_ALLOCATOR_POOL_POOL_IMPL_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "allocator/pool/fence_keeper.h"
#include "allocator/pool/growth.h"
#include "allocator/pool/pool_blocks.h"
#include "allocator/pool/pool_state.h"
#include "allocator/pool/suspension.h"
#include "allocator/pool/upkeep.h"
#include "lgpu/pool.h"

namespace lgpu {

/// The inside of a Pool: the path of an allocation from the front cache down to the parts that get memory,
/// and the path of a free back up.
///
///   pool.cc         Allocate: front cache, mapped memory, waiting at the limit for other threads
///   pool_free.cc    Free and UseOn
///   pool_find.cc    addresses without handles, and texts about wrong blocks
///   pool_report.cc  statistics, snapshots, traces, invariants
///
/// PoolState has the blocks and chunks, Growth gets what mapped memory does not hold, FenceKeeper calls the
/// fences, Upkeep gives back.
class Pool::Impl {
 public:
  Impl(std::unique_ptr<RegionSource> source, PoolOptions options, const GrowthPolicy& policy = {});
  ~Impl();

  // The members of Pool.
  absl::StatusOr<Block> Allocate(Bytes bytes, const AllocateOptions& options);
  absl::Status Free(const Block& block);
  absl::Status Free(const void* address);
  absl::StatusOr<Block> Find(const void* address);
  absl::Status UseOn(const Block& block, StreamId stream);
  absl::StatusOr<Bytes> RequestedOf(const Block& block) const;
  Upkeep& upkeep() { return upkeep_; }
  Suspension& suspension() { return suspension_; }
  MemoryStats stats() const;
  Bytes limit() const { return state_.epoch.IsForked() ? Bytes() : state_.source->limit(); }
  void ResetPeak();
  absl::StatusOr<PoolBlocks> Blocks(std::uint64_t at_most) const;
  MemorySnapshot Snapshot() const;
  std::vector<MemoryOwner> LargestOwners(std::size_t n) const;
  absl::Status StartTrace(const std::string& path);
  absl::Status StopTrace();
  absl::Status CheckInvariants() const;

 private:
  using Shard = FrontCache::Shard;

  // ---- Allocate.
  bool IsAlignment(Bytes alignment) const {
    const std::uint64_t bytes = alignment.count();
    return bytes != 0 && (bytes & (bytes - 1)) == 0 && alignment <= state_.page;
  }
  absl::Status CheckRequest(Bytes bytes, const AllocateOptions& options) const;
  absl::Status CheckStreamId(StreamId stream) const;
  static bool IsCacheable(Bytes bytes) { return bytes <= FrontCache::kLargest; }
  /// A block out of this thread's cache; zero: there is none.
  std::uint32_t TakeCached(Shard& shard, Bytes requested, const AllocateOptions& options);
  absl::Status AllocateUncached(Shard* shard, Bytes bytes, const AllocateOptions& options,
                                std::uint32_t& index);
  absl::Status AllocateOnce(Shard* shard, Bytes bytes, const AllocateOptions& options, std::uint32_t& index);
  enum class Quick { kDone, kParked, kOver, kSlow };
  enum class Attempt { kFirst, kBehindFences };
  Quick TryMapped(const Shard* shard, Bytes bytes, const AllocateOptions& options, Bytes limit,
                  Attempt attempt, std::uint32_t& index) ABSL_EXCLUSIVE_LOCKS_REQUIRED(state_.mutex);
  void WaitForPending(Bytes rounded, Bytes limit, std::chrono::nanoseconds timeout)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(state_.mutex);
  /// AllocateOnce again and again, until other threads freed enough or the timeout is over.
  absl::Status AwaitFrees(Shard* shard, Bytes bytes, const AllocateOptions& options, std::uint32_t& index);
  bool MayComeFree(const absl::Status& refused, Bytes bytes, const AllocateOptions& options);

  // ---- Free.
  absl::Status FreeSmall(const Block& block);
  void FreeUncached(Shard* shard, std::uint32_t index, bool is_shared, std::uint32_t about);
  absl::Status FreeLarge(const Block& block);
  absl::Status NotLive(const Block& block) const;
  std::string DescribeAddress(const void* address) const;
  void IndexAddresses() ABSL_EXCLUSIVE_LOCKS_REQUIRED(state_.mutex);

  // ---- Reports.
  absl::Status CheckEntries() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(state_.mutex);
  MemoryStats StatsUnder(Bytes limit) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(state_.mutex);
  void RecordAllocate(const std::byte* address, Bytes bytes, const AllocateOptions& options) const;
  void RecordFree(TraceRecorder& trace, const Block& block) const;

  PoolState state_;
  FenceKeeper fences_{state_};
  Growth growth_{state_, fences_};
  Upkeep upkeep_{state_, fences_};
  Suspension suspension_{state_};
  std::vector<std::unique_ptr<TraceRecorder>> recorders_ ABSL_GUARDED_BY(state_.mutex);
};

/// A Pool whose growth is restricted by `policy`, for tests.
std::unique_ptr<Pool> MakePoolWithPolicy(std::unique_ptr<RegionSource> source, PoolOptions options,
                                         const GrowthPolicy& policy);

}  // namespace lgpu

#endif  // LGPU_ALLOCATOR_POOL_POOL_IMPL_H_
