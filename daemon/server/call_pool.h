#ifndef LGPU_DAEMON_SERVER_CALL_POOL_H_
#define LGPU_DAEMON_SERVER_CALL_POOL_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "base/mutex.h"
#include "base/thread.h"
#include "daemon/server/log_limit.h"

namespace lgpu::daemon {

/// A CallPool runs the calls of users on threads of its own, so that gRPC's few threads never wait. A user's
/// calls start in their order; users take turns; and a user's next call starts only while they occupy fewer
/// threads than are free, so that one user never occupies all. Threads start as they are needed and stay.
/// Thread-safe.
class CallPool {
 public:
  /// Starts the first thread. `name`: at most 15 characters; `most_threads`: at least 2. RESOURCE_EXHAUSTED:
  /// the system allows no thread.
  static absl::StatusOr<std::unique_ptr<CallPool>> Start(const char* name, std::size_t most_threads,
                                                         std::size_t stack_bytes = Thread::kStackBytes);
  /// Runs the calls that are left and joins the threads.
  ~CallPool();
  CallPool(const CallPool&) = delete;
  CallPool& operator=(const CallPool&) = delete;

  /// Runs `call` on one of the threads. `user`: mostly a uid.
  void Run(std::uint64_t user, std::function<void()> call);
  /// Whether a call would start earlier if one of this user's ended: a call of this user's, or, where all
  /// threads run calls, a call of a user who runs less than a share.
  bool OthersWaitFor(std::uint64_t user);
  std::size_t threads() const;

 private:
  CallPool(const char* name, std::size_t most_threads, std::size_t stack_bytes)
      : name_(name), most_threads_(most_threads), stack_bytes_(stack_bytes) {}
  struct Line {
    std::deque<std::function<void()>> calls;
    std::size_t running = 0;
  };
  absl::Status StartThread() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Work();
  /// The user whose call starts next, from the one after `last_` on; the end: none may start one now.
  std::map<std::uint64_t, Line>::iterator Next() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const char* const name_;
  const std::size_t most_threads_;
  const std::size_t stack_bytes_;
  LogLimit log_limit_;
  mutable Mutex mutex_;
  CondVar changed_;
  std::map<std::uint64_t, Line> lines_ ABSL_GUARDED_BY(mutex_);  // of users with a call
  std::uint64_t last_ ABSL_GUARDED_BY(mutex_) = 0;               // the user whose turn was last
  std::size_t queued_ ABSL_GUARDED_BY(mutex_) = 0;
  std::size_t running_ ABSL_GUARDED_BY(mutex_) = 0;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<Thread> threads_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace lgpu::daemon

#endif  // LGPU_DAEMON_SERVER_CALL_POOL_H_
