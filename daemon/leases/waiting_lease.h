#ifndef LGPU_DAEMON_LEASES_WAITING_LEASE_H_
#define LGPU_DAEMON_LEASES_WAITING_LEASE_H_

#include <chrono>
#include <memory>
#include <optional>

#include "absl/status/statusor.h"
#include "allocator/broker/broker.h"
#include "daemon/leases/lease_table.h"
#include "lgpu/v1/control.pb.h"

namespace lgpu::daemon {

/// A WaitingLease is a request for a lease that waits until there is memory, or until its user's caps have
/// room. It has a place in the queue of one card and holds nothing until its time comes. Not thread-safe.
class WaitingLease {
 public:
  using Clock = std::chrono::steady_clock;

  /// `leases` and `broker` outlive it. `caller` has a session, or the lease is lasting. `waker` is woken when
  /// Look has news that no clock brings.
  WaitingLease(LeaseTable& leases, Broker& broker, Caller caller, v1::CreateLeaseRequest request,
               Clock::time_point deadline, std::shared_ptr<Waker> waker)
      : leases_(leases),
        broker_(broker),
        caller_(std::move(caller)),
        request_(std::move(request)),
        deadline_(deadline),
        waker_(std::move(waker)) {}
  /// Leaves the queue.
  ~WaitingLease() { LeaveQueue(); }
  WaitingLease(const WaitingLease&) = delete;
  WaitingLease& operator=(const WaitingLease&) = delete;

  /// Tries to make the lease: the lease, or an error that waiting does not help. Nothing: it waits. Takes as
  /// long as making chunks does.
  std::optional<absl::StatusOr<v1::Lease>> Try();
  struct News {
    bool try_now = false;                 // Try is to be called
    std::optional<v1::LeaseWait> told{};  // where it stands, if that changed
  };
  /// To be called often; does not wait.
  News Look();
  /// Takes back the lease that Try gave and that the caller was not told of, if this request made it.
  void TakeBack(const v1::Lease& lease);
  const Caller& caller() const { return caller_; }

 private:
  void LeaveQueue(bool is_served = false);
  /// What it waited for in the queue is set aside.
  bool HasRoom();

  LeaseTable& leases_;
  Broker& broker_;
  const Caller caller_;
  const v1::CreateLeaseRequest request_;
  const Clock::time_point deadline_;
  const std::shared_ptr<Waker> waker_;
  LeaseAttempt attempt_;
  bool has_room_ = false;
  Clock::time_point rests_until_;  // after an attempt that failed although there was room
  absl::Status last_;              // why it waits
  Clock::time_point next_text_;    // when it is told its place again
  Clock::time_point next_try_;     // while it waits for a cap, or another card could have room
  v1::LeaseWait told_;
  bool made_new_ = false;  // the lease that Try gave is this request's
};

}  // namespace lgpu::daemon

#endif  // LGPU_DAEMON_LEASES_WAITING_LEASE_H_
