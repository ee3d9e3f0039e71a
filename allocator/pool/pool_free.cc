// Blocks that come back, from their owners up to the front cache or the sub-allocator.

#include "allocator/pool/pool_impl.h"
#include "lgpu/status.h"

namespace lgpu {

// Here, so that it and what it calls are one piece of code.
absl::Status Pool::Free(const Block& block) { return impl_->Free(block); }

absl::Status Pool::Impl::Free(const Block& block) {
  LGPU_RETURN_IF_ERROR(CheckAlive());
  if (TraceRecorder* const trace = trace_.load(std::memory_order_acquire)) [[unlikely]] {
    RecordFree(*trace, block);
  }
  return IsCacheable(block.bytes) ? FreeSmall(block) : FreeLarge(block);
}

[[gnu::always_inline]] inline absl::Status Pool::Impl::FreeSmall(const Block& block) {
  std::uint32_t word = LiveWord(block);
  if (word == 0) [[unlikely]] {
    return NotLive(block);
  }
  Node& node = nodes_[block.node];
  const std::uint32_t about = node.behind;
  const bool is_shared = Node::StateOf(word) == Node::kShared;
  // From here on it is this call's: of two that free the same block, one gets no further.
  if (!node.word.compare_exchange_strong(word, Node::Word(block.generation, Node::kCached),
                                         std::memory_order_acq_rel, std::memory_order_relaxed)) [[unlikely]] {
    return NotLive(block);
  }
  const auto padding = static_cast<std::int64_t>(BlockEntry::PaddingOf(about));
  const StreamId stream = BlockEntry::StreamOf(about);
  Shard* const shard = cache_.Mine();
  if (stream == StreamOrder::kHome && !is_shared && HasNames(block.generation) && shard != nullptr)
      [[likely]] {
    const auto size = static_cast<std::uint32_t>(block.bytes / Suballocator::kGranule);
    const std::int64_t budget = cache_budget_.load(std::memory_order_relaxed);
    if (shard->Put(size, block.node, padding, budget)) {
      return absl::OkStatus();
    }
    if (shard->Queue(size, block.node, padding, budget)) {
      nodes_.PrefetchNeighbours(block.node);
      return absl::OkStatus();
    }
  }
  FreeUncached(shard, block.node, is_shared, about);
  return absl::OkStatus();
}

void Pool::Impl::FreeUncached(Shard* shard, std::uint32_t index, bool is_shared, std::uint32_t about) {
  {
    MutexLock lock(mutex_);
    if (shard != nullptr) {
      ReleaseQueue(*shard);
    }
    padding_ -= static_cast<std::int64_t>(BlockEntry::PaddingOf(about));
    GiveUp(index, is_shared, BlockEntry::StreamOf(about));
  }
  WakeIfDue();
}

absl::Status Pool::Impl::FreeLarge(const Block& block) {
  if (!FreeLargeLive(block)) {
    return NotLive(block);
  }
  WakeIfDue();
  return absl::OkStatus();
}

bool Pool::Impl::FreeLargeLive(const Block& block) {
  if (nodes_.Has(block.node)) {
    nodes_.PrefetchNeighbours(block.node);
  }
  MutexLock lock(mutex_);
  NoteThread();
  const std::uint32_t word = LiveWord(block);
  if (word == 0) {
    return false;
  }
  const std::uint32_t about = nodes_[block.node].behind;
  const std::uint32_t padding = BlockEntry::PaddingOf(about);
  padding_ -= static_cast<std::int64_t>(padding);
  if (!scratch_blocks_.empty() && scratch_blocks_.erase(block.node) != 0) {
    scratch_ -= block.bytes;
    scratch_padding_ -= Bytes(padding);
  }
  GiveUp(block.node, Node::StateOf(word) == Node::kShared, BlockEntry::StreamOf(about));
  return true;
}

// A block whose owner is done with it.
void Pool::Impl::GiveUp(std::uint32_t index, bool is_shared, StreamId stream) {
  if (is_shared || stream != StreamOrder::kHome) {
    Park(index, is_shared, stream);
  } else {
    order_.NoteFree(StreamOrder::Only(StreamOrder::kHome));
    Release(index, order_.stamp());
  }
}

}  // namespace lgpu
