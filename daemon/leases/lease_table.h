#ifndef LGPU_DAEMON_LEASES_LEASE_TABLE_H_
#define LGPU_DAEMON_LEASES_LEASE_TABLE_H_

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "allocator/broker/broker.h"
#include "base/mutex.h"
#include "daemon/leases/ids.h"
#include "daemon/leases/lease.h"
#include "daemon/leases/lease_events.h"
#include "daemon/leases/lease_store.h"
#include "daemon/recovery/journal.h"
#include "daemon/server/config.h"
#include "daemon/server/event_log.h"
#include "daemon/sessions/session_state.h"
#include "lgpu/v1/control.pb.h"
#include "lgpu/v1/stats.pb.h"

namespace lgpu::daemon {

/// The user of a call, with its session (none: a call without one).
struct Caller {
  std::uint32_t uid = 0;
  std::shared_ptr<SessionState> session;
  /// Of a connection to the directory of one lease: it sees, trims and attaches to that lease, in the name of
  /// its owner `uid`, and can do nothing else.
  std::optional<LeaseKey> only = {};
  bool is_root() const { return uid == 0 && !only; }
  bool may_see(LeaseKey lease, std::uint32_t owner) const {
    return only ? lease == *only : is_root() || owner == uid;
  }
};

/// The last attempt to make a lease that waits to be made.
struct LeaseAttempt {
  std::vector<PlannedDevice> plan;
  WaiterId room;  // if any, `plan` is used again, with the memory set aside there (Reservations::Queue)
  struct Shortage {
    CardId card;
    Bytes bytes;  // that the plan sets aside on it
  };
  std::optional<Shortage> short_of;  // the card that had too little; nothing: a cap had
  bool is_new = false;               // this attempt made the lease; else an earlier call of the same request
};

/// A LeaseTable has all leases and knows which session is attached to which. A user finds only their own;
/// another user's lease is NOT_FOUND. With a journal, leases outlive the daemon, and lasting ones
/// the machine's restart too.
///
/// Thread-safe. Locks: the table's, then a session's, then the broker's; none over backend calls.
class LeaseTable {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;
  /// The most of one user, beside the caps: every lease costs memory and time.
  static constexpr std::uint32_t kMaxLeases = 1024;
  static constexpr std::size_t kMaxDevices = 4096;  // of all leases of a user
  static constexpr std::size_t kMaxRequestIdBytes = 128;

  /// The parts that a table works with. All outlive it.
  struct Parts {
    Broker& broker;
    SessionDirectory& sessions;
    EventLog& events;
    /// Has every lease and session; leases that last are in the file `leases` of `config.state_dir` too.
    /// Null: the table forgets its leases.
    Journal* journal = nullptr;
  };
  LeaseTable(const Config& config, const Parts& parts)
      : broker_(parts.broker),
        sessions_(parts.sessions),
        events_(parts.events),
        journal_(parts.journal),
        store_(config.state_dir),
        policy_(config.policy) {}

  /// A lease as an earlier daemon had it. NOT_FOUND: one of its cards is not served here; the broker's
  /// errors.
  absl::Status Restore(const v1::JournalLease& lease);
  /// Writes the file of the lasting leases: they survive a restart of the machine.
  absl::Status SaveLasting();
  /// Tries again to write the file where that failed. To be called now and then.
  void TendFile();
  /// Keeps a lease that is not restored until it is restored or removed; a lasting one stays in the file,
  /// under the keys of `lease`. `in_use`: sessions of an earlier daemon still have it.
  void KeepWaiting(const v1::JournalLease& lease, bool in_use);
  /// An absent session, which is attached to a lease.
  void RestoreSession(SessionState& session);
  /// After all RestoreSession: ends leases without a session, but for lasting ones that were not removed.
  void EndUnused();
  void SkipKeys(LeaseKey last);
  /// Records the changed pages of a session; UNAVAILABLE: the journal cannot be written.
  absl::Status RecordSession(const SessionState& session);
  /// An absent session is live again.
  void SessionBack(SessionState& session);
  /// Tries again to make the chunks that preallocated devices lack.
  void MakeMissing();

