#ifndef LGPU_BENCH_PEERS_CORE_CONTENDER_H_
#define LGPU_BENCH_PEERS_CORE_CONTENDER_H_

#include <cstddef>
#include <vector>

#include "allocator/suballocator.h"
#include "bench/peers/contender.h"

namespace lgpu::bench {

/// The core of the allocator alone: a Suballocator whose pages cost nothing, one owner of handles, no
/// lock and no statistics. It grows in steps, as the Pool does, up to the limit and moves none, so it is for
/// time at an ample limit; space is the Pool's to show.
class CoreContender final : public Contender {
 public:
  explicit CoreContender(const ContenderOptions& options);

  bool Allocate(Slot slot, Bytes bytes) override {
    const auto block = core_.Allocate({.bytes = bytes}, Suballocator::Effort::kQuick);
    if (!block) return AllocateSlowly(slot, bytes);
    blocks_[slot] = *block;
    return true;
  }
  void Free(Slot slot) override { core_.Free(blocks_[slot], ++stamp_); }
  Bytes OffsetOf(Slot slot) const override { return core_.range(blocks_[slot]).offset; }
  Bytes held() const override { return held_; }
  std::size_t handle_size() const override { return sizeof(Suballocator::Handle); }
  PageOperations page_operations() const override { return {.mapped = held_ / kPage}; }

 private:
  bool AllocateSlowly(Slot slot, Bytes bytes);

  const Bytes limit_;
  Bytes held_;
  Suballocator::Stamp stamp_ = 0;
  Suballocator core_;
  std::vector<Suballocator::Handle> blocks_;  // by slot
};

}  // namespace lgpu::bench

#endif  // LGPU_BENCH_PEERS_CORE_CONTENDER_H_
