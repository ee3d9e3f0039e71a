#ifndef LGPU_DAEMON_LEASES_LEASE_SUSPENDER_H_
#define LGPU_DAEMON_LEASES_LEASE_SUSPENDER_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "allocator/broker/broker.h"
#include "allocator/broker/reservations.h"
#include "base/mutex.h"
#include "daemon/leases/lease_table.h"
#include "daemon/sessions/session_state.h"
#include "daemon/sessions/session_use.h"
#include "lgpu/v1/control.pb.h"
#include "proto/wire/encoding.h"

namespace lgpu::daemon {

/// Nothing: its programs run.
std::optional<v1::LeaseSuspension> SuspensionOf(const Lease& lease, const Broker& broker);

/// A LeaseSuspender suspends and resumes leases: it keeps the account, and the runners of the lease's
/// programs (`lgpu run`, their parents) move them with the driver's checkpoint calls. A program of liblgpu is
/// its own runner: it moves the contents of its tensors.
///
/// The order of steps makes each death harmless. A lease's memory leaves the account only after its runners
/// have said that all its programs have left the GPUs, and it is in the account again, and in the journal,
/// before a runner is told to resume one. So programs that are suspended in a lease that is not are always
/// resumed, without a look at what happened before: by the runner where it failed, and where lgpud died in
/// between as soon as the runner is back (RunnerBack).
///
/// A program of liblgpu has given its chunks back when it answers, and others may have them before the lease
/// is suspended in the account. Only its resumption is a grant.
///
/// Thread-safe. Suspend and Resume wait.
class LeaseSuspender {
 public:
  using Clock = std::chrono::steady_clock;

  /// How long it waits for the answer of a runner, beside the time of the copy.
  struct Times {
    /// For the work that a program has on its GPUs.
    std::chrono::milliseconds settle{5000};
    /// For the way, and the runner's own work.
    std::chrono::milliseconds slack{2000};
    /// The same of a restore. One that is given up has lost its program: a busy machine has much more time
    /// for it, and what takes longer than the caller waits decides when it answers.
    std::chrono::milliseconds restore_slack = std::chrono::minutes(1);
  };
  /// All outlive it.
  LeaseSuspender(Broker& broker, LeaseTable& leases, SessionDirectory& sessions)
      : LeaseSuspender(broker, leases, sessions, Times()) {}
  LeaseSuspender(Broker& broker, LeaseTable& leases, SessionDirectory& sessions, const Times& times)
      : broker_(broker), leases_(leases), sessions_(sessions), times_(times) {}

  // Calls of users; errors as control.proto says.
  /// `preempted_at`: for others, who need its memory; its programs come back as soon as one of them uses a
  /// GPU from then on (Preempter).
  absl::StatusOr<v1::SuspendLeaseResponse> Suspend(const Caller& caller, const std::string& lease,
                                                   std::optional<UseTime> preempted_at = {});
  absl::StatusOr<v1::ResumeLeaseResponse> Resume(const Caller& caller, const std::string& lease,
                                                 Clock::time_point deadline,
                                                 const std::function<bool()>& is_given_up) {
    return ResumeFor(Whose::kLgpud, caller, lease, {.deadline = deadline, .is_given_up = is_given_up});
  }
  // The same of a program that moves its contents by itself.
  absl::StatusOr<v1::SuspendLeaseResponse> SuspendOwn(const Caller& caller, const std::string& lease,
                                                      Bytes bytes);
  absl::StatusOr<v1::ResumeLeaseResponse> ResumeOwn(const Caller& caller, const std::string& lease,
                                                    Clock::time_point deadline,
                                                    const std::function<bool()>& is_given_up) {
    return ResumeFor(Whose::kProgram, caller, lease, {.deadline = deadline, .is_given_up = is_given_up});
  }
  /// The lease's programs are about to be killed: those that were resumed before are suspended, if that takes
  /// a short time. What fails is left as it is.
  void PrepareKill(const Caller& caller, const std::string& lease);
  /// Makes leases whose suspended programs have all ended ordinary ones again; those whose guarantees do not
  /// fit now stay as they are. To be called now and then.
  void EndEmpty();
  /// Ends all waits.
  void Close();

  // Calls of runners' sessions.
  /// New orders; each is to be answered.
  std::vector<wire::Suspend> TakeOrders(SessionId runner);
  /// `left`, `needs`: as in Suspended of session.proto.
  void Answer(SessionId runner, std::uint64_t order, const absl::Status& status,
              const std::set<std::int64_t>& left = {}, const std::map<LogicalId, Bytes>& needs = {});
  /// A runner that has suspended programs has attested to this lgpud.
  void RunnerBack(const SessionState& runner);
  void RunnerGone(SessionId runner);

  struct Counters {
    std::uint64_t suspensions = 0;
    std::uint64_t resumptions = 0;
    std::uint64_t failures = 0;
    std::uint64_t bytes = 0;  // moved, in both directions
  };
  Counters counters() const;

