#ifndef LGPU_CLIENT_SESSION_DAEMON_CONNECTION_H_
#define LGPU_CLIENT_SESSION_DAEMON_CONNECTION_H_

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "allocator/broker/trim_order.h"
#include "allocator/device/device_memory.h"
#include "base/mutex.h"
#include "base/unique_fd.h"
#include "client/link/attempts.h"
#include "client/link/handshake.h"
#include "client/link/requests.h"
#include "client/session/fork_guard.h"
#include "client/session/maintenance.h"
#include "client/session/returning_chunks.h"
#include "lgpu/bytes.h"
#include "lgpu/region_source.h"
#include "proto/wire/frame_channel.h"
#include "proto/wire/pages.h"
#include "proto/wire/snapshot_messages.h"

namespace lgpu {

/// A DaemonConnection is the client's end of a session: the channel, its two pages, and the session
/// thread, which reads the channel while no call waits for an answer. A call that waits reads the channel
/// itself, and the session thread sleeps meanwhile, so that a grant costs no hand-over between threads. Of
/// several calls that wait, one reads for all. After a call the session thread takes the channel back
/// only a little later (kQuiet), and a grant is acknowledged by the next frame or then: of calls that follow
/// one another, each costs two system calls of the channel's.
///
/// When the daemon is gone (killed, stopped, or started again) the session thread looks for it until it is
/// back, and attests this process's chunks to it. Until then Grow waits for as long as its request may wait,
/// and fails with UNAVAILABLE; Return succeeds at once, since chunks that are not attested are given back;
/// the two pages stay at their addresses. When the daemon ends the session for a reason that will not pass,
/// or does not know it any more, every call fails with that reason; in a forked child with
/// FAILED_PRECONDITION. A call that its thread's InterruptScope interrupts fails with CANCELLED, but for
/// Return, which needs no answer then. Thread-safe; no lock of the state is held over a system call on the
/// socket.
class DaemonConnection {
 public:
  struct Options {
    std::string directory;  // said in errors
    /// How long the daemon may take for an answer, beside the time that a request itself may wait.
    std::chrono::milliseconds answer_timeout = std::chrono::seconds(10);
    std::chrono::milliseconds greeting_timeout = std::chrono::seconds(10);
    /// Where to look for a daemon that is gone; empty: nowhere, the connection ends with it.
    std::string reconnect_path = {};
    /// The program's name in lists and events; empty: its name and arguments.
    std::string command = {};
    /// The program has blocks, and its maintenance answers TakeSnapshots.
    bool answers_snapshots = false;
    /// The program runs the release hook of its lease, and answers TakeReleases; `on_change` tells of new
    /// ones.
    bool runs_release = false;
    /// The program suspends programs of its lease that it started, and answers TakeSuspends; `on_change`
    /// tells of new ones.
    bool suspends = false;
    /// The program moves what its chunks hold by itself, and answers TakeSuspends; maintenance is woken for
    /// new ones.
    bool suspends_itself = false;
    /// The program uses no GPU itself.
    bool makes_no_use = false;
    /// The daemon is gone, or is back, or does not take the session up now, or the session is over. Called on
    /// any thread, with locks held: it may only wake another thread.
    std::function<void()> on_change = {};
  };
  /// A chunk that a user of the connection holds.
  struct HeldChunk {
    std::uint64_t device = 0;
    Chunk chunk;
    ExportedFd fd;  // none where the daemon knows memory without one
  };
  /// A Holder holds chunks that came over the connection. It is asked on the session thread.
  class Holder {
   public:
    virtual ~Holder() = default;
    virtual absl::StatusOr<std::vector<HeldChunk>> Held() = 0;
  };
  void AddHolder(Holder& holder);
  /// It is not asked any more when this returns.
  void RemoveHolder(Holder& holder);
  /// How long after a call the session thread looks again, and a grant may stay unacknowledged.
  static constexpr std::chrono::milliseconds kQuiet{5};
  struct GrantedChunk {
    Chunk chunk;
    UniqueFd fd;
  };
  struct GrantPage {
    std::vector<GrantedChunk> chunks;
    bool more = false;     // another page follows
    bool fds_cut = false;  // the chunks have no descriptors: this process may open no more
  };

  /// A GrowCall is one request for chunks whose answer comes in pages. Its destructor gives chunks back that
  /// Next has not returned. One thread at a time.
  class GrowCall {
   public:
    ~GrowCall();
    GrowCall(GrowCall&& other) noexcept;
    GrowCall& operator=(GrowCall&&) = delete;
    /// The next page; it is acknowledged, or soon will be. The refusal or error of the daemon; a page after
    /// the last one is a bug of the caller's.
    absl::StatusOr<GrantPage> Next();

