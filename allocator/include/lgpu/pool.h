#ifndef LGPU_POOL_H_
#define LGPU_POOL_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "lgpu/bytes.h"
#include "lgpu/export.h"
#include "lgpu/interrupt.h"
#include "lgpu/memory_snapshot.h"
#include "lgpu/memory_stats.h"
#include "lgpu/region_source.h"
#include "lgpu/stream_fences.h"

namespace lgpu {

struct GrowthPolicy;
struct PoolBlocks;

/// A piece of a region that Pool::Allocate handed out. A plain value: the caller frees the block.
struct Block {
  std::byte* address = nullptr;
  Bytes bytes;                   // usable size, at least what was asked for
  std::uint32_t node = 0;        // the allocator's own handle; makes Free need no look-up
  std::uint32_t generation = 0;  // tells this block from earlier ones with the same handle
  friend bool operator==(const Block&, const Block&) = default;
};

struct AllocateOptions {
  Bytes alignment = Bytes(256);  // a power of two up to 2 MiB; smaller ones are raised to 256
  std::string_view what = {};    // said in a refusal: "output of op MatMul, shape [2,2], float"
  std::string_view op = {};      // its owner: "MatMul". Use few different ones: reports add up by it
  StreamId stream = 0;           // where it will be used first, and freed
  /// Another stream, which writes the block first: it waits only for earlier users of the same memory. The
  /// caller makes `stream` wait for that write. For blocks of more than 64 KiB, of stream 0.
  StreamId filled_on = 0;
  /// See GrowRequest; more than a day means a day. At the limit it is also how long to wait for other threads
  /// to free memory, if they used the pool beyond their caches in that time; one alone is refused at once.
  std::chrono::nanoseconds timeout{0};
  /// Only spare memory: mapped, or granted at once without a request of another session waiting for it. No
  /// program is asked to give memory back, no fence is waited for, no chunk moves. A failure does not count
  /// as a refusal, and its status carries no Refusal.
  bool spare_only = false;
  /// Scratch memory of a library: counted in MemoryStats::workspace, and in no other number of used memory.
  /// More than 64 KiB, of stream 0.
  bool scratch = false;
  /// Asked by the call's waits, beside the InterruptScopes of the thread.
  InterruptHandler* interrupt = nullptr;
};

struct PoolOptions {
  /// Said in refusals.
  std::string device = {};  // "/device:GPU:0"
  std::string lease = {};
  /// Chunks are asked for in steps of at least this much where the limit allows it.
  Bytes growth_step = Bytes(std::uint64_t{2} << 20);
  /// The most bytes in the front cache of one thread, in blocks of up to 64 KiB; never more than a 64th of
  /// the limit, a 4096th where half of it is used, and nothing close to it. Zero: no front caches.
  Bytes cache_per_thread = Bytes(std::uint64_t{32} << 20);
  /// Null: there is one stream only, and the caller of Trim makes sure that it is done with freed blocks.
  std::shared_ptr<StreamFences> fences = {};
  /// Whether Maintain asks for chunks before they are needed, and growth for more than is missing. Not for a
  /// source whose limit other pools share, unless TrimFor is called when they are short.
  bool grow_ahead = true;
  /// Called from any thread, with no lock held, when memory runs low: Maintain should be called soon. It must
  /// not block, and must not call the pool.
  std::function<void()> wake = {};
};

/// A Pool hands out blocks of one logical device's memory. Bytes in live blocks never exceed the
/// limit of its source. Blocks that fit into mapped memory cost no system call.
///
/// Thread-safety: all members may be called from any thread. The source and the fences are called without the
/// pool's lock, so that other threads allocate and free while one waits for memory.
/// Ownership: the pool owns its source. Its destructor returns all chunks; live blocks die with it.
/// Stream order: a block belongs to the stream it was allocated for. Freed, it may be handed out at once for
/// the same stream. A caller that queues work with it on another stream calls UseOn, and the freed block is
/// handed out again when that work is done. Chunks are moved and returned only behind the fences of their
/// last use.
class LGPU_API Pool {
 public:
  Pool(std::unique_ptr<RegionSource> source, PoolOptions options);
  ~Pool();
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  /// A block of at least `bytes`. INVALID_ARGUMENT for zero bytes, a wrong alignment or stream;
  /// RESOURCE_EXHAUSTED with a Refusal when it does not fit; otherwise the errors of RegionSource::Grow.
  absl::StatusOr<Block> Allocate(Bytes bytes, const AllocateOptions& options = {});
  /// Gives a block back, after the last work with it was queued. INVALID_ARGUMENT, and nothing changes, for a
  /// block that is not live: freed before, of another pool, or with another address or size than it had.
  absl::Status Free(const Block& block);
  /// For callers that keep no handle: the block that starts at `address`. Slower; the first call makes an
  /// index of all blocks. INVALID_ARGUMENT where no live block starts; the error says what lies there.
  absl::Status Free(const void* address);
  absl::StatusOr<Block> Find(const void* address);
  /// Work with a live block was queued on `stream`, which is not its own.
  absl::Status UseOn(const Block& block, StreamId stream);
  /// The size that the owner of the live block asked for. INVALID_ARGUMENT as Free.
  absl::StatusOr<Bytes> RequestedOf(const Block& block) const;

