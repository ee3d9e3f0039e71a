#ifndef LGPU_MEMORY_H_
#define LGPU_MEMORY_H_

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
#include "lgpu/logical_device.h"
#include "lgpu/memory_snapshot.h"
#include "lgpu/memory_stats.h"
#include "lgpu/pool.h"
#include "lgpu/refusal.h"

namespace lgpu {

class Context;
namespace internal {
class MemoryState;
}  // namespace internal

struct MemoryOptions {
  /// Of the device to make: at least 2 MiB. Nothing: all that the card can give.
  std::optional<Bytes> memory_limit = {};
  /// Growth only: memory that is set aside, at most memory_limit.
  Bytes guarantee = {};
  MemoryMode mode = MemoryMode::kGrowth;
  /// As LogicalDeviceOptions::physical_device.
  std::string physical_device = {};
  /// The handle or name of an existing lease to attach to; excludes the four options above. Default: the
  /// variable LGPU_LEASE; where that is set, its lease is used in place of a new one, and a note says so.
  std::string lease = {};
  /// Which device of that lease.
  int device_of_lease = 0;
  /// A name for the lease that is made.
  std::string lease_name = {};
  /// As ContextOptions::endpoint: a runtime directory of lgpud, `local`, or `local:2x1GiB`.
  std::string endpoint = {};
  /// As ContextOptions::allocation_timeout.
  std::chrono::milliseconds allocation_timeout = std::chrono::seconds(10);
  /// Gets every note instead of stderr.
  std::function<void(std::string_view line)> log_sink = {};
};

struct BlockOptions {
  /// The stream whose work uses the block first.
  void* stream = nullptr;
  Bytes alignment = Bytes(256);  // a power of two up to 2 MiB
  /// The owner's name: refusals, snapshots and reports add up by it. Use few different tags.
  std::string_view tag = {};
  /// Default: MemoryOptions::allocation_timeout, or that of the Context.
  std::optional<std::chrono::milliseconds> timeout = {};
  /// Uses memory that is free now: does not wait, and asks no other program to return memory. A failure does
  /// not count as a refusal, and its RESOURCE_EXHAUSTED carries no Refusal. For callers that hold a lock
  /// meanwhile: they release it and try again without this option.
  bool only_if_ready = false;
};

/// All blocks of a LogicalMemory at one moment. A block's `op` is its tag; it lies at `base + offset`, and
/// `streams[stream]` is the stream it was allocated for. With a Context the pool has tensors' blocks as well.
struct LogicalMemorySnapshot : MemorySnapshot {
  /// Null: the legacy default stream, or a stream of lgpu's own.
  std::vector<void*> streams = {};
};

/// A LogicalMemory is the memory of one logical device for kernels of your own: blocks inside its limit,
/// ordered by streams of yours. It has no tensors and no ops.
///
/// A block of a real GPU is an address that every CUDA call of this process takes; that of a simulated one is
/// host memory that plain loops use. A stream is a CUstream or cudaStream_t of the device's primary context
/// (null or 1: the legacy default stream, 2: the calling thread's own); on a simulated device any pointer,
/// and no work is queued. There may be any number of streams. Say ForgetStream before you destroy one.
///
/// Stream order: a block that was freed on a stream may be handed out at once for the same stream; for
/// another one it is handed out when the work that was queued before is done. Work with a block on another
/// stream than the one it is freed on is made known by UseOn, after it was queued.
///
/// Thread-safety: all members, from any thread. Move-only; a moved-from LogicalMemory is closed.
/// Fork: the child's copy is dead (FAILED_PRECONDITION); fork and exec attaches anew through LGPU_LEASE.
/// Ownership: blocks die with it; exported ones keep their memory and its lease until their last owner goes.
/// The blocks of a Context's LogicalMemory outlive it and die with the Context; where the Context goes first,
/// they are used and freed by the handles that are left, and the last block that goes ends the lease.
class LGPU_API LogicalMemory {
 public:
  /// A device of its own, in a new lease or an existing one. Errors as Context::Create; NOT_FOUND for a
  /// device_of_lease that the lease has not.
  static absl::StatusOr<LogicalMemory> Open(const MemoryOptions& options);
  ~LogicalMemory();
  LogicalMemory(LogicalMemory&& other) noexcept;
  LogicalMemory& operator=(LogicalMemory&& other) noexcept;

  /// At least `bytes` for work on `options.stream`. RESOURCE_EXHAUSTED with a Refusal (GetRefusal) when they
  /// do not fit. No bytes are no memory: an address of null, which Free takes.
  absl::StatusOr<Block> Allocate(Bytes bytes, const BlockOptions& options = {}) const;
  /// Gives a block back, after the last work with it was queued on `stream` or made known by UseOn.
  /// INVALID_ARGUMENT, and nothing changes, for a block that is not live; FAILED_PRECONDITION for an exported
  /// one.
  absl::Status Free(const Block& block, void* stream) const;
  /// The same for callers that keep addresses. Slower: the first call makes an index of all blocks.
  absl::Status Free(void* address, void* stream) const;
  /// The live block that starts at `address`.
  absl::StatusOr<Block> Find(const void* address) const;
  /// Work with a live block was queued on `stream`.
  absl::Status UseOn(const Block& block, void* stream) const;
  absl::Status UseOn(const void* address, void* stream) const;
  /// Waits until the stream has done its work. It may be destroyed then, and another one may get its handle.
  /// Blocks that live on are freed on another stream; exported ones wait for this one no more.
  absl::Status ForgetStream(void* stream) const;

  /// Hands a live block to an owner of its own: the block is freed on `stream` when the last copy goes, from
  /// any thread, also after this LogicalMemory and its Context. Free and Close do not take it away.
  absl::StatusOr<std::shared_ptr<void>> Export(const Block& block, void* stream) const;

  /// The device as it was when it was made.
  const LogicalDeviceInfo& device() const;
  /// The device's number for CUDA calls of this process, behind CUDA_VISIBLE_DEVICES; -1: it is simulated.
  int cuda_device() const;
  /// The handle of the lease ("" for `local`), and its name.
  const std::string& lease() const;
  const std::string& lease_name() const;

  absl::StatusOr<MemoryStats> GetStats() const;
  absl::StatusOr<LogicalMemorySnapshot> Snapshot() const;
  /// Waits for the streams and gives chunks that no block needs back; says how much it was.
  absl::StatusOr<Bytes> Trim() const;
  /// A new limit, as Context::ResizeDevice.
  absl::Status Resize(const ResizeOptions& options) const;
  /// Blocks that this memory handed out and that are live.
  struct LiveBlocks {
    std::uint64_t blocks = 0;
    Bytes bytes;
    std::uint64_t exported = 0;  // of these blocks
  };
  LiveBlocks live_blocks() const;

  /// Gives everything back and waits until the quota is free; other calls fail afterwards. Repeating it is
  /// fine. FAILED_PRECONDITION with the number of blocks, and nothing changes, while blocks are live.
  /// UNAVAILABLE: no daemon is there; the next one is told. The memory of a Context goes with its
  /// Context.
  absl::Status Close() const;

 private:
  friend class Context;
  explicit LogicalMemory(std::shared_ptr<internal::MemoryState> state);

  std::shared_ptr<internal::MemoryState> state_;
};

}  // namespace lgpu

#endif  // LGPU_MEMORY_H_
