#ifndef LGPU_DAEMON_SESSIONS_SESSION_H_
#define LGPU_DAEMON_SESSIONS_SESSION_H_

#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "allocator/broker/broker.h"
#include "base/mutex.h"
#include "base/process.h"
#include "daemon/leases/ids.h"
#include "daemon/leases/lease_suspender.h"
#include "daemon/leases/lease_table.h"
#include "daemon/recovery/reclaimer.h"
#include "daemon/server/event_log.h"
#include "daemon/server/log_limit.h"
#include "daemon/server/poll_waker.h"
#include "daemon/sessions/descriptor_budget.h"
#include "daemon/sessions/grant_times.h"
#include "daemon/sessions/session_state.h"
#include "lgpu/v1/events.pb.h"
#include "proto/wire/frame_channel.h"

namespace lgpu::daemon {

/// The parts that a session uses. All outlive it.
struct SessionServices {
  Broker& broker;
  LeaseTable& leases;
  SessionDirectory& sessions;
  EventLog& events;
  DescriptorBudget& budget;
  Reclaimer& reclaimer;
  LogLimit& log_limit;           // of the lines that bad frames and refused connections cause
  bool outlives_daemon = false;  // there is a journal: a later daemon takes sessions up that this one leaves
  GrantTimes* grant_times = nullptr;    // may be left out
  LeaseSuspender* suspender = nullptr;  // may be left out
};

/// A Session serves one connection of the session socket, on one thread of its own: it receives and sends
/// there, so that a client that does not read delays only itself. Requests that wait for memory are the
/// Broker's; the thread goes on serving the other frames and is woken when one has its answer.
///
/// Not thread-safe but for RequestStop and Cut.
class Session {
 public:
  struct Peer {
    SessionId id;
    PeerCredentials credentials;
    Process process;
    std::optional<LeaseKey> only = {};  // it has come by the directory of this lease
  };
  /// A client that does not take a frame for this long is lost.
  static constexpr std::chrono::seconds kSendTimeout{5};
  /// A connection that says nothing for this long is closed.
  static constexpr std::chrono::seconds kHelloTimeout{10};
  /// Descriptors that lie unread for this long, while other sessions wait for some, end the session.
  static constexpr std::chrono::seconds kUnreadTimeout{5};
  /// Requests of one session that wait, or whose grants are on their way.
  static constexpr std::size_t kMaxOpenGrows = 64;
  /// Frames of a process that is gone are served this long: another process may have its socket.
  static constexpr std::chrono::milliseconds kLastFrames{500};

  Session(const SessionServices& services, wire::FrameChannel channel, Peer peer,
          std::shared_ptr<PollWaker> waker);

  /// Serves until the session is over.
  void Run();
  /// The channel of a session that no thread runs, for a Goodbye.
  wire::FrameChannel TakeChannel() { return std::move(channel_); }
  /// The daemon's log says why a peer got no session.
  static void WarnNotServed(LogLimit& limit, const PeerCredentials& peer, const absl::Status& why);
  /// From any thread: says goodbye and ends.
  void RequestStop();
  /// From any thread: ends the connection at once, for a client that does not read its goodbye.
  void Cut();

 private:
  using Clock = std::chrono::steady_clock;
  enum class End { kNone, kClosed, kLost, kLeft };
  struct Outgoing {
    std::uint64_t request_id = 0;
    LogicalId device;
    std::vector<Chunk> chunks;
    Clock::time_point asked_at;
    std::size_t sent = 0;
    std::span<const Chunk> rest() const { return std::span(chunks).subspan(sent); }
  };
  struct Waiting {
    std::uint64_t request_id = 0;
    LogicalId device;
    WaiterId grow;
    Clock::time_point asked_at;
    bool is_charge = false;
    Clock::time_point told_until = {};  // by the last StillWaiting
  };

  // session_greeting.cc.
  bool Greet();
  absl::StatusOr<wire::Hello> ReceiveHello();
  absl::Status MakeState(const wire::Hello& hello, std::uint32_t version);
  absl::Status SendWelcome(std::uint32_t version);
  static std::size_t ClientPageBytes(std::uint32_t version);
  void HandleAttach(const wire::Attach& request);
  static bool AnswersSnapshots(const wire::Hello& hello, std::uint32_t version);

  // session_snapshots.cc: the program's answers about its blocks.
  void SendSnapshots();
  void HandleSnapshotPage(const wire::SnapshotPage& page);

  // session_releases.cc: leases that give way for requests of others.
  /// What the broker is to know about a session of this client.
  Broker::SessionSpec SpecFor(const wire::Hello& hello, std::uint32_t version) const;
  void SendReleases();
  void HandleReleased(const wire::Released& released);
  /// Tells the client that a request may wait longer than it asked for.
  void TellLongerWait(Waiting& waiting);

  // session_suspends.cc: programs of leases that are suspended.
  static bool Suspends(const wire::Hello& hello, std::uint32_t version);
  static bool SuspendsItself(const wire::Hello& hello, std::uint32_t version);
  /// Whether the client follows orders to suspend and to resume.
  bool FollowsSuspends() const;
  void SendSuspends();
  void HandleSuspended(const wire::Suspended& suspended);