   private:
    friend class DaemonConnection;
    GrowCall(DaemonConnection& connection, std::uint64_t request)
        : connection_(&connection), request_(request) {}
    DaemonConnection* connection_;  // null: moved from
    std::uint64_t request_;
    std::uint64_t device_ = 0;
    std::optional<GrowRequest> to_send_;  // until it is sent
  };

  /// Says Hello on a connected socket and takes Welcome. Errors: the daemon's refusal; UNAVAILABLE.
  static absl::StatusOr<std::unique_ptr<DaemonConnection>> Open(UniqueFd socket, Options options);
  /// Connects to `reconnect_path` first; errors as ConnectUnix.
  static absl::StatusOr<std::unique_ptr<DaemonConnection>> Connect(Options options);
  /// Ends the session without Close if there was none: the daemon takes this for a death.
  ~DaemonConnection();
  DaemonConnection(const DaemonConnection&) = delete;
  DaemonConnection& operator=(const DaemonConnection&) = delete;

  const std::string& token() const { return member_.token; }
  std::uint64_t session_id() const { return member_.session_id; }
  const StatsPage& stats() const { return *member_.stats; }
  ClientPage& page() const { return *member_.page; }
  bool IsForked() const { return fork_guard_->IsForked(); }
  absl::Status status() const;

  /// Attaches the session to the lease that `lease`, an id or a name, names; the lease as it stands. Errors
  /// as Control.AttachLease; FAILED_PRECONDITION: the daemon is older than version 3 of the session protocol;
  /// UNAVAILABLE: it was started again meanwhile.
  absl::StatusOr<wire::Lease> Attach(const std::string& lease);
  /// A request for chunks; the call's first Next() sends it.
  absl::StatusOr<GrowCall> Grow(std::uint64_t device, const GrowRequest& request);
  /// True while the daemon is gone and looked for, and where another one has come since `generation`.
  bool IsLost(std::uint64_t generation) const;
  /// The session is over, and status() is why: no daemon will take it up again.
  bool IsOver() const;
  /// How often the daemon was found again.
  std::uint64_t generation() const { return generation_.load(std::memory_order_acquire); }
  /// Chunks are about to leave their holder, to be given back with Return: a new daemon is not told of them.
  void StartReturn(std::span<const ChunkId> chunks);
  /// The chunks stay with their holder after all.
  void CancelReturn(std::span<const ChunkId> chunks);
  /// Gives chunks back; the caller has no mapping and no reference left.
  absl::Status Return(std::uint64_t device, std::span<const ChunkId> chunks);
  /// The daemon's trim orders since the last call; each is to be answered. WakeMaintenance is called for each
  /// that arrives.
  std::vector<TrimOrder> TakeTrims();
  /// The idle chunks have been returned. `pending`: more become idle when queued work ends.
  void AnswerTrim(TrimId id, bool pending);
  /// The questions of the daemon for this program's blocks since the last call; each is to be answered, but
  /// for those with `end`. WakeMaintenance happens with each.
  std::vector<wire::Snapshot> TakeSnapshots();
  /// The answer to one of them, from the thread that took it. As Lease::AnswerSnapshot.
  absl::Status AnswerSnapshot(const wire::SnapshotPage& page);
  /// An order to run the release hook, and the daemon that gave it.
  struct ReleaseOfDaemon {
    wire::Release order;
    std::uint64_t generation = 0;
  };
  /// The daemon's orders to run the release hook since the last call; each is to be answered.
  std::vector<ReleaseOfDaemon> TakeReleases();
  /// Tells the daemon that gave the order. Where another one has come meanwhile, none is told.
  void AnswerRelease(const ReleaseOfDaemon& release, const absl::Status& status);
  struct SuspendOfDaemon {
    wire::Suspend order;
    std::uint64_t generation = 0;
  };
  bool HasSuspends() const;
  /// The daemon's orders to suspend or resume programs, or itself, since the last call; each is to be
  /// answered.
  std::vector<SuspendOfDaemon> TakeSuspends();
  /// What came of such an order.
  struct Suspension {
    absl::Status status;
    std::vector<wire::ProcessName> left = {};   // as in Suspended of session.proto
    std::vector<wire::DeviceBytes> needs = {};  // as there
  };
  /// As AnswerRelease. An error: the daemon that gave the order has not got the answer, and the next daemon
  /// may know nothing of programs that the order suspended.
  absl::Status AnswerSuspend(const SuspendOfDaemon& suspend, const Suspension& answer);
  /// The next daemon is told whether programs, or itself, are suspended.
  void NoteHasSuspended(bool has_suspended) { has_suspended_.store(has_suspended); }
  /// The program wants to use a GPU now.
  void NoteUse() const;
  /// Ends the session and waits until the daemon has all memory back. UNAVAILABLE: no daemon is there; the
  /// session thread tells the next one, and a repeated Close has the result. Repeating it is always fine.
  absl::Status Close();
  /// The session thread does the task between its other work.
  void StartMaintenance(Maintenance::Task task);
  /// From any thread, without blocking.
  void WakeMaintenance();
  void StopMaintenance() { maintenance_.Stop(); }
  /// The session thread drops `object` soon: for objects that are slow to destroy.
  void DropLater(std::shared_ptr<void> object);

