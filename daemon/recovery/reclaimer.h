#ifndef LGPU_DAEMON_RECOVERY_RECLAIMER_H_
#define LGPU_DAEMON_RECOVERY_RECLAIMER_H_

#include <chrono>
#include <map>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "allocator/broker/broker.h"
#include "base/mutex.h"
#include "base/thread.h"
#include "daemon/leases/lease_table.h"
#include "daemon/recovery/page_search.h"
#include "daemon/server/poll_waker.h"
#include "daemon/sessions/session_state.h"

namespace lgpu::daemon {

/// A Reclaimer frees the memory of lost sessions, on a thread of its own: when their process is gone, or,
/// for one that closed its socket and lives on, after a grace. It watches the processes of live sessions too,
/// and wakes a session whose process is gone although its socket is still open (a child has it). It also asks
/// the backend again about memory that was not confirmed free. Thread-safe.
class Reclaimer {
 public:
  struct Options {
    /// Wakes the thread; the broker has it too, for memory that was not confirmed free.
    std::shared_ptr<PollWaker> waker;
    std::chrono::milliseconds grace{1000};
  };

  /// The three parts outlive the reclaimer. RESOURCE_EXHAUSTED without a thread.
  static absl::StatusOr<std::unique_ptr<Reclaimer>> Start(Broker& broker, LeaseTable& leases,
                                                          SessionDirectory& sessions, Options options);
  ~Reclaimer() { Stop(); }
  Reclaimer(const Reclaimer&) = delete;
  Reclaimer& operator=(const Reclaimer&) = delete;

  /// Watches the process of a session until Unwatch. A draining session is left alone.
  void Watch(std::shared_ptr<SessionState> session);
  void Unwatch(const SessionState& session);
  /// Takes over a session whose thread ends; its memory is draining already.
  void Adopt(std::shared_ptr<SessionState> session);
  /// An absent session does not come back: its process is gone (then it has no grace), or cannot be watched.
  void EndAbsent(std::shared_ptr<SessionState> session, bool is_gone);
  /// Waits until the last session has had its grace, or its process is gone. Then frees the memory that is
  /// left and ends the thread.
  void Stop();

 private:
  using Clock = std::chrono::steady_clock;
  struct Draining {
    std::shared_ptr<SessionState> session;
    Clock::time_point grace_ends;
    bool is_gone = false;  // no process has its charged memory any more
    // When to look again for its charged memory: the driver still lists it, or another program has it open.
    // Zero: neither.
    std::chrono::milliseconds look_in{};
    bool is_over = false;     // its process is gone or its grace is over; memory not free yet is unconfirmed
    bool was_absent = false;  // an earlier daemon's: its memory is looked for all over the machine
  };

  Reclaimer(Broker& broker, LeaseTable& leases, SessionDirectory& sessions, Options options)
      : broker_(broker), leases_(leases), sessions_(sessions), options_(std::move(options)) {}
  void Run();
  void WaitForWork(const std::vector<Draining>& draining, bool unconfirmed);
  /// Wakes the live sessions whose process is gone; each once.
  void TellGone(const std::vector<SessionId>& gone);
  /// Frees the memory of sessions whose process is gone or whose grace is over, and removes the gone ones.
  /// One search of /proc serves all sessions that were absent; the other sessions are handled before it.
  void Finish(std::vector<Draining>& draining, bool were_absent, bool stopping);
  void TakeOut(SessionState& session);
  /// The program of a lost session lives and may still use its memory.
  static bool HasGrace(const Draining& entry);
  /// Charged memory is the program's own: it is back when the process is gone, or maps the client page no
  /// more (FindUnmapped), and the driver lists none of it.
  bool HasNoCharges(const Draining& entry) const;
  /// Marks sessions whose living process maps none of their pages. True: there are some.
  bool FindUnmapped(std::vector<Draining>& draining);
  /// Whether the driver lists memory of the gone process. A later process with its pid does not count.
  bool IsListed(const SessionState& session) const;
  /// Whether memory that a gone session charged may be open in another program of its lease, by the counts
  /// that both programs told. No more than these counts stays charged.
  bool StaysOpenElsewhere(const SessionState& session) const;

  Broker& broker_;
  LeaseTable& leases_;
  SessionDirectory& sessions_;
  const Options options_;
  Mutex mutex_;
  std::vector<Draining> adopted_ ABSL_GUARDED_BY(mutex_);
  std::map<SessionId, std::shared_ptr<SessionState>> watched_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  PageSearch search_;  // of the thread
  Thread thread_;
};

}  // namespace lgpu::daemon

#endif  // LGPU_DAEMON_RECOVERY_RECLAIMER_H_
