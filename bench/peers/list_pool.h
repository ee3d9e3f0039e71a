#ifndef LGPU_BENCH_PEERS_LIST_POOL_H_
#define LGPU_BENCH_PEERS_LIST_POOL_H_

#include <cstddef>
#include <list>
#include <vector>

#include "bench/peers/contender.h"

namespace lgpu::bench {

/// The coalescing pool of a dataframe library (RMM's pool_memory_resource) without a maximum.
///
/// Modelled from RMM's documentation of the pool and its free list: one list of free blocks in the order
/// of addresses; an allocation looks at all of them for the best fit, a free walks to its place; blocks
/// merge within what was taken from the device at once; the pool doubles, or takes what is left; nothing
/// is given back. Sizes are rounded to 256 bytes.
///
/// Simplified: one stream, no events, no halving of the step when the device refuses, no lock; a free
/// is told the size, as there.
class ListPool final : public Contender {
 public:
  explicit ListPool(const ContenderOptions& options) : limit_(options.limit), live_(options.slots) {}

  bool Allocate(Slot slot, Bytes bytes) override;
  void Free(Slot slot) override;
  Bytes OffsetOf(Slot slot) const override { return live_[slot].offset; }
  Bytes held() const override { return held_; }
  std::size_t handle_size() const override { return sizeof(Range); }
  PageOperations page_operations() const override { return {.mapped = growths_}; }

 private:
  struct Range {
    Bytes offset;
    Bytes bytes;
    Bytes end() const { return offset + bytes; }
  };

  const Bytes limit_;
  Bytes held_;
  Bytes next_address_;
  std::uint64_t growths_ = 0;
  std::list<Range> free_;
  std::vector<Range> live_;  // by slot
};

}  // namespace lgpu::bench

#endif  // LGPU_BENCH_PEERS_LIST_POOL_H_
