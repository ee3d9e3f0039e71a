#ifndef LGPU_DAEMON_SESSIONS_SESSION_STATE_H_
#define LGPU_DAEMON_SESSIONS_SESSION_STATE_H_

#include <atomic>
#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "allocator/broker/broker.h"
#include "allocator/broker/waker.h"
#include "base/mutex.h"
#include "base/process.h"
#include "daemon/leases/ids.h"
#include "daemon/server/user_shares.h"
#include "daemon/sessions/placement_log.h"
#include "daemon/sessions/session_use.h"
#include "daemon/snapshots/snapshot_line.h"
#include "proto/wire/pages.h"

namespace lgpu::daemon {

/// A SessionState is the state of one session that all parts of the daemon share; its thread's own state is
/// in Session. Thread-safe; unguarded members are constant.
class SessionState {
 public:
  /// kAbsent: an earlier daemon's, whose process has not connected again.
  enum class Phase { kLive, kDraining, kAbsent };
  struct Identity {
    SessionId id;
    std::uint32_t uid = 0;
    std::string command;  // as the client calls itself, else as the kernel does
    std::string token;    // secret
    // Inodes of client pages that an earlier daemon gave to its process.
    std::vector<std::uint64_t> earlier_pages = {};
    bool pages_unknown = false;          // there were too many of them
    std::uint32_t protocol_version = 0;  // 0: not connected to this daemon yet
    bool answers_snapshots = false;
    bool suspends = false;         // it moves programs of its lease that it started
    bool suspends_itself = false;  // its program moves what its chunks hold by itself
    bool has_suspended = false;    // something was in host memory, as it was told, when it connected
  };

  SessionState(Identity identity, Process process, std::shared_ptr<Waker> waker,
               SharedPage<StatsPage> stats_page, SharedPage<const ClientPage> client_page);

  const Identity& identity() const { return identity_; }
  SessionId id() const { return identity_.id; }
  std::uint32_t uid() const { return identity_.uid; }
  const Process& process() const { return process_; }
  const std::shared_ptr<Waker>& waker() const { return waker_; }
  const SharedPage<StatsPage>& stats_page() const { return stats_page_; }
  const SharedPage<const ClientPage>& client_page() const { return client_page_; }
  /// The session has no connection any more: closes the pages' descriptors and keeps the mappings. For the
  /// thread of its connection, which alone uses the descriptors.
  void ClosePageFds();
  /// Whether `client_page()->charges` may be read: its client knows of charges.
  bool has_charge_words() const { return has_charge_words_; }
  PlacementReader& placements() { return placements_; }
  /// The questions for its program's blocks.
  SnapshotLine& snapshots() { return snapshots_; }
  std::chrono::system_clock::time_point connected_at() const { return connected_at_; }
  /// The program says that it can use its GPUs no more.
  bool has_lost_context() const;
  /// True once, when that is first seen.
  bool TakeLostContext();
  /// Its connection ended without Close. Whether its program says that it has begun to end by itself is read
  /// now, once: the program may write the word at any time.
  void NoteLoss();
  /// What was read then.
  bool ended_by_itself() const { return ended_by_itself_.load(); }

  Phase phase() const;
  LeaseKey lease() const;
  /// Attaches a live session that has no lease yet, or has this one. FAILED_PRECONDITION otherwise.
  absl::Status Attach(LeaseKey lease);
  /// Inodes of the client pages of which its process maps one while its Context lives; empty: not known.
  std::vector<std::uint64_t> pages() const;
  /// The client maps the page of this state.
  void ForgetEarlierPages();
  /// From here on it cannot be attached.
  void StartDraining();
  /// It is attached to `lease` and has no connection.
  void SetAbsent(LeaseKey lease);
  /// Ends the absence: the process is back, or gone. False: it was not absent, or another thread was faster.
  bool LeaveAbsent();

  /// Asks the session's thread to say goodbye and end.
  void RequestEnd(const absl::Status& why);
  /// Why the session is to end; OK: it is not.
  absl::Status end_request() const;