 private:
  using TimePoint = std::chrono::steady_clock::time_point;
  /// How long the end of a session waits for a daemon that is away.
  static constexpr std::chrono::milliseconds kClosePatience{1000};
  struct Waiter {
    std::uint64_t id = 0;
    std::vector<wire::ReceivedFrame> inbox;
    bool has_pages = false;     // its caller is at work on a page of a grant
    TimePoint more_until = {};  // as the daemon said
  };
  using Batch = ReturningChunks::Batch;
  class Waiting;

  DaemonConnection(UniqueFd socket, Options options);
  wire::Hello Greeting() const;
  absl::Status Join();
  absl::Status StartSessionThread();
  void RunSessionThread();
  void ReadUnasked();
  void TakeChannelBack();
  bool DropAndSeeWhetherToStop();

  /// Sends `frame`, if there is one, and waits for the next frame that answers `request`.
  /// `of`: UNAVAILABLE where the daemon is another one by now.
  absl::StatusOr<wire::ReceivedFrame> Call(std::uint64_t request, wire::Frame* frame, TimePoint deadline,
                                           std::optional<std::uint64_t> of = std::nullopt);
  /// To the daemon of `generation`; UNAVAILABLE: it is another one by now.
  absl::Status Send(const wire::Frame& frame, std::uint64_t generation, TimePoint deadline)
      ABSL_LOCKS_EXCLUDED(send_mutex_, mutex_);
  absl::Status SendBefore(TimePoint deadline, const wire::Frame& frame, std::uint64_t generation)
      ABSL_LOCKS_EXCLUDED(send_mutex_, mutex_);
  /// A new request id with an inbox.
  absl::StatusOr<std::uint64_t> NewRequest() ABSL_LOCKS_EXCLUDED(mutex_);
  void ForgetRequest(std::uint64_t request) ABSL_LOCKS_EXCLUDED(mutex_);
  /// Tells the daemon that the Grow is given up. One that does not read now is not told: its late grant is
  /// given back.
  void Withdraw(std::uint64_t grow) ABSL_LOCKS_EXCLUDED(send_mutex_, mutex_);
  /// Between StartWaiting and StopWaiting the session thread leaves the channel alone.
  void StartWaiting() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void StopWaiting() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void SetQuietTimer() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Acknowledge(std::uint64_t grant, std::uint64_t generation) ABSL_LOCKS_EXCLUDED(mutex_);
  absl::StatusOr<wire::ReceivedFrame> Await(std::uint64_t request, std::uint64_t generation,
                                            TimePoint deadline) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  /// What came of a Receive. A frame that answers `request` is the caller's; every other frame goes to the
  /// request that it answers.
  std::optional<wire::ReceivedFrame> Take(const PlainStatus& status, wire::ReceivedFrame received,
                                          std::uint64_t request) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::optional<wire::ReceivedFrame> Deliver(wire::ReceivedFrame received, std::uint64_t request)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Fail(absl::Status status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  /// Fails, and looks for the daemon again where `reconnect_path` is set.
  void Lose(absl::Status status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Arm(bool on) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  /// Says Close to the daemon that is there, once, and waits for its answer.
  absl::Status SayClose(TimePoint deadline) ABSL_LOCKS_EXCLUDED(close_mutex_, mutex_, send_mutex_);
  /// The session has ended by Close.
  void EndHere() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  /// At most kMaxReturnChunks.
  absl::Status ReturnPart(std::uint64_t device, std::span<const ChunkId> chunks);
  void GiveUnwantedBack(std::uint64_t generation) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void GiveBack(const std::vector<Batch>& batches, std::uint64_t generation) ABSL_LOCKS_EXCLUDED(mutex_);
  /// The daemon does not read now: the session thread gives the chunks back later.
  void SendLater(const Batch& batch, std::uint64_t generation) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::StatusOr<GrantPage> TakePage(wire::ReceivedFrame received) ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status Confused() ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status Unavailable(const std::string& what) const;
  absl::Status Broken(const std::string& what) const;
  absl::Status Ended(const std::string& what) const;
  void NotifyChange() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status NoAnswer() const;
  absl::Status AttachError(const std::string& lease, const absl::Status& status) const
      ABSL_LOCKS_EXCLUDED(mutex_);
  static absl::Status ClosedError();
  static absl::Status CutError();

  // daemon_connection_resume.cc.
  /// Waits while the daemon is looked for; then OK, or why not.
  absl::Status AwaitDaemon(TimePoint deadline) ABSL_LOCKS_EXCLUDED(mutex_);
  bool IsAway() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status LostError() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::optional<TimePoint> next_attempt() const ABSL_LOCKS_EXCLUDED(mutex_);
  void TryToReconnect() ABSL_LOCKS_EXCLUDED(close_mutex_, mutex_, send_mutex_);
  absl::Status Rejoin(wire::FrameChannel channel);
  class StopWatch;
  absl::Status Greet(link::Handshake& handshake, TimePoint deadline);
  bool IsStopping() ABSL_LOCKS_EXCLUDED(mutex_);
  absl::StatusOr<std::vector<HeldChunk>> ChunksToAttest(TimePoint deadline) ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status Attest(link::Handshake& handshake, const std::vector<HeldChunk>& held, TimePoint deadline);
  /// Chunks that were returned since ChunksToAttest; this daemon has to be told.
  absl::StatusOr<std::vector<Batch>> GoOnWith(wire::FrameChannel channel)
      ABSL_LOCKS_EXCLUDED(mutex_, send_mutex_);

  const Options options_;
  wire::FrameChannel channel_;
  UniqueFd epoll_;
  UniqueFd wake_;   // an eventfd: something in the queues of the session thread
  UniqueFd quiet_;  // a timerfd: some time has passed since a call
  std::optional<ForkGuard> fork_guard_;
  link::Membership member_;

  Maintenance maintenance_;

  /// To have one sender at a time, as FrameChannel asks for.
  Mutex send_mutex_;
  bool close_is_sent_ ABSL_GUARDED_BY(send_mutex_) = false;  // nothing may follow it

  Mutex close_mutex_;  // one thread closes at a time; before the other mutexes

  mutable Mutex mutex_;
  CondVar changed_;
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
  absl::Status gone_ ABSL_GUARDED_BY(mutex_);  // the status while no daemon answers
  link::Requests<Waiter> requests_ ABSL_GUARDED_BY(mutex_);
  ReturningChunks returning_ ABSL_GUARDED_BY(mutex_);
  std::vector<TrimOrder> trims_ ABSL_GUARDED_BY(mutex_);
  std::vector<wire::Snapshot> snapshots_ ABSL_GUARDED_BY(mutex_);
  std::vector<ReleaseOfDaemon> releases_ ABSL_GUARDED_BY(mutex_);
  std::vector<SuspendOfDaemon> suspends_ ABSL_GUARDED_BY(mutex_);
  std::atomic<bool> has_suspended_{false};
  std::uint64_t asked_by_ ABSL_GUARDED_BY(mutex_) = 0;  // the generation of the snapshots taken last
  int waiting_ ABSL_GUARDED_BY(mutex_) = 0;
  bool armed_ ABSL_GUARDED_BY(mutex_) = false;  // a frame that arrives wakes the session thread
  bool quiet_is_set_ ABSL_GUARDED_BY(mutex_) = false;
  std::uint64_t unacknowledged_ ABSL_GUARDED_BY(mutex_) = 0;  // a grant; 0: none
  bool closing_ ABSL_GUARDED_BY(mutex_) = false;              // for good: the next daemon is told, too
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<std::shared_ptr<void>> to_drop_ ABSL_GUARDED_BY(mutex_);

  // Written under both locks, read under either of them or none.
  std::atomic<std::uint64_t> generation_ = 0;
  link::Attempts attempts_ ABSL_GUARDED_BY(mutex_);  // to join the next daemon
  Mutex holders_mutex_;                              // before mutex_
  std::vector<Holder*> holders_ ABSL_GUARDED_BY(holders_mutex_);
  std::unique_ptr<std::thread> thread_;
};

}  // namespace lgpu

#endif  // LGPU_CLIENT_SESSION_DAEMON_CONNECTION_H_