  // Requests of the control service; errors as control.proto says.
  absl::StatusOr<v1::Lease> Create(const Caller& caller, const v1::CreateLeaseRequest& request,
                                   TimePoint deadline);
  /// The same; `attempt` has the state that an earlier attempt left, and gets the state for the next one.
  absl::StatusOr<v1::Lease> Create(const Caller& caller, const v1::CreateLeaseRequest& request,
                                   TimePoint deadline, LeaseAttempt& attempt);
  /// `idle_after_ms`: as in AttachLeaseRequest.
  absl::StatusOr<v1::Lease> Attach(const Caller& caller, const std::string& lease,
                                   std::uint64_t idle_after_ms = 0);
  absl::StatusOr<v1::Lease> Get(const Caller& caller, const std::string& lease) const;
  std::vector<v1::Lease> List(const Caller& caller) const;
  /// Copies of the leases of these names or ids; without any, of all that the caller may see and that are not
  /// ending. NOT_FOUND names the first that is unknown.
  absl::StatusOr<std::vector<Lease>> Find(const Caller& caller, const std::vector<std::string>& names) const;
  /// All devices get their new sizes or, on an error, none does. One call at a time for a lease; waits until
  /// `deadline` for an earlier one, and for memory on its way back. What one device gives up serves no other
  /// device of the call.
  absl::StatusOr<v1::Lease> Resize(const Caller& caller, const v1::ResizeLeaseRequest& request,
                                   TimePoint deadline);
  // Suspension (LeaseSuspender): as the calls of LeaseSuspensions, with the journal in step.
  /// A copy of the lease, which the caller may suspend now.
  absl::StatusOr<Lease> FindToSuspend(const Caller& caller, const std::string& lease) const;
  /// A copy of the lease, whose requests wait from here on.
  absl::StatusOr<Lease> BeginSuspension(const Caller& caller, const std::string& lease);
  /// As BeginSuspension, for the caller's session, which has moved its contents by itself.
  absl::StatusOr<Lease> BeginOwnSuspension(const Caller& caller, const std::string& lease);
  /// The same of a session that has done it by order; the amounts as in LeaseSuspensions::BeginOwn.
  absl::Status BeginOrderedSuspension(LeaseKey key, SessionId session,
                                      const std::map<LogicalId, Bytes>& needs,
                                      const std::map<LogicalId, Bytes>& held_before);
  /// By process: the session of the runner that has moved it.
  using Movers = std::map<std::int64_t, SessionId>;
  /// What is known of a suspension beside the account; the next lgpud knows it too.
  struct Parking {
    Movers movers;
    std::optional<UseTime> preempted_at;  // as in LeaseSuspender::Suspend
    SessionId own_session = {};           // whose program has suspended itself; not valid: none
    Bytes own_bytes = {};                 // that it has in host memory
    bool is_by_order = false;             // lgpud told it to, and resumes it
  };
  static Parking ParkingOf(const v1::JournalSuspended& record);
  /// Returns the bytes; none where the lease is gone.
  Bytes Park(LeaseKey key, const Parking& parking);
  /// A copy of the lease, which is suspended. `own`: by the caller's session, which no other caller can
  /// resume. FAILED_PRECONDITION: it is not, or it cannot be resumed.
  absl::StatusOr<Lease> FindSuspended(const Caller& caller, const std::string& lease, bool own = false) const;
  /// When this is OK the next lgpud charges it too.
  absl::Status TakeBack(LeaseKey key, std::span<const WaiterId> rooms);
  /// Programs of the lease were moved, and moved back.
  void NoteResumed(LeaseKey key);
  /// The processes `left` cannot be resumed: their memory is in no account, and stays so. The lease's other
  /// programs stay charged.
  void FailSuspension(LeaseKey key, const std::string& why, const std::set<std::int64_t>& left);
  /// Leases in host memory, or FAILED, whose suspended programs have all ended.
  std::vector<LeaseKey> EmptySuspensions() const;
  /// The suspensions of restored leases, after their sessions.
  void RestoreSuspensions();