  /// Shows the client how its devices stand.
  struct DeviceFigures {
    LogicalId id;
    Broker::DeviceInfo info;
    Bytes unused_by_others;  // of its card: lent to other sessions of the lease for charges, and not in use
  };
  void WriteStats(const std::vector<DeviceFigures>& devices);
  /// Shows the client the present tick (session_use.h).
  void WriteTick(std::uint64_t tick);
  /// When its program last used a GPU.
  SessionUse use() const;

 private:
  const Identity identity_;
  const Process process_;
  const std::shared_ptr<Waker> waker_;
  SharedPage<StatsPage> stats_page_;  // constant but for the descriptors
  SharedPage<const ClientPage> client_page_;
  const std::chrono::system_clock::time_point connected_at_ = std::chrono::system_clock::now();
  const std::uint64_t page_inode_;
  const bool has_charge_words_;
  PlacementReader placements_;
  SnapshotLine snapshots_;

  mutable Mutex mutex_;
  std::vector<std::uint64_t> earlier_pages_ ABSL_GUARDED_BY(mutex_);
  bool pages_unknown_ ABSL_GUARDED_BY(mutex_);
  Phase phase_ ABSL_GUARDED_BY(mutex_) = Phase::kLive;
  LeaseKey lease_ ABSL_GUARDED_BY(mutex_);
  absl::Status end_request_ ABSL_GUARDED_BY(mutex_);
  std::atomic<bool> loss_is_known_{false};
  std::atomic<bool> ended_by_itself_{false};
  Mutex stats_mutex_;  // one writer of the stats page at a time
};

/// In the names of client pages, as /proc shows them.
constexpr std::string_view kClientPageFile = "memfd:lgpu-client";
/// Whether one of `pages` is among the files that a process maps.
bool MapsOneOf(const std::vector<std::uint64_t>& pages, const std::set<std::uint64_t>& mapped);

/// A SessionDirectory finds sessions by id and by token. A session takes a place of its user's share from Add
/// to Remove: with a connection, absent or draining, since it has descriptors in each of these states.
/// Thread-safe.
class SessionDirectory {
 public:
  /// `max_sessions`: of all users.
  explicit SessionDirectory(std::size_t max_sessions) : shares_(max_sessions) {}

  /// RESOURCE_EXHAUSTED: the user has their share of sessions.
  absl::Status Add(std::shared_ptr<SessionState> session);
  /// A session of an earlier daemon: it is older than sessions that ask for a place now, and gets one.
  void Restore(std::shared_ptr<SessionState> session);
  void Remove(SessionId id);
  /// Puts `session` in the place of the one with its id and token.
  void Replace(std::shared_ptr<SessionState> session);
  std::shared_ptr<SessionState> Find(SessionId id) const;
  /// Nothing for a token that no session has.
  std::shared_ptr<SessionState> FindToken(std::string_view token) const;
  std::vector<std::shared_ptr<SessionState>> All() const;
  /// A session whose lease waits for a later daemon.
  struct Waiting {
    SessionId id;
    std::uint32_t uid = 0;
    LeaseKey lease;
    std::string lease_id;
  };
  void AddWaiting(std::string token, Waiting session);
  std::optional<Waiting> FindWaiting(std::string_view token) const;
  /// Removes the sessions of a lease that no longer waits.
  void RemoveWaiting(LeaseKey lease);
  std::size_t size() const;
  std::size_t max_sessions() const { return shares_.places(); }

 private:
  void Insert(std::shared_ptr<SessionState> session);

  UserShares shares_;
  mutable Mutex mutex_;
  std::map<SessionId, std::shared_ptr<SessionState>> sessions_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, std::shared_ptr<SessionState>, std::less<>> tokens_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, Waiting, std::less<>> waiting_ ABSL_GUARDED_BY(mutex_);  // by token
};

}  // namespace lgpu::daemon

#endif  // LGPU_DAEMON_SESSIONS_SESSION_STATE_H_
