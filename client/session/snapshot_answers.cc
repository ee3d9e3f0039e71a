#include "client/session/snapshot_answers.h"

#include <algorithm>
#include <utility>

#include "absl/status/status.h"
#include "lgpu/status.h"

namespace lgpu {

wire::SnapshotPage SnapshotAnswers::Refused(const wire::Snapshot& question, const absl::Status& why) {
  wire::SnapshotPage page;
  page.snapshot_id = question.snapshot_id;
  page.page = question.page;
  page.code = static_cast<std::int32_t>(why.code());
  page.message = std::string(why.message());
  return page;
}

std::optional<wire::SnapshotPage> SnapshotAnswers::Answer(const wire::Snapshot& question,
                                                          std::span<const DevicePool* const> memories) {
  if (question.end) {
    if (kept_ && kept_->id == question.snapshot_id) kept_.reset();
    return std::nullopt;
  }
  if (question.page == 0) {
    kept_.reset();
    if (memories.empty()) {
      return Refused(question, absl::NotFoundError(
                                   "it does not use this device: its CUDA_VISIBLE_DEVICES hides the GPU"));
    }
    absl::StatusOr<PoolBlocks> taken = BlocksOf(memories);
    if (!taken.ok()) return Refused(question, taken.status());
    kept_.emplace();
    kept_->id = question.snapshot_id;
    kept_->pages = question.cells == 0 ? SnapshotPages::OfBlocks(*std::move(taken))
                                       : SnapshotPages::OfMap(*taken, std::min(question.cells, kMostCells));
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
  kept_->pages->Fill(page);
  if (!page.more) kept_.reset();
  return page;
}

// The first error, where there is one.
absl::StatusOr<PoolBlocks> SnapshotAnswers::BlocksOf(std::span<const DevicePool* const> memories) {
  LGPU_ASSIGN_OR_RETURN(PoolBlocks all, memories.front()->Blocks(kMostBlocks));
  for (const DevicePool* const memory : memories.subspan(1)) {
    LGPU_ASSIGN_OR_RETURN(const PoolBlocks more, memory->Blocks(kMostBlocks - all.blocks.size()));
    all.Append(more);
  }
  return all;
}

std::optional<SnapshotAnswers::Clock::time_point> SnapshotAnswers::ForgetIfUnused(Clock::time_point now) {
  if (!kept_) return std::nullopt;
  const Clock::time_point end = kept_->asked_at + kPatience;
  if (now < end) return end;
  kept_.reset();
  return std::nullopt;
}

}  // namespace lgpu