 private:
  struct Order {
    SessionId runner;
    wire::Suspend frame;
    bool is_sent = false;
    std::optional<absl::Status> answer = {};
    std::set<std::int64_t> left = {};           // processes, as the answer says
    std::map<LogicalId, Bytes> needs = {};      // as the answer says
    bool is_gone = false;                       // the answer is that its runner has ended
    std::optional<LeaseKey> nobody_waits = {};  // its answer decides about this lease
    bool is_to_itself = false;                  // the runner is the program
  };
  /// By their runners.
  using Programs = std::map<SessionId, std::vector<wire::ProcessName>>;
  struct Answers {
    std::map<SessionId, absl::Status> of;  // each runner
    std::set<SessionId> silent;            // did not answer in time: it may still do what it was told
    std::set<SessionId> gone;              // ended: what each has begun is put back by a process of its own
    std::set<std::int64_t> left;           // processes that are in host memory still
    std::map<LogicalId, Bytes> needs;      // of a program that suspends itself
  };
  absl::StatusOr<Programs> ProgramsOf(const Lease& lease) const;
  static LeaseTable::Movers MoversOf(const Programs& programs);
  /// The session of the lease's one program that suspends itself, if it holds chunks.
  std::optional<SessionId> SelfMover(const Lease& lease) const;
  /// Such a program that lgpud has told to suspend itself.
  absl::StatusOr<Programs> ResumesItself(const Lease& lease) const;
  /// The runner that has moved the process, else one of the lease that is an ancestor of it.
  SessionId RunnerOf(const Lease& lease, std::int64_t pid) const;
  bool CanMove(SessionId runner) const;
  /// Why suspended programs of the lease without a runner stay suspended.
  absl::Status CannotBeResumed(const Lease& lease,
                               const std::vector<std::shared_ptr<SessionState>>& programs) const;
  enum class Purpose { kSuspension, kKill };
  absl::StatusOr<v1::SuspendLeaseResponse> SuspendFor(Purpose purpose, const Caller& caller,
                                                      const std::string& lease,
                                                      std::optional<UseTime> preempted_at);
  /// Of a program that moves itself.
  absl::StatusOr<v1::SuspendLeaseResponse> SuspendByItself(const Lease& lease, SessionId mover,
                                                           std::optional<UseTime> preempted_at);
  absl::Status BeginOrdered(const Lease& lease, SessionId mover, const std::map<LogicalId, Bytes>& needs,
                            const std::map<LogicalId, Bytes>& held_before);
  absl::Status NotBackByItself(const Lease& lease, const absl::Status& why);
  v1::SuspendLeaseResponse ParkAndTell(const Lease& lease, const LeaseTable::Parking& parking,
                                       Clock::time_point began);
  void NoteNotSuspended(const Lease& lease, const absl::Status& why);
  /// Has the programs moved; where that fails, all runners have undone what they did, as far as they can. For
  /// a kill it takes a short time, and nothing is undone.
  absl::StatusOr<Answers> MoveOut(const Lease& lease, const Programs& programs, Bytes bytes, Purpose purpose);
  /// With host memory for all suspensions that run.
  absl::StatusOr<Answers> MoveOutInRoom(const Lease& lease, const Programs& programs, Bytes bytes,
                                        Purpose purpose);
  Answers MoveBack(const Lease& lease, const Programs& programs, Bytes bytes) {
    return Run(lease, programs, /*resume=*/true, TimeFor(bytes));
  }
  /// What runners answer in time. An order to resume that was not answered stays: its answer decides about
  /// the lease whenever it comes.
  Answers Run(const Lease& lease, const Programs& programs, bool resume, std::chrono::milliseconds time);
  /// That a move of so much should take at most.
  std::chrono::milliseconds TimeFor(Bytes bytes) const;
  /// The lease's requests go on as soon as no order of it is open.
  void EndWhenAnswered(LeaseKey lease);
  /// Whether an order of the lease is open whose call is over: its answer will decide about the lease.
  bool HasOpenOrder(LeaseKey lease) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::uint64_t Queue(SessionId runner, Order order) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  struct Patience {
    Clock::time_point deadline;
    const std::function<bool()>& is_given_up;
  };
  enum class Whose { kLgpud, kProgram };
  absl::StatusOr<v1::ResumeLeaseResponse> ResumeFor(Whose suspension, const Caller& caller,
                                                    const std::string& lease, const Patience& patience);
  /// The other programs of the lease, beside those that move programs.
  absl::Status CheckAlone(const Lease& lease, SessionId session) const;
  absl::Status AwaitMemory(const Lease& lease, const Patience& patience, std::vector<WaiterId>& rooms);
  /// Room on one card, as the card and the bytes of `need` say.
  absl::Status AwaitRoom(const Lease& lease, const Reservations::Request& need, const Patience& patience,
                         std::vector<WaiterId>& rooms);
  absl::StatusOr<v1::ResumeLeaseResponse> ResumeIn(const Lease& lease, const Patience& patience);
  void Observe(const Lease& lease);
  void Tell(const Lease& lease, const std::string& text);
  void WakeRunner(SessionId runner) const;
  bool IsClosed() const;

  Broker& broker_;
  LeaseTable& leases_;
  SessionDirectory& sessions_;
  const Times times_;
  mutable Mutex mutex_;
  CondVar answered_;
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
  std::uint64_t last_order_ ABSL_GUARDED_BY(mutex_) = 0;
  std::map<std::uint64_t, Order> orders_ ABSL_GUARDED_BY(mutex_);
  std::set<LeaseKey> resuming_ ABSL_GUARDED_BY(mutex_);
  std::set<LeaseKey> asked_ ABSL_GUARDED_BY(mutex_);  // a call suspends them
  /// Leases whose resumption ends with the last open order.
  std::set<LeaseKey> late_ ABSL_GUARDED_BY(mutex_);
  Bytes on_the_way_ ABSL_GUARDED_BY(mutex_);  // to host memory
  Counters counters_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace lgpu::daemon

#endif  // LGPU_DAEMON_LEASES_LEASE_SUSPENDER_H_
