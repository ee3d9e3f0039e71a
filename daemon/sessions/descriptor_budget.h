#ifndef LGPU_DAEMON_SESSIONS_DESCRIPTOR_BUDGET_H_
#define LGPU_DAEMON_SESSIONS_DESCRIPTOR_BUDGET_H_

#include <cstddef>
#include <map>
#include <memory>

#include "absl/base/thread_annotations.h"
#include "allocator/broker/waker.h"
#include "base/mutex.h"
#include "daemon/leases/ids.h"

namespace lgpu::daemon {

/// A DescriptorBudget bounds the descriptors that lie in sockets unread, over all sessions. The kernel
/// charges them to the sender's user, so that without a bound one client that never reads would stop grants
/// to all clients. Thread-safe.
class DescriptorBudget {
 public:
  /// `limit`: of descriptors in flight in all; raised to 4, room for two greetings.
  explicit DescriptorBudget(std::size_t limit);

  std::size_t limit() const { return limit_; }
  /// How many one message may carry: a thirty-second of all, so that a few sessions cannot take them all.
  std::size_t per_message() const { return per_message_; }

  /// Takes `count` (<= per_message()), or notes that the session waits for them: it is woken when some
  /// come back.
  bool TryTake(SessionId session, const std::shared_ptr<Waker>& waker, std::size_t count);
  void GiveBack(std::size_t count);
  /// The session no longer waits.
  void Forget(SessionId session);
  /// A session waits: sessions that hold descriptors for long must go.
  bool contended() const;

 private:
  const std::size_t limit_;
  const std::size_t per_message_;
  mutable Mutex mutex_;
  std::size_t taken_ ABSL_GUARDED_BY(mutex_) = 0;
  std::map<SessionId, std::shared_ptr<Waker>> waiting_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace lgpu::daemon

#endif  // LGPU_DAEMON_SESSIONS_DESCRIPTOR_BUDGET_H_
