#ifndef LGPU_DAEMON_SESSIONS_SESSION_SERVER_H_
#define LGPU_DAEMON_SESSIONS_SESSION_SERVER_H_

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "base/mutex.h"
#include "base/thread.h"
#include "base/unique_fd.h"
#include "daemon/server/user_shares.h"
#include "daemon/sessions/session.h"
#include "proto/wire/frame_channel.h"

namespace lgpu::daemon {

/// A SessionServer runs one Session, with its thread, for every connection of the session socket.
/// Thread-safe.
class SessionServer {
 public:
  explicit SessionServer(const SessionServices& services)
      : services_(services), shares_(services.sessions.max_sessions()) {}
  ~SessionServer() { Stop(); }
  SessionServer(const SessionServer&) = delete;
  SessionServer& operator=(const SessionServer&) = delete;

  /// Sessions get higher ids than this one.
  void SkipIds(SessionId last);
  /// Takes hold of the peer and serves it. A session beyond the user's share, or of a peer that is gone, is
  /// closed with a Goodbye.
  /// `only`: it has come by the directory of this lease; `peer` names the lease's owner then.
  void Serve(UniqueFd socket, const PeerCredentials& peer, std::optional<LeaseKey> only = {});
  /// Joins the threads of sessions that are over.
  void Reap();
  /// How long sessions may take to say goodbye; then they are cut off.
  static constexpr std::chrono::milliseconds kGoodbyePatience{300};

  /// Says goodbye to all and waits for their threads.
  void Stop();
  /// Sessions with a thread.
  std::size_t size() const;

 private:
  struct Running {
    std::uint32_t uid = 0;
    std::unique_ptr<Session> session;
    Thread thread;
    bool over = false;
  };
  absl::Status TryServe(wire::FrameChannel& channel, const PeerCredentials& peer,
                        std::optional<LeaseKey> only);
  bool TryTakePlace(std::uint32_t uid);
  /// The caller has taken a place of the user's share.
  absl::Status StartSession(wire::FrameChannel& channel, const PeerCredentials& peer,
                            std::optional<LeaseKey> only);
  void Run(SessionId id, Session* session);

  const SessionServices services_;
  // As many places for connections as for sessions: a connection that has not said anything has no session,
  // and one that resumes a session needs no place for another one. A place is taken until Reap.
  UserShares shares_;
  mutable Mutex mutex_;
  CondVar ended_;
  std::map<SessionId, Running> running_ ABSL_GUARDED_BY(mutex_);
  std::uint64_t last_id_ ABSL_GUARDED_BY(mutex_) = 0;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace lgpu::daemon

#endif  // LGPU_DAEMON_SESSIONS_SESSION_SERVER_H_
