#include "client/session/snapshot_answers.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/status/status.h"
#include "base/utf8.h"

namespace lgpu {
namespace {

std::size_t VarintBytes(std::uint64_t value) {
  std::size_t bytes = 1;
  for (; value >= 0x80; value >>= 7U) ++bytes;
  return bytes;
}

std::uint32_t Clamp32(std::uint64_t value) {
  return static_cast<std::uint32_t>(
      std::min<std::uint64_t>(value, std::numeric_limits<std::uint32_t>::max()));
}

wire::BlockList::State StateOf(BlockState state) {
  switch (state) {
    case BlockState::kLive:
      return wire::BlockList::State::kLive;
    case BlockState::kCached:
      return wire::BlockList::State::kCached;
    case BlockState::kFenced:
      return wire::BlockList::State::kFenced;
  }
  return wire::BlockList::State::kLive;
}

}  // namespace

wire::SnapshotPage SnapshotAnswers::Refused(const wire::Snapshot& question, const absl::Status& why) {
  wire::SnapshotPage page;
  page.snapshot_id = question.snapshot_id;
  page.page = question.page;
  page.code = static_cast<std::int32_t>(why.code());
  page.message = std::string(why.message());
  return page;
}

std::optional<wire::SnapshotPage> SnapshotAnswers::Answer(const wire::Snapshot& question,
                                                          const DevicePool* memory) {
  if (question.end) {
    if (kept_ && kept_->id == question.snapshot_id) kept_.reset();
    return std::nullopt;
  }
  if (question.page == 0) {
    kept_.reset();
    if (memory == nullptr) {
      return Refused(question, absl::NotFoundError("it has no device " + std::to_string(question.device_id)));
    }
    absl::StatusOr<PoolBlocks> taken = memory->Blocks(kMostBlocks);
    if (!taken.ok()) return Refused(question, taken.status());
    kept_.emplace();
    kept_->id = question.snapshot_id;
    kept_->taken = *std::move(taken);
    kept_->told.resize(kept_->taken.ops.size());
  }
  if (!kept_ || kept_->id != question.snapshot_id || kept_->next_page != question.page) {
    return Refused(question, absl::FailedPreconditionError("it keeps no snapshot whose page " +
                                                           std::to_string(question.page) + " comes next"));
  }
  kept_->asked_at = Clock::now();
  ++kept_->next_page;
  wire::SnapshotPage page;
  page.snapshot_id = question.snapshot_id;
  page.page = question.page;
  const PoolBlocks& taken = kept_->taken;
  if (question.page == 0) page.region = RegionOf(taken.about);
  const std::size_t used = AddMappings(*kept_, page);
  if (kept_->mapping == taken.about.mappings.size()) AddBlocks(*kept_, kMostListBytes - used, page);
  page.more = kept_->mapping < taken.about.mappings.size() || kept_->block < taken.blocks.size();
  if (!page.more) kept_.reset();
  return page;
}

std::optional<SnapshotAnswers::Clock::time_point> SnapshotAnswers::ForgetIfUnused(Clock::time_point now) {
  if (!kept_) return std::nullopt;
  const Clock::time_point end = kept_->asked_at + kPatience;
  if (now < end) return end;
  kept_.reset();
  return std::nullopt;
}

wire::RegionStats SnapshotAnswers::RegionOf(const MemorySnapshot& snapshot) {
  const MemoryStats& stats = snapshot.stats;
  return {.base_address = reinterpret_cast<std::uintptr_t>(snapshot.base),
          .reserved_bytes = snapshot.reserved.count(),
          .granularity_bytes = snapshot.granularity.count(),
          .limit_bytes = stats.limit.count(),
          .requested_bytes = stats.requested.count(),
          .used_bytes = stats.used.count(),
          .peak_used_bytes = stats.peak_used.count(),
          .held_bytes = stats.held.count(),
          .workspace_bytes = stats.workspace.count(),
          .idle_bytes = stats.idle.count(),
          .cached_bytes = stats.cached.count(),
          .fenced_bytes = stats.fenced.count(),
          .largest_free_block_bytes = stats.largest_free_block.count(),
          .live_blocks = stats.live_blocks,
          .allocations_total = stats.num_allocs,
          .refusals_total = stats.num_refusals};
}

std::size_t SnapshotAnswers::AddMappings(Kept& kept, wire::SnapshotPage& page) {
  std::size_t used = 0;
  const std::vector<MemorySnapshot::Mapping>& mappings = kept.taken.about.mappings;
  if (kept.mapping == mappings.size()) return used;
  wire::MappingList& list = page.mappings.emplace();
  list.start = kept.mapping_end;
  for (; kept.mapping < mappings.size(); ++kept.mapping) {
    const MemorySnapshot::Mapping& mapping = mappings[kept.mapping];
    const std::uint64_t gap = mapping.offset.count() - kept.mapping_end;
    const std::size_t bytes = VarintBytes(gap) + VarintBytes(mapping.bytes.count());
    if (used + bytes > kMostListBytes) break;
    used += bytes;
    list.gap.push_back(gap);
    list.bytes.push_back(mapping.bytes.count());
    kept.mapping_end = mapping.offset.count() + mapping.bytes.count();
  }
  return used;
}

void SnapshotAnswers::AddBlocks(Kept& kept, std::size_t bytes_left, wire::SnapshotPage& page) {
  const PoolBlocks& taken = kept.taken;
  if (kept.block == taken.blocks.size()) return;
  wire::BlockList list;
  list.start = kept.block_end;
  for (; kept.block < taken.blocks.size(); ++kept.block) {
    const BlockCopy& block = taken.blocks[kept.block];
    const std::uint64_t offset = PoolBlocks::OffsetOf(block).count();
    const std::uint64_t block_bytes = PoolBlocks::BytesOf(block).count();
    const std::uint64_t gap = offset - kept.block_end;
    const std::uint32_t padding = BlockEntry::PaddingOf(block.about);
    const std::uint32_t stream = BlockEntry::StreamOf(block.about);
    const std::uint32_t age =
        Clamp32(static_cast<std::uint64_t>(std::max<std::int64_t>(taken.AgeOf(block).count(), 0)));
    const std::uint32_t op = BlockEntry::OpOf(block.about);
    const bool is_new = !taken.ops[op].empty() && kept.told[op] == 0;
    const std::string name = is_new ? AsUtf8(taken.ops[op].substr(0, kMostNameBytes)) : std::string();
    const std::uint32_t id = is_new ? kept.told_ops + 1 : kept.told[op];
    const std::size_t bytes = VarintBytes(gap) + VarintBytes(block_bytes) + VarintBytes(padding) +
                              VarintBytes(id) + VarintBytes(stream) + VarintBytes(age) + 1 +
                              (is_new ? name.size() + 3 : 0);
    if (bytes > bytes_left) break;
    bytes_left -= bytes;
    if (is_new) {
      page.op_names.push_back(name);
      kept.told[op] = id;
      kept.told_ops = id;
    }
    list.gap.push_back(gap);
    list.bytes.push_back(block_bytes);
    list.padding.push_back(padding);
    list.op.push_back(id);
    list.stream.push_back(stream);
    list.age_ms.push_back(age);
    list.state.push_back(StateOf(PoolBlocks::StateOf(block)));
    kept.block_end = offset + block_bytes;
  }
  if (!list.bytes.empty()) page.blocks = std::move(list);
}

}  // namespace lgpu
