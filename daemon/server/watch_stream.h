#ifndef LGPU_DAEMON_SERVER_WATCH_STREAM_H_
#define LGPU_DAEMON_SERVER_WATCH_STREAM_H_

#include <grpcpp/support/server_callback.h>

#include <cstddef>
#include <functional>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "base/mutex.h"
#include "daemon/server/watch_pump.h"

namespace lgpu::daemon {

/// A WatchStream is the server's end of one call that answers with a stream. It holds at most one batch of
/// messages, and fetches the next when the client has taken that. It deletes itself when the call is over.
template <typename Message>
class WatchStream final : public grpc::ServerWriteReactor<Message>, public WatchPump::Stream {
 public:
  struct Batch {
    std::vector<Message> messages;
    bool is_last = false;
  };
  /// `next` gives the news; called on the pump's thread only. `done`: the call is over. Adds itself to
  /// `pump`.
  WatchStream(WatchPump& pump, std::function<Batch()> next, std::function<void()> done)
      : pump_(pump), next_(std::move(next)), done_(std::move(done)) {
    pump_.Add(*this);
  }

  void Look() override {
    MutexLock lock(mutex_);
    if (writing_ || finished_) return;
    batch_ = next_();
    written_ = 0;
    Continue();
  }
  void OnWriteDone(bool ok) override {
    bool wants_more = false;
    {
      MutexLock lock(mutex_);
      writing_ = false;
      cancelled_ = cancelled_ || !ok;
      Continue();
      wants_more = !writing_ && !finished_;
    }
    if (wants_more) pump_.Wake();
  }
  void OnCancel() override {
    MutexLock lock(mutex_);
    cancelled_ = true;
    if (!writing_) Continue();
  }
  void OnDone() override {
    pump_.Remove(*this);
    done_();
    delete this;
  }

 private:
  void Continue() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (finished_) return;
    if (!cancelled_ && written_ < batch_.messages.size()) {
      writing_ = true;
      this->StartWrite(&batch_.messages[written_++]);
    } else if (cancelled_ || batch_.is_last) {
      finished_ = true;
      this->Finish(grpc::Status::OK);
    }
  }

  WatchPump& pump_;
  const std::function<Batch()> next_;
  const std::function<void()> done_;
  Mutex mutex_;
  Batch batch_ ABSL_GUARDED_BY(mutex_);
  std::size_t written_ ABSL_GUARDED_BY(mutex_) = 0;
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool cancelled_ ABSL_GUARDED_BY(mutex_) = false;
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace lgpu::daemon

#endif  // LGPU_DAEMON_SERVER_WATCH_STREAM_H_