  /// Asks its sessions to end and waits, until `deadline`, for their memory. Gives up a lease that waits in
  /// the file, named by its id or, where no lease of the caller has the name, by its name.
  absl::Status Remove(const Caller& caller, const std::string& lease, TimePoint deadline);
  /// The same for the lease that `caller` made by this request; its id. One that ends already is no error;
  /// one that is being made is awaited until `deadline` (UNAVAILABLE: it was not made by then).
  absl::StatusOr<std::string> RemoveRequested(const Caller& caller, const std::string& request_id,
                                              TimePoint deadline);
  /// Removes a new lease that its caller was not told of, unless a repetition of the request was given it.
  void TakeBack(const v1::Lease& lease);
  /// A lease that has a directory of its own.
  struct WithDirectory {
    LeaseKey key;
    std::string id;
    std::uint32_t owner = 0;
  };
  /// From here on the lease has a directory, over restarts too.
  absl::StatusOr<WithDirectory> OpenDirectory(const Caller& caller, const std::string& lease);
  std::vector<WithDirectory> LeasesWithDirectories() const;
  /// Ids of the leases whose directory stays: LeasesWithDirectories, and leases that wait in the file.
  std::set<std::string> KeptDirectories() const;
  /// The lease is there and does not end.
  bool IsOpen(LeaseKey key) const;
  /// Ends managed leases whose time is over, or whose cgroup has no processes any more. To be called now and
  /// then.
  void EndOverdue();

  struct Placements {
    std::string id;
    std::string name;
    std::shared_ptr<PlacementLog> log;
  };
  /// With everything that lies in the rings now.
  absl::StatusOr<Placements> FindPlacements(const Caller& caller, const std::string& lease);

  /// Calls tell(events, lease) under the table's lock, where the lease is there.
  void TellOf(LeaseKey key, absl::FunctionRef<void(const LeaseEvents&, const Lease&)> tell) const;
  /// The session is lost; its memory is on its way back.
  void SessionLost(SessionState& session);
  /// The session holds nothing any more. A lease that is not lasting ends with its last session.
  void SessionGone(SessionState& session);

  /// Reads the ring of a session.
  void DrainPlacements(SessionState& session);
  /// Shows a session's client how its devices stand.
  void WriteStats(SessionState& session) const;

  /// The leases that are suspended for others.
  std::vector<Lease> Preempted() const;
  /// The leases that the caller may see, also ending ones.
  std::vector<Lease> Snapshot(const Caller& caller) const;
  /// Records and drops of all leases, also ended ones.
  PlacementLog::Counts placement_counts() const;
  OpCounts op_counts() const;
  struct EndCounts {
    std::uint64_t by_exit = 0;     // with their last session
    std::uint64_t by_request = 0;  // RemoveLease
  };
  EndCounts end_counts() const;
  /// Sessions that ended without Close.
  std::uint64_t lost_sessions() const;
  /// Sets the live settings: caps, the default mode, records per (new) lease. Returns the earlier ones.
  LeasePolicy SetPolicy(LeasePolicy policy);
  /// The caps of a user's calls, which the control service enforces.
  struct CallCap {
    std::string key;    // "caps.groups.lab"
    std::string group;  // the cap counts the calls of its users together; empty: of the user alone
    std::uint32_t calls = 0;
  };
  std::vector<CallCap> CallCaps(const User& user) const;
  std::size_t size() const;
  /// Id and name of a lease; empty ones for a lease that is gone.
  std::pair<std::string, std::string> Names(LeaseKey key) const;
  /// Ends the streams of placements and all waiting.
  void Close();

