#ifndef LGPU_DAEMON_SERVER_WATCH_PUMP_H_
#define LGPU_DAEMON_SERVER_WATCH_PUMP_H_

#include <memory>
#include <set>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "allocator/broker/waker.h"
#include "base/mutex.h"
#include "base/thread.h"

namespace lgpu::daemon {

/// A WatchPump is one thread that gives all open streams their news, so that a stream holds no thread,
/// whether it waits for news or for a client that does not read. Thread-safe.
class WatchPump {
 public:
  /// One open stream.
  class Stream {
   public:
    virtual ~Stream() = default;
    /// Writes the news, unless a write is under way. On the pump's thread; must not wait.
    virtual void Look() = 0;
  };

  /// RESOURCE_EXHAUSTED: the system allows no thread.
  static absl::StatusOr<std::unique_ptr<WatchPump>> Start();
  /// No stream may be left.
  ~WatchPump();
  WatchPump(const WatchPump&) = delete;
  WatchPump& operator=(const WatchPump&) = delete;

  /// From here on until Remove the stream is looked at now and then.
  void Add(Stream& stream);
  /// It is not looked at after this.
  void Remove(Stream& stream);
  /// Looks at all streams soon.
  void Wake();
  /// Does Wake for as long as the pump is there.
  std::shared_ptr<Waker> waker() const;

 private:
  class PumpWaker;

  WatchPump();
  void Run();

  Mutex streams_mutex_;
  std::set<Stream*> streams_ ABSL_GUARDED_BY(streams_mutex_);
  Mutex mutex_;  // the innermost: a stream may wake the pump under its own lock, which Look takes too
  CondVar changed_;
  bool wanted_ ABSL_GUARDED_BY(mutex_) = false;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  const std::shared_ptr<PumpWaker> waker_;
  Thread thread_;
};

}  // namespace lgpu::daemon

#endif  // LGPU_DAEMON_SERVER_WATCH_PUMP_H_
