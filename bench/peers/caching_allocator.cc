#include "bench/peers/caching_allocator.h"

#include <algorithm>

namespace lgpu::bench {
namespace {

constexpr Bytes kUnit = 512_B;

// 20 MiB is no power of two.
Bytes UpTo(Bytes bytes, Bytes unit) { return unit * ((bytes + unit - Bytes(1)) / unit); }
Bytes DownTo(Bytes bytes, Bytes unit) { return unit * (bytes / unit); }

Bytes SegmentFor(Bytes bytes) {
  if (BlockCache::PoolOf(bytes) != BlockCache::kLarge) return 2_MiB;
  return bytes < 10_MiB ? 20_MiB : UpTo(bytes, 2_MiB);
}

Bytes PageOf(int pool) { return pool == BlockCache::kLarge ? 20_MiB : 2_MiB; }
Bytes BaseOf(int pool) { return 16_TiB * static_cast<std::uint64_t>(pool + 1); }

}  // namespace

// ---- blocks

BlockCache::BlockCache(Slot slots) : offsets_(slots) { live_.reserve(slots); }

BlockCache::Block* BlockCache::NewBlock(Bytes offset, Bytes bytes, int pool) {
  Block* block = nullptr;
  if (vacant_.empty()) {
    block = &store_.emplace_back();
  } else {
    block = vacant_.back();
    vacant_.pop_back();
  }
  *block = {.offset = offset, .bytes = bytes, .pool = pool};
  return block;
}

BlockCache::Block* BlockCache::Split(Block* block, Bytes bytes) {
  Block* rest = NewBlock(block->offset + bytes, block->bytes - bytes, block->pool);
  rest->mapped = block->mapped;
  rest->previous = block;
  rest->next = block->next;
  if (block->next != nullptr) block->next->previous = rest;
  block->next = rest;
  block->bytes = bytes;
  return rest;
}

void BlockCache::AbsorbNext(Block* block) {
  Block* gone = block->next;
  block->bytes += gone->bytes;
  block->next = gone->next;
  if (block->next != nullptr) block->next->previous = block;
  Drop(gone);
}

BlockCache::Block* BlockCache::TakeBestFit(int pool, Bytes bytes) {
  Block key{.offset = Bytes(), .bytes = bytes};
  const auto found = free_[pool].lower_bound(&key);
  if (found == free_[pool].end()) return nullptr;
  Block* block = *found;
  free_[pool].erase(found);
  return block;
}

void BlockCache::MakeLive(Slot slot, Block* block) {
  block->live = true;
  live_[block->offset.count()] = block;
  offsets_[slot] = block->offset;
}

void BlockCache::MakeFree(Slot slot) {
  const auto found = live_.find(offsets_[slot].count());
  Block* block = found->second;
  live_.erase(found);
  block->live = false;
  if (block->next != nullptr && block->next->IsFree()) {
    Erase(block->next);
    AbsorbNext(block);
  }
  if (block->previous != nullptr && block->previous->IsFree()) {
    block = block->previous;
    Erase(block);
    AbsorbNext(block);
  }
  Insert(block);
}

// ---- segments

bool SegmentCachingAllocator::Allocate(Slot slot, Bytes bytes) {
  const Bytes rounded = RoundUp(bytes, kUnit);
  const int pool = BlockCache::PoolOf(rounded);
  BlockCache::Block* block = cache_.TakeBestFit(pool, rounded);
  if (block == nullptr) block = NewSegment(rounded);
  if (block == nullptr && ReleaseSegments()) block = NewSegment(rounded);
  if (block == nullptr) return false;
  const Bytes rest = block->bytes - rounded;
  if (pool == BlockCache::kLarge ? rest > 1_MiB : rest >= kUnit) cache_.Insert(cache_.Split(block, rounded));
  cache_.MakeLive(slot, block);
  return true;
}

BlockCache::Block* SegmentCachingAllocator::NewSegment(Bytes bytes) {
  const Bytes segment = SegmentFor(bytes);
  if (held_ + segment > limit_) return nullptr;
  BlockCache::Block* block = cache_.NewBlock(next_address_, segment, BlockCache::PoolOf(bytes));
  next_address_ += segment + kPage;
  held_ += segment;
  ++operations_.mapped;
  return block;
}

bool SegmentCachingAllocator::ReleaseSegments() {
  bool any = false;
  for (int pool = 0; pool < BlockCache::kPools; ++pool) {
    for (BlockCache::Block* block : cache_.FreeBlocks(pool)) {
      if (block->previous == nullptr && block->next == nullptr) {
        cache_.Erase(block);
        held_ -= block->bytes;
        cache_.Drop(block);
        ++operations_.unmapped;
        any = true;
      }
    }
  }
  return any;
}

// ---- expandable segments

ExpandableCachingAllocator::ExpandableCachingAllocator(const ContenderOptions& options)
    : limit_(options.limit), cache_(options.slots) {
  for (int pool = 0; pool < BlockCache::kPools; ++pool) {
    const Bytes reserved = UpTo(options.limit + options.limit / 8, PageOf(BlockCache::kLarge));
    Block* hole = cache_.NewBlock(BaseOf(pool), reserved, pool);
    hole->mapped = false;
    holes_[pool].insert(hole);
  }
}

bool ExpandableCachingAllocator::Allocate(Slot slot, Bytes bytes) {
  const Bytes rounded = RoundUp(bytes, kUnit);
  const int pool = BlockCache::PoolOf(rounded);
  Block* block = cache_.TakeBestFit(pool, rounded);
  if (block == nullptr) block = Expand(pool, rounded);
  if (block == nullptr && UnmapFree()) {
    block = cache_.TakeBestFit(pool, rounded);
    if (block == nullptr) block = Expand(pool, rounded);
  }
  if (block == nullptr) return false;
  if (block->bytes > rounded) cache_.Insert(cache_.Split(block, rounded));
  cache_.MakeLive(slot, block);
  return true;
}

// Maps pages into the lowest hole that, with free blocks around it, holds the request.
BlockCache::Block* ExpandableCachingAllocator::Expand(int pool, Bytes bytes) {
  for (Block* hole : holes_[pool]) {
    Bytes possible = hole->bytes;
    if (hole->previous != nullptr && hole->previous->IsFree()) possible += hole->previous->bytes;
    if (hole->next != nullptr && hole->next->IsFree()) possible += hole->next->bytes;
    if (possible >= bytes) return MapStartOf(hole, bytes);
  }
  return nullptr;
}

BlockCache::Block* ExpandableCachingAllocator::MapStartOf(Block* hole, Bytes bytes) {
  const Bytes page = PageOf(hole->pool);
  const bool continues = hole->previous != nullptr && hole->previous->IsFree();
  const Bytes before = continues ? hole->previous->bytes : Bytes();
  const Bytes fresh = before >= bytes ? page : std::min(hole->bytes, UpTo(bytes - before, page));
  if (held_ + fresh > limit_) return nullptr;
  holes_[hole->pool].erase(hole);
  if (hole->bytes > fresh) holes_[hole->pool].insert(cache_.Split(hole, fresh));
  Block* block = hole;
  block->mapped = true;
  held_ += fresh;
  operations_.mapped += fresh / page;
  if (continues) {
    block = block->previous;
    cache_.Erase(block);
    cache_.AbsorbNext(block);
  }
  if (block->next != nullptr && block->next->IsFree()) {
    cache_.Erase(block->next);
    cache_.AbsorbNext(block);
  }
  return block;
}

bool ExpandableCachingAllocator::UnmapFree() {
  bool any = false;
  for (int pool = 0; pool < BlockCache::kPools; ++pool) {
    const Bytes page = PageOf(pool);
    const Bytes base = BaseOf(pool);
    for (Block* block : cache_.FreeBlocks(pool)) {
      const Bytes first = base + UpTo(block->offset - base, page);
      const Bytes last = base + DownTo(block->offset + block->bytes - base, page);
      if (last <= first) continue;
      cache_.Erase(block);
      if (first > block->offset) {
        Block* rest = cache_.Split(block, first - block->offset);
        cache_.Insert(block);
        block = rest;
      }
      if (block->offset + block->bytes > last) cache_.Insert(cache_.Split(block, last - block->offset));
      Unmap(block);
      any = true;
    }
  }
  return any;
}

void ExpandableCachingAllocator::Unmap(Block* block) {
  std::set<Block*, ByOffset>& holes = holes_[block->pool];
  block->mapped = false;
  held_ -= block->bytes;
  operations_.unmapped += block->bytes / PageOf(block->pool);
  if (block->next != nullptr && !block->next->mapped) {
    holes.erase(block->next);
    cache_.AbsorbNext(block);
  }
  if (block->previous != nullptr && !block->previous->mapped) {
    block = block->previous;
    holes.erase(block);
    cache_.AbsorbNext(block);
  }
  holes.insert(block);
}

}  // namespace lgpu::bench
