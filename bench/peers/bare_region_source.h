#ifndef LGPU_BENCH_PEERS_BARE_REGION_SOURCE_H_
#define LGPU_BENCH_PEERS_BARE_REGION_SOURCE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "allocator/broker/chunk_sizes.h"
#include "lgpu/bytes.h"
#include "lgpu/region_source.h"

namespace lgpu::bench {

/// The calls of a BareRegionSource, counted. Outlives the source, which its Pool owns.
struct SourceCounters {
  std::uint64_t grow_calls = 0;
  std::uint64_t chunks = 0;  // ever granted
  std::uint64_t map_calls = 0;
  std::uint64_t unmap_calls = 0;
  std::uint64_t mapped_pages = 0;    // of 2 MiB, ever
  std::uint64_t unmapped_pages = 0;  // ever
  Bytes held;
  Bytes peak_held;
};

/// The sizes of the chunks that a device gets which grows.
using CutGrowth = std::function<std::vector<Bytes>(const DeviceGrowth& growth)>;
/// The chunks that lgpud's broker makes on a GPU.
std::vector<Bytes> CutForGpu(const DeviceGrowth& growth);

/// A BareRegionSource stands under a real Pool where only placement matters: it grants chunks up to its
/// limit and maps none of them. Its addresses are far beyond what a process has and are never touched,
/// so terabytes cost nothing. Not thread-safe.
class BareRegionSource final : public RegionSource {
 public:
  struct Options {
    Bytes limit{};
    Bytes reserved{};     // zero: eight times the limit, as far as the allocator goes
    Bytes chunk = 2_MiB;  // the largest that a Grow answers with, a power of two from 2 MiB on
    CutGrowth cut{};      // if set, decides the chunks of a Grow in place of `chunk`
    std::shared_ptr<SourceCounters> counters{};  // null: nothing is counted
  };
  explicit BareRegionSource(const Options& options);

  std::byte* base() const override;
  Bytes reserved() const override { return options_.reserved; }
  Bytes granularity() const override { return 2_MiB; }
  Bytes limit() const override { return options_.limit; }
  absl::StatusOr<std::vector<Chunk>> Grow(const GrowRequest& request) override;
  absl::Status Map(std::span<const ChunkPlacement> placements) override;
  absl::Status Unmap(std::span<const ChunkId> chunks) override;
  absl::Status Return(std::span<const ChunkId> chunks) override;

 private:
  std::vector<Bytes> SizesOf(Bytes needed, Bytes granted) const;

  Options options_;
  std::uint64_t next_id_ = 1;
  std::unordered_map<ChunkId, Bytes> chunks_;
};

}  // namespace lgpu::bench

#endif  // LGPU_BENCH_PEERS_BARE_REGION_SOURCE_H_
