#ifndef LGPU_DAEMON_SERVER_LEASE_WAIT_CALL_H_
#define LGPU_DAEMON_SERVER_LEASE_WAIT_CALL_H_

#include <grpcpp/support/server_callback.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "base/mutex.h"
#include "daemon/leases/waiting_lease.h"
#include "daemon/server/call_pool.h"
#include "daemon/server/watch_pump.h"

namespace lgpu::daemon {

/// A LeaseWaitCall is the server's end of one WaitForLease. It holds a thread of the pool only while the
/// lease is being made. Where the caller ends, the request leaves the queue, and a lease that the caller was
/// not told of is taken back. It deletes itself when the call is over.
class LeaseWaitCall final : public grpc::ServerWriteReactor<v1::LeaseWait>, public WatchPump::Stream {
 public:
  struct Options {
    WatchPump& pump;
    CallPool& pool;
    std::uint32_t uid = 0;  // the user whose turns on the pool the call takes
    std::function<void(const Caller&, const absl::Status&)> tell_refusal;
    std::function<void()> done;  // the call is over
  };
  LeaseWaitCall(Options options, std::unique_ptr<WaitingLease> lease);

  void Look() override;
  void OnWriteDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override;

 private:
  void StartTry() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Try();
  void TakeBack(const v1::Lease& made);
  /// Writes the result of the last attempt, or ends the call, as soon as no attempt and no write runs.
  void Continue() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const Options options_;
  Mutex mutex_;
  std::unique_ptr<WaitingLease> lease_;  // of the pool's thread while `trying_`
  bool trying_ ABSL_GUARDED_BY(mutex_) = false;
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool cancelled_ ABSL_GUARDED_BY(mutex_) = false;
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;
  std::optional<absl::StatusOr<v1::Lease>> result_ ABSL_GUARDED_BY(mutex_);
  v1::LeaseWait message_ ABSL_GUARDED_BY(mutex_);  // that is being written
};

}  // namespace lgpu::daemon

#endif  // LGPU_DAEMON_SERVER_LEASE_WAIT_CALL_H_
