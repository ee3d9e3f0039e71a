#ifndef LGPU_CLIENT_SESSION_PART_SOURCE_H_
#define LGPU_CLIENT_SESSION_PART_SOURCE_H_

#include <chrono>
#include <cstddef>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/mutex.h"
#include "lgpu/bytes.h"
#include "lgpu/region_source.h"

namespace lgpu {

/// A PartLimit is the limit of a part, and what its pool has of it. Thread-safe: the part and the lease that
/// resizes it share it.
class PartLimit {
 public:
  /// Nothing: the limit of the whole.
  explicit PartLimit(std::optional<Bytes> limit) : limit_(limit) {}

  /// The limit, where that of the whole is `whole`.
  Bytes Of(Bytes whole) const;
  Bytes held() const;
  /// Takes between `at_least` and `wanted` of the limit, rounded up to `page`: a pool maps whole chunks.
  /// Zero, and nothing changes: so much is not left.
  Bytes Take(Bytes at_least, Bytes wanted, Bytes whole, Bytes page);
  /// Of `taken` bytes that were taken, `granted` came.
  void Settle(Bytes taken, Bytes granted);
  /// FAILED_PRECONDITION, and nothing changes: more than that is taken.
  absl::Status Set(std::optional<Bytes> limit);

 private:
  mutable Mutex mutex_;
  std::optional<Bytes> limit_ ABSL_GUARDED_BY(mutex_);
  Bytes held_ ABSL_GUARDED_BY(mutex_);
};

/// A PartSource is one of several sources over one RegionSource, with a limit and a piece of the addresses of
/// its own: so a process splits a logical device among several pools. Its chunks are the whole's, which
/// counts them against its own limit too. A part with memory set aside has its limit's memory from the start,
/// and keeps what its pool returns.
///
/// Thread-safe, and the parts of one source are independent. The whole lives as long as any of its parts.
class PartSource final : public RegionSource {
 public:
  struct Options {
    Bytes offset = {};    // of the piece in the region of the whole; a multiple of the granularity
    Bytes reserved = {};  // the size of the piece; the same
    std::shared_ptr<PartLimit> limit;
    std::string device = {};  // said in refusals: "/device:GPU:0"
    std::string lease = {};   // said in refusals
  };
  PartSource(std::shared_ptr<RegionSource> whole, Options options)
      : whole_(std::move(whole)), options_(std::move(options)) {}
  /// Gives back all chunks of the part.
  ~PartSource() override;

  std::byte* base() const override { return whole_->base() + options_.offset.count(); }
  Bytes reserved() const override { return options_.reserved; }
  Bytes granularity() const override { return whole_->granularity(); }
  /// At most the limit of the whole.
  Bytes limit() const override { return options_.limit->Of(whole_->limit()); }
  absl::StatusOr<std::vector<Chunk>> Grow(const GrowRequest& request) override;
  absl::Status Map(std::span<const ChunkPlacement> placements) override;
  absl::Status Unmap(std::span<const ChunkId> chunks) override;
  absl::Status Return(std::span<const ChunkId> chunks) override;

  /// Takes the memory of the limit from the whole, which may wait for it. Before all other calls; once.
  absl::Status SetAside(std::chrono::nanoseconds timeout);

 private:
  struct Entry {
    Bytes bytes;
    bool is_mapped = false;
  };

  /// Spare chunks of `bytes` at least; none where so much is not spare.
  std::vector<Chunk> TakeSpare(Bytes bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status OverLimit(Bytes asked) const;
  void Keep(std::span<const Chunk> chunks) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::shared_ptr<RegionSource> whole_;
  const Options options_;
  mutable Mutex mutex_;
  std::map<ChunkId, Entry> chunks_ ABSL_GUARDED_BY(mutex_);  // the pool's
  bool sets_aside_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<Chunk> spare_ ABSL_GUARDED_BY(mutex_);  // set aside, and not the pool's now
};

}  // namespace lgpu

#endif  // LGPU_CLIENT_SESSION_PART_SOURCE_H_
