#include "daemon/snapshots/snapshot_line.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"

namespace lgpu::daemon {

absl::Status SnapshotLine::Add(std::shared_ptr<DeviceAsk> ask) {
  {
    MutexLock lock(mutex_);
    if (!closed_.ok()) return closed_;
    line_.push_back(std::move(ask));
    has_news_.store(true, std::memory_order_release);
  }
  waker_->Wake();
  return absl::OkStatus();
}

void SnapshotLine::Cancel(const DeviceAsk& ask) {
  {
    MutexLock lock(mutex_);
    std::erase_if(line_, [&ask](const std::shared_ptr<DeviceAsk>& waiting) { return waiting.get() == &ask; });
    if (current_.get() != &ask) return;
    current_.reset();
    // While a page is on its way, it tells whether the program keeps more.
    if (unanswered_) return;
    to_end_ = last_id_;
    has_news_.store(true, std::memory_order_release);
  }
  waker_->Wake();
}

void SnapshotLine::Close(const absl::Status& why) {
  std::vector<std::shared_ptr<DeviceAsk>> open;
  {
    MutexLock lock(mutex_);
    closed_ = why;
    if (current_ != nullptr) open.push_back(std::exchange(current_, nullptr));
    open.insert(open.end(), line_.begin(), line_.end());
    line_.clear();
    unanswered_.reset();
    to_end_.reset();
  }
  for (const std::shared_ptr<DeviceAsk>& ask : open) ask->done(why, {});
}

std::optional<wire::Snapshot> SnapshotLine::Next() {
  MutexLock lock(mutex_);
  has_news_.store(false, std::memory_order_release);
  GiveUpUnanswered();
  if (unanswered_ || !closed_.ok()) return std::nullopt;
  wire::Snapshot frame;
  if (to_end_) {
    frame.snapshot_id = *std::exchange(to_end_, std::nullopt);
    frame.end = true;
    return frame;
  }
  if (current_ == nullptr) {
    if (line_.empty()) return std::nullopt;
    current_ = std::move(line_.front());
    line_.pop_front();
    ++last_id_;
    next_page_ = 0;
  }
  unanswered_ = {.id = last_id_, .page = next_page_++, .asked_at = std::chrono::steady_clock::now()};
  frame.snapshot_id = unanswered_->id;
  frame.device_id = current_->device.value;
  frame.page = unanswered_->page;
  frame.cells = current_->pages.most_cells();
  return frame;
}

std::optional<SnapshotLine::TimePoint> SnapshotLine::GiveUpAt() const {
  if (!unanswered_ || current_ != nullptr || line_.empty()) return std::nullopt;
  if (given_up_.size() + 1 >= kMostUnanswered) return std::nullopt;
  return unanswered_->asked_at + patience_;
}

std::optional<SnapshotLine::TimePoint> SnapshotLine::next_look() const {
  MutexLock lock(mutex_);
  return GiveUpAt();
}

void SnapshotLine::GiveUpUnanswered() {
  const std::optional<TimePoint> when = GiveUpAt();
  if (!when || std::chrono::steady_clock::now() < *when) return;
  given_up_.push_back(*std::exchange(unanswered_, std::nullopt));
}

bool SnapshotLine::TakeGivenUp(const wire::SnapshotPage& page) {
  return std::erase_if(given_up_, [&page](const Frame& frame) {
           return frame.id == page.snapshot_id && frame.page == page.page;
         }) != 0;
}

void SnapshotLine::Fail(const absl::Status& why) {
  std::shared_ptr<DeviceAsk> ask;
  {
    MutexLock lock(mutex_);
    if (!unanswered_) return;
    unanswered_.reset();
    ask = std::exchange(current_, nullptr);
    has_news_.store(true, std::memory_order_release);
  }
  if (ask != nullptr) ask->done(why, {});
}

absl::Status SnapshotLine::Take(const wire::SnapshotPage& page) {
  std::shared_ptr<DeviceAsk> ask;
  const bool keeps_more = page.code == 0 && page.more;
  {
    MutexLock lock(mutex_);
    // The program has forgotten that snapshot with the question after it.
    if (TakeGivenUp(page)) return absl::OkStatus();
    if (!unanswered_ || page.snapshot_id != unanswered_->id || page.page != unanswered_->page) {
      return absl::InvalidArgumentError(absl::StrCat("page ", page.page, " of snapshot ", page.snapshot_id,
                                                     " came, which was not asked for"));
    }
    unanswered_.reset();
    given_up_.clear();  // programs answer in order: those are lost
    has_news_.store(true, std::memory_order_release);
    ask = current_;
    if (ask == nullptr && keeps_more) to_end_ = page.snapshot_id;
  }
  if (ask == nullptr) return absl::OkStatus();
  const absl::Status added = ask->pages.Add(page);
  if (added.ok() && keeps_more) return absl::OkStatus();
  {
    MutexLock lock(mutex_);
    current_.reset();
    if (keeps_more) to_end_ = page.snapshot_id;
  }
  ask->done(added, ask->pages.Take());
  return absl::OkStatus();
}

}  // namespace lgpu::daemon