 private:
  struct Announced {
    LeaseKey key;
    bool is_new = true;  // else it is the one of an earlier call
  };
  void FillModes(v1::CreateLeaseRequest& request) const;
  /// A checked request for a lease, with the owner that the lease will have.
  struct Wanted {
    const v1::CreateLeaseRequest& request;
    User owner;
    std::optional<Management> management = {};
    LeaseEnds ends = {};
    std::chrono::milliseconds idle_after{0};
  };
  static absl::StatusOr<Wanted> CheckRequest(const Caller& caller, const v1::CreateLeaseRequest& request);
  absl::StatusOr<Announced> Announce(const Caller& caller, const Wanted& wanted,
                                     std::vector<PlannedDevice>& plan, TimePoint deadline);
  /// Lowers default limits to the rest of the user's caps.
  void FitToCaps(const User& user, std::vector<PlannedDevice>& plan) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  static LeaseAttempt::Shortage ShortOf(const std::vector<PlannedDevice>& plan, CardId card);
  absl::Status MakeDevices(LeaseKey key, const std::vector<PlannedDevice>& plan, TimePoint deadline,
                           LeaseAttempt& attempt);
  /// A managed lease's name is unique; another lease's name is unique among its owner's.
  absl::Status CheckName(const Wanted& wanted) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  /// The lease that the same request made, rather one that does not end; null: none.
  const Lease* FindRequested(std::uint32_t uid, bool is_managed, const std::string& request_id) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  /// PERMISSION_DENIED where the lease is managed and the caller is not root, or has come by its directory.
  static absl::Status CheckMayChange(const Caller& caller, const Lease& lease);
  std::string ChooseName(const Wanted& wanted) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::string ChooseId() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  enum class Counted { kAll, kWithoutEnding };  // leases that count against a cap
  /// Whether the caller's leases with `delta` stay within the user's caps.
  absl::Status CheckCaps(const User& user, Holdings delta, Counted counted = Counted::kAll) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  /// Waits until `deadline` where `delta` fits into the user's caps but for leases that are ending.
  void AwaitRoomInCaps(const User& user, const Holdings& delta, TimePoint deadline)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  /// The bounds that every user has beside the caps.
  absl::Status CheckNumbers(const User& user, bool is_managed, std::size_t more_devices) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  template <typename Predicate>
  Holdings SumHoldings(Predicate owner_matches, Counted counted = Counted::kAll) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::StatusOr<LeaseKey> KeyToSuspend(const Caller& caller, const std::string& text) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  static absl::Status CheckMayBegin(const Lease& lease);
  absl::StatusOr<LeaseKey> FindKey(const Caller& caller, const std::string& text) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status AttachLocked(const Caller& caller, Lease& lease) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  v1::Lease ToProto(const Lease& lease) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::StatusOr<v1::Lease> Describe(LeaseKey key) const;
  std::vector<LogicalId> DeviceIds(LeaseKey key) const;
  struct Resizing {
    Lease lease;                      // as it was
    std::vector<LeaseDevice> wanted;  // its devices as they are to be
  };
  /// The devices of the lease are the caller's until EndResize.
  absl::StatusOr<Resizing> StartResize(const Caller& caller, const v1::ResizeLeaseRequest& request,
                                       TimePoint deadline);
  /// Sets aside what the wanted sizes need beyond the present ones, for all devices or, on an error, for
  /// none. No device loses memory or limit by it.
  absl::Status SetAside(const Resizing& resizing, TimePoint deadline);
  /// Gives a device a size whose guarantee is not above its present one. It cannot fail.
  void SetSize(const LeaseDevice& device);
  /// The devices of a lease that is resized have these sizes from here on, in the journal too.
  void NoteDevices(LeaseKey key, const std::vector<LeaseDevice>& devices);
  void EndResize(LeaseKey key);
  /// The devices of a lease that no session can use any more, for Finish to remove without the lock: draining
  /// sessions keep what they hold, and no more. Takes the lease out, once, if nothing keeps it.
  std::vector<LogicalId> TakeIfOver(LeaseKey key, std::optional<Lease>& taken)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Finish(const std::optional<Lease>& lease, const std::vector<LogicalId>& devices);
  /// Asks these sessions to end, also if they have been resumed meanwhile.
  void EndSessions(const std::set<SessionId>& sessions, const absl::Status& why);
  /// Without the lease they would wait for ever.
  bool HasSuspendedPrograms(const Lease& lease) const;
  /// Ends the leases whose time or idle time is over, but for those with suspended programs.
  void EndByTerms();
  /// The cgroup of a managed lease has processes.
  void NotePopulated(LeaseKey key);
  /// A removal that has begun.
  struct Removal {
    LeaseKey key;
    std::string name;
    bool lasting = false;
    std::set<SessionId> live;
    std::optional<Lease> taken = {};
    std::vector<LogicalId> devices = {};
  };
  Removal BeginRemoval(Lease& lease) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  /// Ends its sessions with `why`, or WasRemoved where that is OK; waits until `deadline` for their memory.
  absl::Status FinishRemoval(const Removal& removal, const absl::Status& why, TimePoint deadline);
  absl::Status RemoveKey(LeaseKey key, const absl::Status& why, TimePoint deadline);
  /// The answer to a removal, by whether the journal has it.
  static absl::Status Removed(const std::string& name, const absl::Status& noted);
  struct Kept {
    v1::JournalLease record;
    bool in_use = false;
  };
  /// Takes a lease out of `waiting_`; the journal has it as removed.
  Kept TakeWaiting(const std::string& id) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  /// Gives up a lease that TakeWaiting gave.
  absl::Status GiveUp(const Kept& kept);
  /// NOT_FOUND: none of that name or id waits in the file.
  absl::Status RemoveWaiting(const Caller& caller, const std::string& text);
  /// The leases of that request that wait in the file; the id of one. NOT_FOUND: there is none.
  absl::StatusOr<std::string> RemoveWaitingRequest(const Caller& caller, const std::string& request_id);
  /// The lease that the caller's request made and that is there by now. NOT_FOUND, or UNAVAILABLE at
  /// `deadline`.
  absl::StatusOr<LeaseKey> AwaitRequested(const Caller& caller, const std::string& request_id,
                                          TimePoint deadline) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  /// The id of a lease that waits. INVALID_ARGUMENT where several have that name.
  absl::StatusOr<std::string> FindWaiting(const Caller& caller, const std::string& text) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  v1::JournalSuspended SuspendedRecord(LeaseKey key) const;
  // lease_table_restart.cc.
  void NoteLease(const Lease& lease) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void NoteSession(const Lease& lease, const SessionState& session) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void NoteSessionGone(SessionId session) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void NoteLeaseGone(LeaseKey lease) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  /// Writes all notes to the journal: they survive the daemon.
  absl::Status Commit();
  /// As SaveLasting; a new lease is removed where that fails.
  absl::Status SaveOrRemove(LeaseKey key) { return KeepOrRemove(key, SaveLasting()); }
  /// Ends the lease if `saved` is an error. OK: the lease is in the file, or another call wrote it meanwhile.
  absl::Status KeepOrRemove(LeaseKey key, absl::Status saved);

  Broker& broker_;
  SessionDirectory& sessions_;
  const LeaseEvents events_;
  Journal* const journal_;
  const LeaseStore store_;
  mutable Mutex mutex_;
  CondVar changed_;
  std::map<LeaseKey, Lease> leases_ ABSL_GUARDED_BY(mutex_);
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
  std::uint64_t last_key_ ABSL_GUARDED_BY(mutex_) = 0;
  LeasePolicy policy_ ABSL_GUARDED_BY(mutex_);
  PlacementLog::Counts past_placements_ ABSL_GUARDED_BY(mutex_);
  OpCounts past_ops_ ABSL_GUARDED_BY(mutex_);
  EndCounts ended_ ABSL_GUARDED_BY(mutex_);
  std::uint64_t lost_sessions_ ABSL_GUARDED_BY(mutex_) = 0;

  Mutex file_mutex_;  // before mutex_: one writer of the file of lasting leases
  std::map<std::string, Kept> waiting_ ABSL_GUARDED_BY(mutex_);  // by id
  std::vector<LeaseKey> in_file_still_ ABSL_GUARDED_BY(mutex_);  // but over
  bool file_is_behind_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace lgpu::daemon

#endif  // LGPU_DAEMON_LEASES_LEASE_TABLE_H_
