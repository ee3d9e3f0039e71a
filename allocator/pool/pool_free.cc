// Blocks that their owners give back: to the front cache, or to the sub-allocator.

#include "allocator/pool/pool_impl.h"
#include "lgpu/status.h"

namespace lgpu {
namespace {

// A cached block gets its next name without the sub-allocator.
bool HasNames(std::uint32_t generation) { return generation + 2 < Node::kGenerations; }

}  // namespace

// Defined here so that FreeSmall is inlined.
absl::Status Pool::Free(const Block& block) { return impl_->Free(block); }

absl::Status Pool::Impl::Free(const Block& block) {
  LGPU_RETURN_IF_ERROR(state_.CheckAlive());
  if (TraceRecorder* const trace = state_.trace.load(std::memory_order_acquire)) [[unlikely]] {
    RecordFree(*trace, block);
  }
  return IsCacheable(block.bytes) ? FreeSmall(block) : FreeLarge(block);
}

[[gnu::always_inline]] inline absl::Status Pool::Impl::FreeSmall(const Block& block) {
  std::uint32_t word = state_.LiveWord(block);
  if (word == 0) [[unlikely]] {
    return NotLive(block);
  }
  Node& node = state_.nodes[block.node];
  const std::uint32_t about = node.behind;
  // This exchange gives the block to this call: of two calls that free it, only one gets further. It fails
  // once, without harm, where UseOn shares the block meanwhile.
  const std::uint32_t freed = Node::Word(block.generation, Node::kCached);
  while (
      !node.word.compare_exchange_weak(word, freed, std::memory_order_acq_rel, std::memory_order_relaxed)) {
    if ((word & ~1u) != Node::Word(block.generation, Node::kLive)) return NotLive(block);
  }
  const bool is_shared = Node::StateOf(word) == Node::kShared;
  const auto padding = static_cast<std::int64_t>(BlockEntry::PaddingOf(about));
  const StreamId stream = BlockEntry::StreamOf(about);
  Shard* const shard = state_.cache.Mine();
  if (stream == StreamOrder::kHome && !is_shared && HasNames(block.generation) && shard != nullptr)
      [[likely]] {
    const auto size = static_cast<std::uint32_t>(block.bytes / Suballocator::kGranule);
    const std::int64_t budget = state_.bounds.cache_budget.load(std::memory_order_relaxed);
    if (shard->Put(size, block.node, padding, budget)) return absl::OkStatus();
    if (shard->Queue(size, block.node, padding, budget)) {
      state_.nodes.PrefetchNeighbours(block.node);
      return absl::OkStatus();
    }
  }
  FreeUncached(shard, block.node, is_shared, about);
  return absl::OkStatus();
}

void Pool::Impl::FreeUncached(Shard* shard, std::uint32_t index, bool is_shared, std::uint32_t about) {
  {
    MutexLock lock(state_.mutex);
    if (shard != nullptr) state_.ReleaseQueue(*shard);
    state_.padding -= static_cast<std::int64_t>(BlockEntry::PaddingOf(about));
    state_.uses.NoteFreed(ThisThread::Number());
    state_.TakeBack(index, is_shared, BlockEntry::StreamOf(about));
  }
  state_.WakeIfDue();
}

absl::Status Pool::Impl::FreeLarge(const Block& block) {
  if (state_.nodes.Has(block.node)) state_.nodes.PrefetchNeighbours(block.node);
  std::uint32_t word = 0;
  {
    MutexLock lock(state_.mutex);
    word = state_.LiveWord(block);
    if (word != 0) [[likely]] {
      const std::uint32_t about = state_.nodes[block.node].behind;
      const std::uint32_t padding = BlockEntry::PaddingOf(about);
      state_.padding -= static_cast<std::int64_t>(padding);
      if (!state_.scratch_blocks.empty() && state_.scratch_blocks.erase(block.node) != 0) {
        state_.scratch -= block.bytes;
        state_.scratch_padding -= Bytes(padding);
      } else {
        state_.uses.NoteFreed(ThisThread::Number());
      }
      state_.TakeBack(block.node, Node::StateOf(word) == Node::kShared, BlockEntry::StreamOf(about));
    }
  }
  if (word == 0) [[unlikely]] {
    return NotLive(block);
  }
  state_.WakeIfDue();
  return absl::OkStatus();
}

absl::Status Pool::Impl::UseOn(const Block& block, StreamId stream) {
  LGPU_RETURN_IF_ERROR(state_.CheckAlive());
  LGPU_RETURN_IF_ERROR(CheckStreamId(stream));
  if (state_.LiveWord(block) == 0) return NotLive(block);
  Node& node = state_.nodes[block.node];
  if (BlockEntry::StreamOf(node.behind) == stream) return absl::OkStatus();
  MutexLock lock(state_.mutex);
  std::uint32_t word = Node::Word(block.generation, Node::kLive);
  if (!node.word.compare_exchange_strong(word, Node::Word(block.generation, Node::kShared)) &&
      word != Node::Word(block.generation, Node::kShared)) {
    return NotLive(block);
  }
  state_.shared[block.node] |= StreamOrder::Only(stream);
  return absl::OkStatus();
}

}  // namespace lgpu