  /// Returns wholly free chunks to the source, at most `at_most` bytes; the result is how many. Without
  /// PoolOptions.fences the caller makes sure that no work queued on the device still uses freed blocks.
  absl::StatusOr<Bytes> Trim(Bytes at_most);
  struct Trimmed {
    Bytes returned;
    Bytes pending;  // free as well, but work on the device may still use it
  };
  /// As Trim, for another pool that needs `bytes`: a larger chunk goes where only such a chunk is free.
  absl::StatusOr<Trimmed> TrimFor(Bytes bytes);
  /// Slow upkeep for a background thread: grows ahead of demand, gives long idle memory back, checks fences.
  /// `now` is of a steady clock and never falls. Gives the time of the next call, unless PoolOptions.wake
  /// comes before; nothing: only `wake` asks for it.
  std::optional<std::chrono::steady_clock::time_point> Maintain(std::chrono::steady_clock::time_point now);

  /// Gives all chunks back and keeps the blocks, whose contents go: the caller has copied them, and all work
  /// on the device is done. Until Resume blocks may be freed and listed, Trim and Maintain do nothing, and no
  /// other call of Allocate or UseOn comes. FAILED_PRECONDITION, and nothing has changed: the pool is
  /// suspended, or the device knows of work that uses a chunk.
  absl::Status Suspend();
  bool is_suspended() const;
  /// Gets memory for all blocks that were not freed meanwhile, waiting up to `timeout` for it, and maps it:
  /// the blocks have their addresses, and no contents. On an error the pool is suspended still:
  /// RESOURCE_EXHAUSTED with a Refusal, and the other errors of RegionSource::Grow and Map.
  absl::Status Resume(std::chrono::nanoseconds timeout);

  MemoryStats stats() const;
  /// The limit now; cheap.
  Bytes limit() const;
  /// peak_used starts again from used.
  void ResetPeak();
  /// Every block. Other threads allocate and free while the blocks are copied; they wait for less than a
  /// millisecond.
  MemorySnapshot Snapshot() const;
  /// The same in less memory, for the library itself. RESOURCE_EXHAUSTED: there are more than `at_most`.
  absl::StatusOr<PoolBlocks> Blocks(std::uint64_t at_most) const;
  /// The ops that hold most, largest first, at most `n`.
  std::vector<MemoryOwner> LargestOwners(std::size_t n) const;
  /// Writes every allocation and free from now on to a file that allocator_replay reads ("Thread,Time,Action,
  /// Pointer,Size,Stream", as RMM logs), until StopTrace or the pool's end.
  absl::Status StartTrace(const std::string& path);
  /// The first error of writing, if there was one.
  absl::Status StopTrace();
  /// OK, or INTERNAL with the first invariant that does not hold. Slow: for tests and diagnosis.
  absl::Status CheckInvariants() const;

 private:
  class LGPU_HIDDEN Impl;
  explicit Pool(std::unique_ptr<Impl> impl);
  friend std::unique_ptr<Pool> MakePoolWithPolicy(std::unique_ptr<RegionSource> source, PoolOptions options,
                                                  const GrowthPolicy& policy);
  std::unique_ptr<Impl> impl_;
};

}  // namespace lgpu

#endif  // LGPU_POOL_H_
