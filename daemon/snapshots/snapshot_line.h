#ifndef LGPU_DAEMON_SNAPSHOTS_SNAPSHOT_LINE_H_
#define LGPU_DAEMON_SNAPSHOTS_SNAPSHOT_LINE_H_

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "allocator/broker/waker.h"
#include "base/mutex.h"
#include "daemon/snapshots/block_pages.h"
#include "proto/wire/session_messages.h"

namespace lgpu::daemon {

/// A DeviceAsk is one question of a caller: which blocks has this program on this device? The line that it
/// stands in works on it from one thread, and calls `done` once, unless it was cancelled.
struct DeviceAsk {
  using Done = std::function<void(absl::Status, DeviceBlocks)>;
  /// `into`: new.
  DeviceAsk(LogicalId of, BlockPages into, Done when_done)
      : device(of), pages(std::move(into)), done(std::move(when_done)) {}
  const LogicalId device;
  BlockPages pages;
  const Done done;
};

/// A SnapshotLine has the questions for the blocks of one session's program, which answers one after another:
/// one page for each frame that was sent. While a frame is unanswered nothing else is asked. A program may
/// lose an answer that it could not send: where no caller waits for a frame that is unanswered for
/// `patience`, the next question takes its place, so that at most kMostUnanswered small frames lie unread
/// with a program that does not answer. What it answers too late is dropped. Thread-safe; Next and Take are
/// the session's thread's.
class SnapshotLine {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;
  static constexpr std::size_t kMostUnanswered = 4;
  static constexpr std::chrono::milliseconds kPatience{10'000};

  /// `waker`: of the session's thread.
  explicit SnapshotLine(std::shared_ptr<Waker> waker, std::chrono::milliseconds patience = kPatience)
      : waker_(std::move(waker)), patience_(patience) {}

  /// Puts the question at the end of the line. Not OK: the line is closed, and why.
  absl::Status Add(std::shared_ptr<DeviceAsk> ask);
  /// The caller of `ask` no longer waits for the answer; `done` is not called after this unless it has begun.
  void Cancel(const DeviceAsk& ask);
  /// The session is over: the callers that wait, and later ones, get the error `why`.
  void Close(const absl::Status& why);

  /// When Next has a frame although there is no news: the question in line then takes the place of a frame
  /// that is unanswered for too long. Changes with news only.
  std::optional<TimePoint> next_look() const;
  /// Whether Next may have a frame.
  bool has_news() const { return has_news_.load(std::memory_order_acquire); }
  /// The next frame for the program; nothing: none now.
  std::optional<wire::Snapshot> Next();
  /// The frame could not be sent: its question is answered by `why`.
  void Fail(const absl::Status& why);
  /// The program's answer. INVALID_ARGUMENT: it was not asked for.
  absl::Status Take(const wire::SnapshotPage& page);

 private:
  struct Frame {
    std::uint64_t id = 0;
    std::uint32_t page = 0;
    TimePoint asked_at = {};
  };
  std::optional<TimePoint> GiveUpAt() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void GiveUpUnanswered() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool TakeGivenUp(const wire::SnapshotPage& page) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::shared_ptr<Waker> waker_;
  const std::chrono::milliseconds patience_;
  std::atomic<bool> has_news_{false};
  mutable Mutex mutex_;
  absl::Status closed_ ABSL_GUARDED_BY(mutex_);
  std::deque<std::shared_ptr<DeviceAsk>> line_ ABSL_GUARDED_BY(mutex_);
  std::shared_ptr<DeviceAsk> current_ ABSL_GUARDED_BY(mutex_);  // has begun; null: none, or it was cancelled
  std::uint64_t last_id_ ABSL_GUARDED_BY(mutex_) = 0;           // of the one that began last
  std::uint32_t next_page_ ABSL_GUARDED_BY(mutex_) = 0;
  std::optional<Frame> unanswered_ ABSL_GUARDED_BY(mutex_);
  std::vector<Frame> given_up_ ABSL_GUARDED_BY(mutex_);          // unanswered, as every frame since
  std::optional<std::uint64_t> to_end_ ABSL_GUARDED_BY(mutex_);  // a snapshot that the program still keeps
};

}  // namespace lgpu::daemon

#endif  // LGPU_DAEMON_SNAPSHOTS_SNAPSHOT_LINE_H_
