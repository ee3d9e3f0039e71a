// Snapshots: the blocks that the program of a session tells.

#include "absl/strings/str_cat.h"
#include "daemon/sessions/session.h"

namespace lgpu::daemon {

void Session::SendSnapshots() {
  // Before the last Attested nothing else is sent; a client that closes has no blocks any more.
  if (attesting_ || close_request_ || end_ != End::kNone) return;
  const bool is_time = next_snapshot_look_ && turn_ >= *next_snapshot_look_;
  if (!is_time && !state_->snapshots().has_news()) return;
  while (const std::optional<wire::Snapshot> next = state_->snapshots().Next()) {
    const wire::Frame frame{.body = *next};
    // Do not wait for a client that does not read: a frame without room in the socket fails the snapshot
    // alone.
    const absl::Status sent = channel_.Send(frame, {}, wire::Channel::kAtOnce);
    if (absl::IsUnavailable(sent)) {
      end_ = End::kLost;
      return;
    }
    if (!sent.ok()) {
      state_->snapshots().Fail(absl::UnavailableError(absl::StrCat(
          "pid ", peer_.credentials.pid, " does not read lgpud's frames: it is stopped, or busy")));
    }
  }
  next_snapshot_look_ = state_->snapshots().next_look();
}

void Session::HandleSnapshotPage(const wire::SnapshotPage& page) {
  const absl::Status status = state_->snapshots().Take(page);
  if (!status.ok()) Break(status);
}

}  // namespace lgpu::daemon
