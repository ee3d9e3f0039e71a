#ifndef LGPU_CLIENT_LINK_REQUESTS_H_
#define LGPU_CLIENT_LINK_REQUESTS_H_

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <utility>
#include <vector>

#include "base/plain_status.h"
#include "proto/wire/frame_channel.h"
#include "proto/wire/session_messages.h"

namespace lgpu::link {

/// The request that the frame answers; 0: the daemon sends it unasked.
std::uint64_t RequestOf(const wire::Frame& frame);

/// How a wait for an answer ended. kOver: the answer is there, or none can come any more.
enum class Waited { kOver, kLate, kStopped };

/// Requests are the requests of one session that wait for an answer, and the rule by which the threads that
/// wait share the channel: one of them reads for all.
///
/// What runs at the same time. Each thread that waits is in Await with a row of its own. One of them at most
/// is the reader: it is in Receive, without the owner's lock. The others sleep on the owner's condition. A
/// thread that waits for nothing may read one frame by ReadOne, as liblgpu's session thread does; it counts
/// as the reader. Senders need no reader, and a daemon that is joined again replaces the channel only while
/// there is none.
///
/// Why no thread starves. The reader has the lock back after each frame, wakes every sleeper, also where no
/// frame came, and gives the frame to its owner, which puts it into the row that it answers before it gives
/// the lock up. So a row never has an answer that its thread does not look at. A sleeper that finds no reader
/// reads itself: the channel is without a reader only until the first one of those that were woken has the
/// lock. A reader that has its own answer leaves, and reads for the others no longer than one frame. Every
/// sleep and every Receive ends at the row's own deadline.
///
/// A Row has `std::uint64_t id` and `TimePoint more_until`, the deadline that the daemon itself gave. `Sync`
/// is the owner's lock and condition, as a thread that waits uses them:
///     void lock(); void unlock();           // around Receive
///     void SleepUntil(TimePoint);           // gives the lock up meanwhile; may return early
///     void WakeAll();
///     bool CanRead();                       // false: the owner has ended the wait itself
///     TimePoint NextLook(TimePoint until);  // a Receive until then ends here at the latest, and IsStopped
///     bool IsStopped();                     // is asked
/// Everything is called with the owner's lock held.
template <typename Row>
class Requests {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;

  /// A number without a row: an answer to it is of no interest.
  std::uint64_t NewId() { return next_++; }
  /// Gives the row the next number, and returns it.
  std::uint64_t Add(Row row) {
    row.id = NewId();
    rows_.push_back(std::move(row));
    return rows_.back().id;
  }
  /// Null: there is none. Good until the lock is given up.
  Row* Find(std::uint64_t id) {
    const auto found =
        std::find_if(rows_.begin(), rows_.end(), [id](const Row& row) { return row.id == id; });
    return found == rows_.end() ? nullptr : &*found;
  }
  void Remove(std::uint64_t id) {
    std::erase_if(rows_, [id](const Row& row) { return row.id == id; });
  }
  std::vector<Row>& rows() { return rows_; }
  bool WasAsked(std::uint64_t id) const { return id != 0 && id < next_; }
  /// The daemon's answer takes longer. `slack`: for the daemon's own work and the way.
  void Extend(const wire::StillWaiting& still, std::chrono::milliseconds slack) {
    const auto more = std::chrono::milliseconds(std::min(still.more_ms, wire::Protocol::kMostMoreMs));
    if (Row* const row = Find(still.request_id)) {
      row->more_until = std::chrono::steady_clock::now() + more + slack;
    }
  }

  bool is_reading() const { return is_reading_; }
  /// Receives one frame and gives it to `take(status, received)`. No other thread is reading.
  template <typename Sync, typename Take>
  void ReadOne(Sync& sync, wire::FrameChannel& channel, TimePoint deadline, Take&& take) {
    is_reading_ = true;
    sync.unlock();
    wire::ReceivedFrame received;
    const PlainStatus status = channel.Receive(received, deadline);
    sync.lock();
    is_reading_ = false;
    sync.WakeAll();  // they run when the lock is given up, which `take` may do once it has put the frame away
    take(status, std::move(received));
  }
  /// Waits for the answer to the request `id`, which has a row, and reads while no other thread does. Reads
  /// once, even where the deadline has passed.
  template <typename Sync, typename IsOver, typename Take>
  Waited Await(Sync& sync, wire::FrameChannel& channel, std::uint64_t id, TimePoint deadline,
               IsOver&& is_over, Take&& take) {
    for (bool first = true;; first = false) {
      const Row& row = *Find(id);
      if (is_over(row)) return Waited::kOver;
      const TimePoint until = std::max(deadline, row.more_until);
      if (!first && std::chrono::steady_clock::now() >= until) return Waited::kLate;
      if (!first && sync.IsStopped()) return Waited::kStopped;
      if (is_reading_) {
        sync.SleepUntil(until);
      } else if (sync.CanRead()) {
        ReadOne(sync, channel, sync.NextLook(until), take);
      }
    }
  }

 private:
  std::vector<Row> rows_;  // few: one a thread that waits
  std::uint64_t next_ = 1;
  bool is_reading_ = false;
};

}  // namespace lgpu::link

#endif  // LGPU_CLIENT_LINK_REQUESTS_H_
