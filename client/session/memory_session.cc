#include "client/session/memory_session.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace lgpu {

MemorySession::MemorySession(std::unique_ptr<Lease> lease) : lease_(std::move(lease)) {
  std::map<int, std::shared_ptr<std::atomic<std::uint64_t>>> used;  // parts of one device count together
  for (std::size_t i = 0; i < lease_->devices().size(); ++i) {
    const int place = lease_->devices()[i].lease_index;
    std::shared_ptr<std::atomic<std::uint64_t>>& sum = used[place];
    if (sum == nullptr) sum = std::make_shared<std::atomic<std::uint64_t>>(0);
    memories_.push_back(std::make_unique<DevicePool>(
        lease_->TakeSource(static_cast<int>(i)), lease_->backend(),
        DevicePool::Options{.device = "/device:GPU:" + std::to_string(i),
                            .lease = lease_->name(),
                            .counters = place < ClientPage::kMaxDevices
                                            ? &lease_->page().devices[static_cast<std::size_t>(place)]
                                            : nullptr,
                            .used = sum,
                            .wake = [lease = lease_.get()] { lease->WakeMaintenance(); },
                            .lends_workspace = !lease_->devices()[i].card.simulated}));
  }
}

MemorySession::~MemorySession() {
  if (!epoch_.IsForked()) {
    // A Close that found no daemon has waited for one already.
    if (!closed_) Close().IgnoreError();
    return;
  }
  for (const auto& memory : memories_) memory->Abandon();
  // Its threads and locks stayed in the parent process.
  [[maybe_unused]] const Lease* const leaked = lease_.release();
}

void MemorySession::StartUpkeep(Maintenance::Task also) {
  if (memories_.empty()) return;
  lease_->StartMaintenance([this, also = std::move(also)](Maintenance::TimePoint now) {
    const std::optional<Maintenance::TimePoint> other = also ? also(now) : std::nullopt;
    const std::optional<Maintenance::TimePoint> next = Upkeep(now);
    return next && other ? std::min(*next, *other) : (next ? next : other);
  });
}

void MemorySession::AnswerTrims() {
  for (const TrimOrder& order : lease_->TakeTrims()) {
    bool pending = false;
    Bytes left = order.bytes;
    for (std::size_t i = 0; i < memories_.size() && !left.is_zero(); ++i) {
      // Preallocated memory that a pool does not need stays with its device.
      if (lease_->devices()[i].id != order.device || lease_->devices()[i].preallocated) continue;
      // An error is the device's, and its next user is told.
      const absl::StatusOr<Pool::Trimmed> trimmed = memories_[i]->TrimFor(left);
      if (!trimmed.ok()) continue;
      left = SaturatingSub(left, trimmed->returned);
      pending = pending || !trimmed->pending.is_zero();
    }
    lease_->AnswerTrim(order, pending && !left.is_zero());
  }
}

// A page at a time: a trim that comes meanwhile is answered before the next one.
void MemorySession::AnswerSnapshots() {
  SendPage();
  const std::vector<wire::Snapshot> questions = lease_->TakeSnapshots();
  if (!questions.empty()) AnswerTrims();  // some may have come after the last look, and before the question
  for (const wire::Snapshot& question : questions) {
    std::vector<const DevicePool*> memories;
    for (std::size_t i = 0; i < memories_.size(); ++i) {
      if (lease_->devices()[i].id.value == question.device_id) memories.push_back(memories_[i].get());
    }
    unsent_ = snapshots_.Answer(question, memories);
    SendPage();
  }
}

// The daemon asks nothing else before it has this page, so a page that it did not take is sent again.
void MemorySession::SendPage() {
  if (!unsent_) return;
  const absl::Status sent = lease_->AnswerSnapshot(*unsent_);
  if (sent.ok() || absl::IsUnavailable(sent) || absl::IsFailedPrecondition(sent)) {
    unsent_.reset();
  } else if (!absl::IsDeadlineExceeded(sent) && !absl::IsAborted(sent)) {
    const wire::Snapshot question{.snapshot_id = unsent_->snapshot_id, .page = unsent_->page};
    unsent_ = SnapshotAnswers::Refused(question, sent);
  }
}

std::optional<Maintenance::TimePoint> MemorySession::Upkeep(Maintenance::TimePoint now) {
  AnswerTrims();
  if (lease_->backend().HasLostContext()) lease_->page().context_lost.store(1, std::memory_order_relaxed);
  std::optional<Maintenance::TimePoint> next;
  for (const auto& memory : memories_) {
    const std::optional<Maintenance::TimePoint> wanted = memory->Maintain(now);
    if (wanted) next = std::min(next.value_or(*wanted), *wanted);
  }
  AnswerSnapshots();
  if (const std::optional<Maintenance::TimePoint> forget = snapshots_.ForgetIfUnused(now)) {
    next = std::min(next.value_or(*forget), *forget);
  }
  if (unsent_) next = std::min(next.value_or(now + kSendAgain), now + kSendAgain);
  return next;
}

absl::Status MemorySession::Close() {
  closed_ = true;
  StopUpkeep();
  memories_.clear();
  return lease_->Close();
}

}  // namespace lgpu