  // session_charges.cc: memory that a program takes from the driver itself.
  void HandleCharge(const wire::Charge& request);
  void AnswerCharge(std::uint64_t request_id, Clock::time_point asked_at, const Broker::Answer& answer);
  void HandleUncharge(const wire::Uncharge& request);
  void HandleChargeAttest(const wire::ChargeAttest& attest);
  /// Gives the broker the words of the client page, at the first charge. False: the session is broken.
  bool ShareAllowances();
  /// After the connection's end: whether the process may live with memory that it charged.
  bool KeepsCharges() const;

  // session_resume.cc: a client of an earlier daemon.
  /// In place of MakeState. The session is absent no more, until it is back or its connection ends.
  absl::Status TakeUp(const wire::Hello& hello, std::uint32_t version);
  void HandleAttest(const wire::Attest& page, std::vector<UniqueFd>& fds);
  void FinishAttesting();
  /// The connection ended, and the client may come back: the session is absent until then.
  void GoAbsent();

  // The loop.
  void Serve();
  void WaitForWork(bool& readable, bool& woken);
  /// When to look again at the latest, in milliseconds for poll(); -1: never.
  int TimeUntilNextLook() const;
  void HandleFrame();
  void Dispatch(const wire::Frame& frame);
  /// False, and the session is broken: the id is zero or in use.
  bool IsNewRequest(std::uint64_t id, std::string_view frame);
  static absl::Status TooManyOpen();
  static std::chrono::milliseconds GrowTimeout(std::uint64_t timeout_ms);
  void HandleGrow(const wire::GrowRequest& request);
  void HandleWithdraw(const wire::Withdraw& withdraw);
  void HandleAck(std::uint64_t grant);
  void HandleReturn(const wire::ReturnRequest& request);
  void HandleTrimmed(const wire::Trimmed& trimmed);
  void HandleClose(const wire::CloseRequest& request);
  /// Answers the requests that waited and wait no more.
  void AnswerWaiting();
  void CheckRequests();
  void FinishClose();

  // Sending.
  void Answer(std::uint64_t request_id, LogicalId device, Clock::time_point asked_at, Broker::Answer answer);
  enum class Growth { kNeeded, kAhead };  // the refusal of a growth ahead of need makes no event
  void TellRefused(const absl::Status& status);
  void Refuse(std::uint64_t request_id, const absl::Status& status, Growth growth = Growth::kNeeded);
  void Pump();
  /// A number that only the receiver of the grant can know: its Ack proves that the descriptors were read.
  std::uint64_t NextGrantId();
  /// True when the whole grant is sent.
  bool SendPage(Outgoing& outgoing);
  /// True when the grant is over.
  bool FailPage(Outgoing& outgoing, const absl::Status& status);
  void SendTrims();
  void ReleaseInFlight();
  void CheckUnread();
  bool IsUndelivered(ChunkId chunk) const;
  void Send(const wire::Frame& frame);

  // The end.
  void Break(const absl::Status& why);
  void SayGoodbye(const absl::Status& why);
  void EndLost();
  void Tell(v1::Event::Kind kind, std::string text, const absl::Status* refused = nullptr);

  const SessionServices services_;
  wire::FrameChannel channel_;
  Mutex closing_mutex_;  // between Cut and the end: Cut must not shut another socket of the same number down
  Peer peer_;
  const std::shared_ptr<PollWaker> waker_;
  std::atomic<bool> stop_ = false;
  std::shared_ptr<SessionState> state_;  // after Hello
  bool attesting_ = false;               // a resumed session has not attested all its chunks
  bool maps_page_ = false;               // a resumed session's client is known to map this connection's page
  bool unheard_ = false;                 // all are attested; the client may not have the last Attested
  bool shares_allowances_ = false;       // the broker has the words of the client page
  End end_ = End::kNone;

  Clock::time_point turn_;  // when this turn of the loop began
  std::deque<Outgoing> outgoing_;
  wire::ReceivedFrame received_;  // these four are members only to keep their buffers
  wire::Frame page_;
  std::vector<int> page_fds_;
  std::vector<ExportedFd> exported_;
  std::deque<Waiting> waiting_;
  static constexpr std::size_t kGrantIdsAtOnce = 16;  // of one system call
  std::vector<std::uint64_t> grant_ids_;              // random, not used yet
  std::uint64_t grant_in_flight_ = 0;                 // 0: none
  std::size_t fds_in_flight_ = 0;
  bool welcome_in_flight_ = false;
  Clock::time_point sent_at_;
  std::optional<Clock::time_point> retry_at_;            // of a page that the kernel or the backend put off
  std::optional<Clock::time_point> next_snapshot_look_;  // a lost page is waited for until then
  std::optional<Clock::time_point> failing_since_;       // exports of a started grant fail since then
  std::optional<std::uint64_t> close_request_;
  std::optional<Clock::time_point> gone_since_;  // the process is gone; its frames may be left
};

}  // namespace lgpu::daemon

#endif  // LGPU_DAEMON_SESSIONS_SESSION_H_
