#include "daemon/sessions/session_server.h"

#include <algorithm>
#include <chrono>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "lgpu/status.h"

namespace lgpu::daemon {

void SessionServer::Serve(UniqueFd socket, const PeerCredentials& peer, std::optional<LeaseKey> only) {
  wire::FrameChannel channel(std::move(socket));
  const absl::Status status = TryServe(channel, peer, only);
  if (status.ok()) return;
  Session::WarnNotServed(services_.log_limit, peer, status);
  const wire::Frame frame{.body = wire::Goodbye{.code = static_cast<int>(status.code()),
                                                .message = std::string(status.message())}};
  // A new socket has room for one frame; without that room the client does not get the reason.
  (void)channel.SendLast(frame, std::chrono::steady_clock::now());
}

void SessionServer::SkipIds(SessionId last) {
  MutexLock lock(mutex_);
  last_id_ = std::max(last_id_, last.value);
}

absl::Status SessionServer::TryServe(wire::FrameChannel& channel, const PeerCredentials& peer,
                                     std::optional<LeaseKey> only) {
  // First: a flood of connections beyond a share costs other users little.
  if (!TryTakePlace(peer.uid)) {
    return absl::ResourceExhaustedError(
        absl::StrCat("your programs have ", shares_.CountOf(peer.uid),
                     " connections, which is your share of the ", shares_.places(),
                     " of this lgpud\n  try: end some, or have its daemon.max_sessions or its"
                     " limit of open files raised"));
  }
  absl::Status started = StartSession(channel, peer, only);
  if (!started.ok()) shares_.GiveBack(peer.uid);
  return started;
}

bool SessionServer::TryTakePlace(std::uint32_t uid) {
  if (shares_.TryTake(uid)) return true;
  Reap();
  return shares_.TryTake(uid);
}

absl::Status SessionServer::StartSession(wire::FrameChannel& channel, const PeerCredentials& peer,
                                         std::optional<LeaseKey> only) {
  LGPU_ASSIGN_OR_RETURN(Process process, HoldProcess(peer.pid));
  LGPU_ASSIGN_OR_RETURN(std::shared_ptr<PollWaker> waker, PollWaker::Create());
  MutexLock lock(mutex_);
  if (stopping_) return absl::UnavailableError("the daemon is stopping");
  const SessionId id{++last_id_};
  Running& running = running_[id];
  running.uid = peer.uid;
  running.session = std::make_unique<Session>(
      services_, std::move(channel),
      Session::Peer{.id = id, .credentials = peer, .process = std::move(process), .only = only},
      std::move(waker));
  absl::StatusOr<Thread> thread =
      Thread::Start("lgpud-session", [this, id, session = running.session.get()] { Run(id, session); });
  if (!thread.ok()) {
    channel = running.session->TakeChannel();  // to say so
    running_.erase(id);
    return thread.status();
  }
  running.thread = *std::move(thread);
  return absl::OkStatus();
}

void SessionServer::Run(SessionId id, Session* session) {
  session->Run();
  MutexLock lock(mutex_);
  running_.at(id).over = true;
  ended_.NotifyAll();
}

void SessionServer::Reap() {
  std::vector<Running> over;
  {
    MutexLock lock(mutex_);
    for (auto entry = running_.begin(); entry != running_.end();) {
      if (entry->second.over) {
        over.push_back(std::move(entry->second));
        entry = running_.erase(entry);
      } else {
        ++entry;
      }
    }
  }
  std::vector<std::uint32_t> uids;
  for (const Running& running : over) uids.push_back(running.uid);
  over.clear();  // joins their threads, outside of the lock that a thread takes last
  for (const std::uint32_t uid : uids) shares_.GiveBack(uid);
}

void SessionServer::Stop() {
  std::vector<Thread> threads;
  {
    MutexLock lock(mutex_);
    stopping_ = true;
    for (auto& [id, running] : running_) {
      running.session->RequestStop();
      threads.push_back(std::move(running.thread));
    }
    const auto is_over = [](const auto& entry) { return entry.second.over; };
    const auto deadline = std::chrono::steady_clock::now() + kGoodbyePatience;
    while (!std::all_of(running_.begin(), running_.end(), is_over) && ended_.WaitUntil(mutex_, deadline)) {
    }
    for (auto& [id, running] : running_) {
      if (!running.over) running.session->Cut();
    }
  }
  threads.clear();  // joins
  Reap();
}

std::size_t SessionServer::size() const {
  MutexLock lock(mutex_);
  return running_.size();
}

}  // namespace lgpu::daemon
