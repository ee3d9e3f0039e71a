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

wire::SnapshotPage Refused(const wire::Snapshot& question, absl::StatusCode code, std::string message) {
  wire::SnapshotPage page;
  page.snapshot_id = question.snapshot_id;
  page.page = question.page;
  page.code = static_cast<std::int32_t>(code);
  page.message = std::move(message);
  return page;
}

}  // namespace

std::optional<wire::SnapshotPage> SnapshotAnswers::Answer(const wire::Snapshot& question,
                                                          const DevicePool* memory) {
  if (question.end) {
    if (kept_ && kept_->id == question.snapshot_id) kept_.reset();
    return std::nullopt;
  }
  if (question.page == 0) {
    kept_.reset();
    if (memory == nullptr) {
      return Refused(question, absl::StatusCode::kNotFound,
                     "it has no device " + std::to_string(question.device_id));
    }
    kept_.emplace();
    kept_->id = question.snapshot_id;
    kept_->snapshot = memory->Snapshot();
  }
  if (!kept_ || kept_->id != question.snapshot_id || kept_->next_page != question.page) {
    return Refused(question, absl::StatusCode::kFailedPrecondition,
                   "it keeps no snapshot whose page " + std::to_string(question.page) + " comes next");
  }
  kept_->asked_at = Clock::now();
  ++kept_->next_page;
  wire::SnapshotPage page;
  page.snapshot_id = question.snapshot_id;
  page.page = question.page;
  if (question.page == 0) page.region = RegionOf(kept_->snapshot);
  const std::size_t used = AddMappings(*kept_, page);
  if (kept_->mapping == kept_->snapshot.mappings.size()) AddBlocks(*kept_, kMostListBytes - used, page);
  page.more =
      kept_->mapping < kept_->snapshot.mappings.size() || kept_->block < kept_->snapshot.blocks.size();
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
  if (kept.mapping == kept.snapshot.mappings.size()) return used;
  wire::MappingList& list = page.mappings.emplace();
  list.start = kept.mapping_end;
  for (; kept.mapping < kept.snapshot.mappings.size(); ++kept.mapping) {
    const MemorySnapshot::Mapping& mapping = kept.snapshot.mappings[kept.mapping];
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
  if (kept.block == kept.snapshot.blocks.size()) return;
  wire::BlockList list;
  list.start = kept.block_end;
  for (; kept.block < kept.snapshot.blocks.size(); ++kept.block) {
    const BlockInfo& block = kept.snapshot.blocks[kept.block];
    const std::uint64_t gap = block.offset.count() - kept.block_end;
    const std::uint32_t padding = Clamp32(SaturatingSub(block.bytes, block.requested).count());
    const std::uint32_t age =
        Clamp32(static_cast<std::uint64_t>(std::max<std::int64_t>(block.age.count(), 0)));
    std::string name = AsUtf8(block.op.substr(0, kMostNameBytes));
    auto op = name.empty() ? kept.ops.end() : kept.ops.find(name);
    const bool is_new = !name.empty() && op == kept.ops.end();
    const std::uint32_t id = name.empty() ? 0
                             : is_new     ? static_cast<std::uint32_t>(kept.ops.size() + 1)
                                          : op->second;
    const std::size_t bytes = VarintBytes(gap) + VarintBytes(block.bytes.count()) + VarintBytes(padding) +
                              VarintBytes(id) + VarintBytes(block.stream) + VarintBytes(age) + 1 +
                              (is_new ? name.size() + 3 : 0);
    if (bytes > bytes_left) break;
    bytes_left -= bytes;
    if (is_new) {
      page.op_names.push_back(name);
      kept.ops.emplace(std::move(name), id);
    }
    list.gap.push_back(gap);
    list.bytes.push_back(block.bytes.count());
    list.padding.push_back(padding);
    list.op.push_back(id);
    list.stream.push_back(static_cast<std::uint32_t>(block.stream));
    list.age_ms.push_back(age);
    list.state.push_back(StateOf(block.state));
    kept.block_end = block.offset.count() + block.bytes.count();
  }
  if (!list.bytes.empty()) page.blocks = std::move(list);
}

}  // namespace lgpu
