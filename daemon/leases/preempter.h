#ifndef LGPU_DAEMON_LEASES_PREEMPTER_H_
#define LGPU_DAEMON_LEASES_PREEMPTER_H_

#include <atomic>
#include <chrono>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "allocator/broker/broker.h"
#include "allocator/broker/release_order.h"
#include "allocator/broker/thread_waker.h"
#include "base/thread.h"
#include "daemon/leases/lease_suspender.h"
#include "daemon/leases/lease_table.h"
#include "daemon/sessions/session_state.h"

namespace lgpu::daemon {

/// A Preempter has preemptible leases suspended for others, as the broker orders, and brings them back:
///
///   as soon as one of their programs wants a GPU: they wait in the queue of their cards, and others may be
///     suspended for them
///   unasked, when their cards have had room for them for kRoomFor, and nobody waits there
///
/// Each move has a thread of its own, so none waits for another. A program that wants a GPU is never
/// overlooked: its use is noted in the tick in which its lease was being suspended or later, or its cards
/// have room at last.
///
/// Thread-safe.
class Preempter {
 public:
  static constexpr std::chrono::seconds kRoomFor{10};

  /// All outlive it. `waker`: the broker's preempt_waker. RESOURCE_EXHAUSTED without a thread.
  static absl::StatusOr<std::unique_ptr<Preempter>> Start(Broker& broker, LeaseTable& leases,
                                                          SessionDirectory& sessions,
                                                          LeaseSuspender& suspender,
                                                          std::shared_ptr<ThreadWaker> waker);
  ~Preempter() { Stop(); }
  Preempter(const Preempter&) = delete;
  Preempter& operator=(const Preempter&) = delete;

  /// The suspender is closed before, or a move may last long.
  void Stop();

 private:
  using Clock = std::chrono::steady_clock;
  struct Move {
    LeaseKey lease;
    std::atomic<bool> is_over = false;
    Thread thread = {};
  };
  /// A lease that was suspended for others.
  struct Away {
    std::optional<Clock::time_point> room_since = {};
    Clock::time_point retry_at = {};
    std::string told = {};  // why it cannot come back
  };

  Preempter(Broker& broker, LeaseTable& leases, SessionDirectory& sessions, LeaseSuspender& suspender,
            std::shared_ptr<ThreadWaker> waker)
      : broker_(broker),
        leases_(leases),
        sessions_(sessions),
        suspender_(suspender),
        waker_(std::move(waker)) {}
  void Run();
  /// Runs the body on a thread; false: the system allows no more.
  bool StartMove(LeaseKey lease, const std::function<void()>& body);
  bool IsMoved(LeaseKey lease) const;
  void Follow(const ReleaseOrder& order);
  ReleaseOutcome Suspend(const ReleaseOrder& order);
  /// Whether there are any leases to be brought back.
  bool BringBack();
  void Return(const Lease& lease, Away& away, Clock::time_point deadline);
  /// One of its programs has used a GPU since, or asks for memory.
  bool WantsGpu(const Lease& lease) const;
  bool HasRoom(const Lease& lease) const;
  std::optional<Lease> Find(LeaseKey lease) const;

  Broker& broker_;
  LeaseTable& leases_;
  SessionDirectory& sessions_;
  LeaseSuspender& suspender_;
  const std::shared_ptr<ThreadWaker> waker_;
  std::atomic<bool> is_stopping_ = false;
  const Clock::time_point started_ = Clock::now();
  // Of the thread alone.
  std::list<Move> moves_;
  std::map<LeaseKey, Away> away_;
  Thread thread_;
};

}  // namespace lgpu::daemon

#endif  // LGPU_DAEMON_LEASES_PREEMPTER_H_
