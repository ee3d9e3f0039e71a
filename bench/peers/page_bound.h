#ifndef LGPU_BENCH_PEERS_PAGE_BOUND_H_
#define LGPU_BENCH_PEERS_PAGE_BOUND_H_

#include <vector>

#include "bench/peers/contender.h"

namespace lgpu::bench {

/// The bound that no allocator passes: exactly as many pages as the live bytes fill. It places nothing,
/// so OffsetOf() means nothing.
class PageBound final : public Contender {
 public:
  explicit PageBound(const ContenderOptions& options) : limit_(options.limit), live_(options.slots) {}

  bool Allocate(Slot slot, Bytes bytes) override {
    if (used_ + bytes > limit_) return false;
    used_ += bytes;
    live_[slot] = bytes;
    return true;
  }
  void Free(Slot slot) override { used_ -= live_[slot]; }
  Bytes OffsetOf(Slot) const override { return Bytes(); }
  Bytes held() const override { return RoundUp(used_, kPage); }
  PageOperations page_operations() const override { return {}; }

 private:
  const Bytes limit_;
  Bytes used_;
  std::vector<Bytes> live_;
};

}  // namespace lgpu::bench

#endif  // LGPU_BENCH_PEERS_PAGE_BOUND_H_
