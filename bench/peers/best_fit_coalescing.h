#ifndef LGPU_BENCH_PEERS_BEST_FIT_COALESCING_H_
#define LGPU_BENCH_PEERS_BEST_FIT_COALESCING_H_

#include <array>
#include <cstdint>
#include <set>
#include <vector>

#include "bench/peers/contender.h"

namespace lgpu::bench {

/// Best fit with coalescing, as TensorFlow's BFCAllocator does it with allow_growth.
///
/// Modelled from the description in its header and in TensorFlow's GPU guide: requests are rounded to
/// 256 bytes; free chunks lie in 21 bins by powers of two, each ordered by size and address; the first
/// that fits is taken and split only if it is twice the request or leaves 128 MiB; neighbours merge
/// within a region; when nothing fits a region is added, 2 MiB at first and doubling; nothing is given
/// back.
///
/// Simplified: regions are never adjacent; no timestamps, no retry with nine tenths when the device
/// refuses, no lock. Its table of 8 bytes per 256 bytes of region is not made, only counted.
class BestFitCoalescing final : public Contender {
 public:
  explicit BestFitCoalescing(const ContenderOptions& options);

  bool Allocate(Slot slot, Bytes bytes) override;
  void Free(Slot slot) override;
  Bytes OffsetOf(Slot slot) const override { return chunks_[live_[slot]].offset; }
  Bytes held() const override { return held_; }
  PageOperations page_operations() const override { return {.mapped = regions_}; }
  Bytes left_out_metadata() const override { return held_ / 256 * 8; }

 private:
  static constexpr std::size_t kBins = 21;
  struct Chunk {  // 0 is none
    Bytes offset;
    Bytes bytes;
    std::uint32_t previous = 0;
    std::uint32_t next = 0;
    bool live = false;
  };
  struct Key {
    Bytes bytes;
    Bytes offset;
    std::uint32_t chunk;
    friend auto operator<=>(const Key&, const Key&) = default;
  };

  static std::size_t BinOf(Bytes bytes);
  Key KeyOf(std::uint32_t chunk) const { return {chunks_[chunk].bytes, chunks_[chunk].offset, chunk}; }
  void Insert(std::uint32_t chunk) { bins_[BinOf(chunks_[chunk].bytes)].insert(KeyOf(chunk)); }
  void Remove(std::uint32_t chunk) { bins_[BinOf(chunks_[chunk].bytes)].erase(KeyOf(chunk)); }
  std::uint32_t NewChunk();
  std::uint32_t Find(Bytes bytes);
  bool AddRegion(Bytes at_least);
  void Split(std::uint32_t chunk, Bytes bytes);
  void Absorb(std::uint32_t chunk, std::uint32_t next);

  const Bytes limit_;
  Bytes held_;
  Bytes next_region_ = kPage;
  Bytes next_address_;
  std::uint64_t regions_ = 0;
  std::vector<Chunk> chunks_;
  std::vector<std::uint32_t> vacant_;
  std::array<std::set<Key>, kBins> bins_;
  std::vector<std::uint32_t> live_;  // by slot
};

}  // namespace lgpu::bench

#endif  // LGPU_BENCH_PEERS_BEST_FIT_COALESCING_H_
