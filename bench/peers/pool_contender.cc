#include "bench/peers/pool_contender.h"

#include <utility>

#include "base/check.h"

namespace lgpu::bench {

PoolContender::PoolContender(const ContenderOptions& options, const PoolConfiguration& configuration)
    : counters_(std::make_shared<SourceCounters>()), blocks_(options.slots) {
  auto source = std::make_unique<BareRegionSource>(BareRegionSource::Options{
      .limit = options.limit, .chunk = configuration.chunk, .cut = configuration.cut, .counters = counters_});
  pool_ = std::make_unique<Pool>(std::move(source), configuration.pool);
}

bool PoolContender::Allocate(Slot slot, Bytes bytes) {
  absl::StatusOr<Block> block = pool_->Allocate(bytes);
  if (!block.ok()) {
    if (first_refusal_.ok()) first_refusal_ = std::move(block).status();
    return false;
  }
  blocks_[slot] = *block;
  return true;
}

void PoolContender::Free(Slot slot) { LGPU_CHECK(pool_->Free(blocks_[slot]).ok()); }

Bytes PoolContender::OffsetOf(Slot slot) const {
  return Bytes(reinterpret_cast<std::uintptr_t>(blocks_[slot].address));
}

}  // namespace lgpu::bench
