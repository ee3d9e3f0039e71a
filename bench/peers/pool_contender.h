#ifndef LGPU_BENCH_PEERS_POOL_CONTENDER_H_
#define LGPU_BENCH_PEERS_POOL_CONTENDER_H_

#include <cstddef>
#include <memory>
#include <vector>

#include "bench/peers/bare_region_source.h"
#include "bench/peers/contender.h"
#include "lgpu/pool.h"

namespace lgpu::bench {

struct PoolConfiguration {
  PoolOptions pool{};
  Bytes chunk = 2_MiB;  // the largest chunk class that its source grants
  CutGrowth cut{};      // if set, decides the chunks in place of `chunk`
};

/// The allocator that ships, whole: a Pool over a BareRegionSource.
class PoolContender : public Contender {
 public:
  explicit PoolContender(const ContenderOptions& options) : PoolContender(options, {}) {}
  PoolContender(const ContenderOptions& options, const PoolConfiguration& configuration);

  bool Allocate(Slot slot, Bytes bytes) override;
  void Free(Slot slot) override;
  Bytes OffsetOf(Slot slot) const override;
  Bytes held() const override { return counters_->held; }
  std::size_t handle_size() const override { return sizeof(Block); }
  PageOperations page_operations() const override {
    return {.mapped = counters_->mapped_pages, .unmapped = counters_->unmapped_pages};
  }

  Pool& pool() { return *pool_; }
  const Pool& pool() const { return *pool_; }
  const SourceCounters& source() const { return *counters_; }
  /// Why an Allocate was refused for the first time.
  const absl::Status& first_refusal() const { return first_refusal_; }

 private:
  std::shared_ptr<SourceCounters> counters_;
  std::unique_ptr<Pool> pool_;
  std::vector<Block> blocks_;  // by slot
  absl::Status first_refusal_;
};

/// The same over the chunks that a broker cuts for a GPU: fewer and larger ones.
class GpuPoolContender final : public PoolContender {
 public:
  explicit GpuPoolContender(const ContenderOptions& options) : PoolContender(options, {.cut = CutForGpu}) {}
};

}  // namespace lgpu::bench

#endif  // LGPU_BENCH_PEERS_POOL_CONTENDER_H_
