#ifndef LGPU_DAEMON_HTTP_LIVE_STREAMS_H_
#define LGPU_DAEMON_HTTP_LIVE_STREAMS_H_

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "base/mutex.h"
#include "base/thread.h"
#include "base/unique_fd.h"
#include "daemon/http/viewer.h"
#include "daemon/server/poll_waker.h"
#include "daemon/server/user_shares.h"

namespace lgpu::daemon {

/// LiveStreams has the connections of pages that stay open and sends each of them a message per period, as
/// server-sent events. One thread serves all of them and waits for none: a connection that has not taken its
/// message when the next one is due misses that one, and is closed after `patience`. Places are shared among
/// users (UserShares). A message has two parts: the figures, which are made once per period for all
/// connections of one viewer, however many come and go, and a bounded number of events. Thread-safe.
class LiveStreams {
 public:
  /// What a page has been told.
  struct Position {
    std::uint64_t last_event = 0;
  };
  struct Source {
    /// Once per period, before the messages.
    std::function<void()> tick;
    /// What a viewer sees of the figures now.
    std::function<std::string(const Viewer&)> figures;
    /// The events since `position`, which moves on; empty: none. Of bounded size.
    std::function<std::string(const Viewer&, Position& position)> events;
  };
  struct Options {
    std::chrono::milliseconds period = std::chrono::seconds(1);
    std::chrono::milliseconds patience = std::chrono::seconds(10);
    std::size_t places = 128;
    int send_buffer = 256 * 1024;  // of the kernel, per connection
  };
  static absl::StatusOr<std::unique_ptr<LiveStreams>> Start(Source source, const Options& options);
  ~LiveStreams() { Stop(); }
  LiveStreams(const LiveStreams&) = delete;
  LiveStreams& operator=(const LiveStreams&) = delete;

  /// A place for a user's connection; false: the user has their share.
  bool TakePlace(std::uint64_t user) { return places_.TryTake(user); }
  /// Serves a connection that has a place, from the header of the answer on.
  void Serve(UniqueFd socket, std::uint64_t user, const Viewer& viewer, Position position);
  /// Closes all connections. Repeating it is fine.
  void Stop();

 private:
  using Clock = std::chrono::steady_clock;
  struct Stream {
    UniqueFd socket;
    std::uint64_t user = 0;
    Viewer viewer;
    Position position;
    std::vector<std::shared_ptr<const std::string>> parts =
        {};  // of the message that is being sent; none: all is sent
    std::size_t part = 0, sent = 0;
    Clock::time_point began;  // when the message was given
    /// Whether all of the message is sent.
    bool is_idle() const { return part == parts.size(); }
  };
  LiveStreams(Source source, const Options& options, std::shared_ptr<PollWaker> waker);

  void Run();
  void TakeNew() ABSL_LOCKS_EXCLUDED(mutex_);
  void WaitUntil(Clock::time_point until);
  void GiveMessages();
  void GiveMessage(Stream& stream);
  /// False: the connection is over.
  bool Advance(Stream& stream, bool readable) const;
  void Close(Stream& stream);

  const Source source_;
  const Options options_;
  UserShares places_;
  const std::shared_ptr<PollWaker> waker_;
  const std::shared_ptr<const std::string> header_;  // of every answer
  // Of the thread alone:
  std::vector<Stream> streams_;
  std::map<Viewer, std::shared_ptr<const std::string>> figures_;  // of this period
  Mutex mutex_;
  std::vector<Stream> new_ ABSL_GUARDED_BY(mutex_);
  std::atomic<bool> stopping_ = false;
  Thread thread_;
};

}  // namespace lgpu::daemon

#endif  // LGPU_DAEMON_HTTP_LIVE_STREAMS_H_
