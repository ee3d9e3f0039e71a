#ifndef LGPU_POOL_H_
#define LGPU_POOL_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "lgpu/bytes.h"
#include "lgpu/export.h"
#include "lgpu/memory_stats.h"
#include "lgpu/region_source.h"

namespace lgpu {

/// A piece of a region that Pool::Allocate handed out. A plain value: whoever allocated it frees it.
struct Block {
  std::byte* address = nullptr;
  Bytes bytes;             // usable size, at least what was asked for
  std::uint64_t node = 0;  // the allocator's own handle; makes Free need no look-up
};

struct AllocateOptions {
  Bytes alignment = Bytes(256);         // a power of two up to 2 MiB; smaller ones are raised to 256
  std::string_view what = {};           // said in a refusal: "output of op MatMul, shape [2,2], float"
  std::chrono::nanoseconds timeout{0};  // see GrowRequest; more than a day means a day
};

struct PoolOptions {
  /// Said in refusals.
  std::string device = {};  // "/device:GPU:0"
  std::string lease = {};
  /// Chunks are asked for in steps of at least this much where the limit allows it.
  Bytes growth_step = Bytes(std::uint64_t{2} << 20);
};

/// A Pool hands out blocks of one logical device's memory. Bytes in live blocks never exceed the
/// limit of its source. Blocks that fit into mapped memory cost no system call.
///
/// Thread-safety: all members may be called from any thread. The source is called without the pool's
/// lock, so that other threads allocate and free while one waits for memory.
/// Ownership: the pool owns its source. Its destructor returns all chunks; live blocks die with it.
/// Stream order: a freed block may be handed out at once, to be used on the same stream.
class LGPU_API Pool {
 public:
  Pool(std::unique_ptr<RegionSource> source, PoolOptions options);
  ~Pool();
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  /// A block of at least `bytes`. INVALID_ARGUMENT for zero bytes or a wrong alignment;
  /// RESOURCE_EXHAUSTED with a Refusal when it does not fit; what RegionSource::Grow says otherwise.
  absl::StatusOr<Block> Allocate(Bytes bytes, const AllocateOptions& options = {});
  /// Gives a block back. INVALID_ARGUMENT, and nothing changes, for a block that is not live.
  absl::Status Free(const Block& block);
  /// Returns wholly free chunks to the source, at most `at_most` bytes; says how much it was. The
  /// caller makes sure that nothing queued on the device still uses freed blocks.
  absl::StatusOr<Bytes> Trim(Bytes at_most);

  MemoryStats stats() const;
  /// peak_used starts again from used.
  void ResetPeak();
  /// OK, or INTERNAL with the first invariant that does not hold. Slow: for tests and diagnosis.
  absl::Status CheckInvariants() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace lgpu

#endif  // LGPU_POOL_H_
