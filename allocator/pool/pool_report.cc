// A pool's reports: statistics, snapshots, traces, invariants.

#include <algorithm>
#include <limits>
#include <unordered_map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "allocator/pool/pool_impl.h"
#include "lgpu/status.h"

namespace lgpu {
namespace {

bool HoldsMore(const MemoryOwner& a, const MemoryOwner& b) {
  return a.bytes != b.bytes ? a.bytes > b.bytes : a.op < b.op;
}

std::vector<MemoryOwner> OwnersOf(const PageArray<BlockCopy>& blocks, const OwnerNames& names) {
  std::unordered_map<std::uint32_t, MemoryOwner> by_op;
  for (const BlockCopy& block : blocks) {
    if (PoolBlocks::StateOf(block) == BlockState::kLive) {
      MemoryOwner& owner = by_op[BlockEntry::OpOf(block.about)];
      owner.bytes += PoolBlocks::BytesOf(block);
      ++owner.blocks;
    }
  }
  std::vector<MemoryOwner> owners;
  for (auto& [op, owner] : by_op) {
    owner.op = names.NameOf(op);
    owners.push_back(std::move(owner));
  }
  std::sort(owners.begin(), owners.end(), HoldsMore);
  return owners;
}

}  // namespace

// ---- Statistics and invariants.

MemoryStats Pool::Impl::stats() const {
  if (state_.epoch.IsForked()) return {};
  const Bytes limit = state_.source->limit();
  MutexLock lock(state_.mutex);
  return StatsUnder(limit);
}

MemoryStats Pool::Impl::StatsUnder(Bytes limit) const {
  MemoryStats stats;
  stats.limit = limit;
  const FrontCache::Totals cached = state_.cache.totals();
  stats.used = state_.Used();
  stats.cached = Bytes(static_cast<std::uint64_t>(std::max<std::int64_t>(cached.bytes, 0)));
  stats.fenced = Bytes(state_.fenced.load(std::memory_order_relaxed));
  const std::int64_t padding = std::max<std::int64_t>(
      state_.padding - static_cast<std::int64_t>(state_.scratch_padding.count()) + cached.padding, 0);
  stats.requested = SaturatingSub(stats.used, Bytes(static_cast<std::uint64_t>(padding)));
  stats.peak_used = std::max(state_.meter.peak_used(), stats.used);
  stats.held = state_.chunks.held();
  stats.workspace = state_.scratch;
  if (!state_.chunks.is_suspended()) {
    stats.idle = state_.chunks.spare_bytes() + state_.blocks.idle(Suballocator::kYoungest);
  }
  stats.largest_free_block = state_.blocks.largest_free();
  stats.live_blocks = state_.LiveBlocks();
  stats.num_allocs = state_.counts.allocs + cached.hits;
  stats.num_refusals = state_.counts.refusals;
  stats.cache_hits = cached.hits;
  stats.cache_flushes = state_.counts.cache_flushes;
  stats.source_round_trips = state_.counts.round_trips;
  stats.source_round_trips_ahead = state_.counts.round_trips_ahead;
  stats.remapped_chunks = state_.counts.remapped_chunks;
  stats.fences_recorded = state_.counts.fences_recorded;
  stats.fence_waits = state_.counts.fence_waits;
  stats.last_refusal = state_.counts.last_refusal;
  return stats;
}

void Pool::Impl::ResetPeak() {
  if (state_.epoch.IsForked()) return;
  MutexLock lock(state_.mutex);
  state_.meter.ResetPeak(state_.Used());
}

// Blocks appear, disappear and become fenced under the lock only.
absl::Status Pool::Impl::CheckEntries() const {
  std::uint64_t blocks = 0;
  std::uint64_t fenced_blocks = 0;
  Bytes bytes;
  Bytes fenced;
  for (std::uint32_t index = 1; index < state_.nodes.end(); ++index) {
    const Node& node = state_.nodes[index];
    const Node::State state = node.state();
    if (!Node::IsBlock(state)) continue;
    const Bytes size = Suballocator::kGranule * node.size;
    ++blocks;
    bytes += size;
    if (state == Node::kFenced) {
      ++fenced_blocks;
      fenced += size;
    }
  }
  if (blocks != state_.blocks.live_blocks() || bytes != state_.blocks.used() ||
      bytes != state_.meter.charged()) {
    return absl::InternalError(absl::StrCat("pool: ", blocks, " entries of ", bytes.count(), " bytes for ",
                                            state_.blocks.live_blocks(), " blocks of ",
                                            state_.blocks.used().count()));
  }
  if (fenced_blocks != state_.counts.fenced_blocks || fenced.count() != state_.fenced) {
    return absl::InternalError(absl::StrCat("pool: ", fenced_blocks, " blocks are fenced, ",
                                            state_.counts.fenced_blocks, " are counted"));
  }
  Bytes scratch;
  for (const std::uint32_t index : state_.scratch_blocks) {
    scratch += Suballocator::kGranule * state_.nodes[index].size;
  }
  if (scratch != state_.scratch) {
    return absl::InternalError(absl::StrCat("pool: blocks of scratch memory have ", scratch.count(),
                                            " bytes, ", state_.scratch.count(), " are counted"));
  }
  if (state_.by_address.is_on() && state_.by_address.size() != blocks) {
    return absl::InternalError(
        absl::StrCat("pool: ", state_.by_address.size(), " addresses for ", blocks, " blocks"));
  }
  return absl::OkStatus();
}

absl::Status Pool::Impl::CheckInvariants() const {
  LGPU_RETURN_IF_ERROR(state_.CheckAlive());
  MutexLock lock(state_.mutex);
  LGPU_RETURN_IF_ERROR(state_.blocks.CheckInvariants());
  LGPU_RETURN_IF_ERROR(CheckEntries());
  LGPU_RETURN_IF_ERROR(state_.chunks.CheckInvariants(state_.calls != 0));
  Bytes mapped_bytes;
  for (const auto& [offset, chunk] : state_.chunks.mapped()) mapped_bytes += chunk.bytes;
  if (state_.calls == 0 && !state_.pending.is_zero()) {
    return absl::InternalError(
        absl::StrCat("pool: ", state_.pending.count(), " bytes are pending without a request"));
  }
  if (state_.calls == 0 && state_.blocks.used() + state_.blocks.free() != mapped_bytes) {
    return absl::InternalError(absl::StrCat("pool: used ", state_.blocks.used().count(), " and free ",
                                            state_.blocks.free().count(), " are not the mapped ",
                                            mapped_bytes.count()));
  }
  return absl::OkStatus();
}

// ---- Snapshots.

std::vector<MemoryOwner> Pool::Impl::LargestOwners(std::size_t n) const {
  if (state_.epoch.IsForked()) return {};
  std::vector<MemoryOwner> owners = OwnersOf(ScanBlocks(state_, [] {}), state_.owners);
  owners.resize(std::min(owners.size(), n));
  return owners;
}

absl::StatusOr<PoolBlocks> Pool::Impl::Blocks(std::uint64_t at_most) const {
  LGPU_RETURN_IF_ERROR(state_.CheckAlive());
  PoolBlocks made;
  MemorySnapshot& about = made.about;
  about.device = state_.options.device;
  about.lease = state_.options.lease;
  about.base = state_.base;
  about.reserved = state_.reserved;
  about.granularity = state_.page;
  const Bytes limit = state_.source->limit();
  {
    MutexLock lock(state_.mutex);
    if (const std::uint64_t blocks = state_.blocks.live_blocks(); blocks > at_most) {
      return absl::ResourceExhaustedError(
          absl::StrCat(about.device.empty() ? "the pool" : about.device, " has ", blocks,
                       " blocks; a snapshot has at most ", at_most,
                       "\ntry: lgpu ls or lgpu inspect, which have its sums"));
    }
    about.mappings.reserve(state_.chunks.mapped().size());
  }
  made.blocks = ScanBlocks(state_, [&] {
    state_.mutex.AssertHeld();
    about.stats = StatsUnder(limit);
    for (const auto& [offset, chunk] : state_.chunks.mapped()) {
      if (!about.mappings.empty() && about.mappings.back().offset + about.mappings.back().bytes == offset) {
        about.mappings.back().bytes += chunk.bytes;
      } else {
        about.mappings.push_back({offset, chunk.bytes});
      }
    }
  });
  made.now = PoolState::CoarseMilliseconds();
  std::uint32_t ops = 1;
  for (const BlockCopy& block : made.blocks) ops = std::max(ops, BlockEntry::OpOf(block.about) + 1);
  for (std::uint32_t op = 0; op < ops; ++op) made.ops.push_back(state_.owners.NameOf(op));
  return made;
}

MemorySnapshot Pool::Impl::Snapshot() const {
  absl::StatusOr<PoolBlocks> made = Blocks(std::numeric_limits<std::uint64_t>::max());
  if (!made.ok()) return {};
  SortByOffset(made->blocks);
  MemorySnapshot snapshot = std::move(made->about);
  snapshot.blocks.reserve(made->blocks.size());
  for (const BlockCopy& block : made->blocks) {
    const Bytes bytes = PoolBlocks::BytesOf(block);
    snapshot.blocks.push_back({.offset = PoolBlocks::OffsetOf(block),
                               .bytes = bytes,
                               .requested = bytes - Bytes(BlockEntry::PaddingOf(block.about)),
                               .op = made->ops[BlockEntry::OpOf(block.about)],
                               .stream = BlockEntry::StreamOf(block.about),
                               .age = made->AgeOf(block),
                               .state = PoolBlocks::StateOf(block)});
  }
  snapshot.owners = OwnersOf(made->blocks, state_.owners);
  return snapshot;
}

void Pool::Impl::RecordAllocate(const std::byte* address, Bytes bytes, const AllocateOptions& options) const {
  if (TraceRecorder* const trace = state_.trace.load(std::memory_order_acquire)) {
    trace->Record(address != nullptr ? TraceRecorder::Action::kAllocate : TraceRecorder::Action::kFailure,
                  address, bytes, options.stream);
  }
}

void Pool::Impl::RecordFree(TraceRecorder& trace, const Block& block) const {
  if (state_.LiveWord(block) != 0) {
    const std::uint32_t about = state_.nodes[block.node].behind;
    trace.Record(TraceRecorder::Action::kFree, block.address,
                 block.bytes - Bytes(BlockEntry::PaddingOf(about)), BlockEntry::StreamOf(about));
  }
}

absl::Status Pool::Impl::StartTrace(const std::string& path) {
  LGPU_RETURN_IF_ERROR(state_.CheckAlive());
  LGPU_ASSIGN_OR_RETURN(std::unique_ptr<TraceRecorder> recorder, TraceRecorder::Open(path));
  TraceRecorder* previous = nullptr;
  {
    MutexLock lock(state_.mutex);
    recorders_.push_back(std::move(recorder));
    previous = state_.trace.exchange(recorders_.back().get(), std::memory_order_acq_rel);
  }
  return previous == nullptr ? absl::OkStatus() : previous->Finish();
}

absl::Status Pool::Impl::StopTrace() {
  LGPU_RETURN_IF_ERROR(state_.CheckAlive());
  // The recorder stays: a thread may be about to use it.
  TraceRecorder* const recorder = state_.trace.exchange(nullptr, std::memory_order_acq_rel);
  return recorder == nullptr ? absl::OkStatus() : recorder->Finish();
}

}  // namespace lgpu
