#ifndef LGPU_BENCH_PEERS_CACHING_ALLOCATOR_H_
#define LGPU_BENCH_PEERS_CACHING_ALLOCATOR_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <set>
#include <unordered_map>
#include <vector>

#include "bench/peers/contender.h"

namespace lgpu::bench {

/// The block of a caching allocator and where it is kept; shared by its two forms.
class BlockCache {
 public:
  struct Block {
    Bytes offset;
    Bytes bytes;
    Block* previous = nullptr;  // within its segment
    Block* next = nullptr;
    int pool = 0;
    bool live = false;
    bool mapped = true;
    bool IsFree() const { return mapped && !live; }
  };

  static constexpr int kPools = 2;
  static constexpr int kLarge = 1;
  static int PoolOf(Bytes bytes) { return bytes > 1_MiB ? kLarge : 0; }

  explicit BlockCache(Slot slots);

  Block* NewBlock(Bytes offset, Bytes bytes, int pool);
  /// The bytes behind the first `bytes` become a block of the same kind, in no set.
  Block* Split(Block* block, Bytes bytes);
  /// Appends its neighbour, which is in no set any more.
  void AbsorbNext(Block* block);
  void Drop(Block* block) { vacant_.push_back(block); }

  /// The smallest free block that is large enough, out of its set; null if there is none.
  Block* TakeBestFit(int pool, Bytes bytes);
  void Insert(Block* block) { free_[block->pool].insert(block); }
  void Erase(Block* block) { free_[block->pool].erase(block); }
  std::vector<Block*> FreeBlocks(int pool) const { return {free_[pool].begin(), free_[pool].end()}; }

  void MakeLive(Slot slot, Block* block);
  /// Makes it free and merges it with free neighbours.
  void MakeFree(Slot slot);
  Bytes OffsetOf(Slot slot) const { return offsets_[slot]; }

 private:
  struct BySize {
    bool operator()(const Block* a, const Block* b) const {
      return a->bytes != b->bytes ? a->bytes < b->bytes : a->offset < b->offset;
    }
  };
  std::deque<Block> store_;
  std::vector<Block*> vacant_;
  std::array<std::set<Block*, BySize>, kPools> free_;
  std::unordered_map<std::uint64_t, Block*> live_;  // by offset: its owner frees by address
  std::vector<Bytes> offsets_;                      // by slot
};

/// The caching allocator of an eager framework (PyTorch's) with segments.
///
/// Modelled from the notes on CUDA semantics and the comments of CUDACachingAllocator.cpp: sizes are
/// rounded to 512 bytes; requests up to 1 MiB and larger ones live apart; a segment of 2 MiB, 20 MiB
/// (requests below 10 MiB) or the request rounded to 2 MiB is taken from the device when nothing fits;
/// best fit; a block merges with free neighbours of its segment only; a large block is split if more
/// than 1 MiB stays; when the device refuses all wholly free segments go back and it is tried again.
///
/// Simplified: one stream, no max_split_size, no garbage collection before the limit, no lock.
class SegmentCachingAllocator final : public Contender {
 public:
  explicit SegmentCachingAllocator(const ContenderOptions& options)
      : limit_(options.limit), cache_(options.slots) {}

  bool Allocate(Slot slot, Bytes bytes) override;
  void Free(Slot slot) override { cache_.MakeFree(slot); }
  Bytes OffsetOf(Slot slot) const override { return cache_.OffsetOf(slot); }
  Bytes held() const override { return held_; }
  std::size_t handle_size() const override { return sizeof(Bytes); }
  PageOperations page_operations() const override { return operations_; }

 private:
  BlockCache::Block* NewSegment(Bytes bytes);
  bool ReleaseSegments();

  const Bytes limit_;
  Bytes held_;
  Bytes next_address_;
  PageOperations operations_;
  BlockCache cache_;
};

/// The same with expandable segments: one segment per pool that grows at any of its ends and holes.
///
/// Modelled from the same sources: a segment reserves 9/8 of the device; pages of 2 MiB (small) or 20
/// MiB (large) are mapped at the lowest address where the request fits; every free block may be split;
/// when the device refuses, all wholly free pages of free blocks are unmapped and it is tried again.
///
/// Simplified: as above.
class ExpandableCachingAllocator final : public Contender {
 public:
  explicit ExpandableCachingAllocator(const ContenderOptions& options);

  bool Allocate(Slot slot, Bytes bytes) override;
  void Free(Slot slot) override { cache_.MakeFree(slot); }
  Bytes OffsetOf(Slot slot) const override { return cache_.OffsetOf(slot); }
  Bytes held() const override { return held_; }
  std::size_t handle_size() const override { return sizeof(Bytes); }
  PageOperations page_operations() const override { return operations_; }

 private:
  using Block = BlockCache::Block;
  struct ByOffset {
    bool operator()(const Block* a, const Block* b) const { return a->offset < b->offset; }
  };
  Block* Expand(int pool, Bytes bytes);
  Block* MapStartOf(Block* hole, Bytes bytes);
  bool UnmapFree();
  void Unmap(Block* block);

  const Bytes limit_;
  Bytes held_;
  PageOperations operations_;
  BlockCache cache_;
  std::array<std::set<Block*, ByOffset>, BlockCache::kPools> holes_;
};

}  // namespace lgpu::bench

#endif  // LGPU_BENCH_PEERS_CACHING_ALLOCATOR_H_
