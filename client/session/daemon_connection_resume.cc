// A DaemonConnection whose daemon is gone: it looks for the next daemon and attests this process's chunks to
// it.

#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/interrupt.h"
#include "client/session/daemon_connection.h"
#include "lgpu/status.h"
#include "proto/mapped_region.h"
#include "proto/refusal_codec.h"
#include "proto/wire/connect.h"

namespace lgpu {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kFirstPause{5};
constexpr std::chrono::milliseconds kLongestPause{200};
// Of one attempt, and of callers that still work on earlier grants.
constexpr std::chrono::seconds kAttempt{5};
// Of a daemon that is too busy to accept; the next attempt follows.
constexpr std::chrono::milliseconds kConnectPatience{500};
// How often an attempt checks whether it is to stop; the destructor waits at most this long for it.
constexpr std::chrono::milliseconds kLookForTheEnd{100};
// Half of the most that a message carries: descriptors in flight count against a client that is short of
// them.
constexpr std::size_t kChunksOfAPage = 128;

// True for an answer that would be the same at the next attempt.
bool IsFinal(const absl::Status& status) {
  return !status.ok() && !absl::IsUnavailable(status) && !absl::IsDeadlineExceeded(status) &&
         !absl::IsResourceExhausted(status) && !absl::IsAborted(status);
}

absl::Status GoodbyeStatus(const wire::Goodbye& goodbye) {
  const absl::Status status = StatusFromWire(goodbye.code, goodbye.message);
  if (status.ok()) return absl::UnavailableError(goodbye.message);
  // CANCELLED is one that hung up without a word (Ask).
  return absl::IsCancelled(status) ? absl::UnknownError(goodbye.message) : status;
}

}  // namespace

void DaemonConnection::AddHolder(Holder& holder) {
  MutexLock lock(holders_mutex_);
  holders_.push_back(&holder);
}

void DaemonConnection::RemoveHolder(Holder& holder) {
  MutexLock lock(holders_mutex_);
  std::erase(holders_, &holder);
}

bool DaemonConnection::IsAway() const { return next_attempt_.has_value(); }

absl::Status DaemonConnection::LostError() const { return Broken("was started again"); }

bool DaemonConnection::IsLost(std::uint64_t generation) const {
  MutexLock lock(mutex_);
  return !closed_ && (IsAway() || (status_.ok() && generation != generation_.load()));
}

bool DaemonConnection::IsOver() const {
  MutexLock lock(mutex_);
  return closed_ || (!status_.ok() && !IsAway());
}

std::optional<DaemonConnection::TimePoint> DaemonConnection::next_attempt() const {
  MutexLock lock(mutex_);
  return next_attempt_;
}

void DaemonConnection::Lose(absl::Status status) {
  if (!status_.ok()) return;
  gone_ = status;
  Fail(std::move(status));
  if (options_.reconnect_path.empty() || closed_) return;
  next_attempt_ = Clock::now();
  pause_ = kFirstPause;
  (void)::eventfd_write(wake_.get(), 1);
}

absl::Status DaemonConnection::AwaitDaemon(TimePoint deadline) {
  if (IsForked()) return ForkedError();
  const bool may_wait = thread_ == nullptr || std::this_thread::get_id() != thread_->get_id();
  MutexLock lock(mutex_);
  while (may_wait && IsAway() && !closed_ && !stopping_ && Clock::now() < deadline) {
    Interrupt::WaitUntil(changed_, mutex_, deadline);
    if (Interrupt::HasHappened()) return Interrupt::Error();
  }
  return closed_ ? ClosedError() : status_;
}

void DaemonConnection::TryToReconnect() {
  {
    MutexLock lock(mutex_);
    if (!next_attempt_ || stopping_ || Clock::now() < *next_attempt_) return;
  }
  absl::StatusOr<UniqueFd> socket = ConnectUnix(options_.reconnect_path, SOCK_SEQPACKET, kConnectPatience);
  const absl::Status status = socket.ok() ? Rejoin(ClientChannel(*std::move(socket))) : socket.status();
  // A daemon that could not be reached has decided nothing: while it starts, its socket may not be open to
  // this user yet. Nor has a daemon that hung up: while it is being killed, its socket still accepts
  // connections.
  const bool has_spoken = socket.ok() && !absl::IsCancelled(status);
  MutexLock lock(mutex_);
  if (has_spoken && IsFinal(status)) {
    next_attempt_.reset();
    status_ = status;
    // The session that was to end has ended.
    if (closing_ && absl::IsFailedPrecondition(status)) EndHere();
  } else if (!status.ok()) {
    if (has_spoken || absl::IsResourceExhausted(status) || absl::IsPermissionDenied(status)) {
      absl::Status why = Broken("cannot be joined again now: " + std::string(status.message()));
      const bool is_news = why != status_;
      status_ = std::move(why);
      if (is_news) NotifyChange();
    } else {
      status_ = gone_;
    }
    next_attempt_ = Clock::now() + pause_;
    pause_ = std::min(2 * pause_, kLongestPause);
    return;
  }
  NotifyChange();
  if (!closing_) return;
  mutex_.Unlock();
  (void)SayClose(Clock::now() + kClosePatience);  // if this daemon goes as well, the next one is told
  mutex_.Lock();
}

absl::Status DaemonConnection::Rejoin(ClientChannel channel) {
  const TimePoint deadline = Clock::now() + kAttempt;
  LGPU_RETURN_IF_ERROR(Greet(channel, deadline));
  LGPU_ASSIGN_OR_RETURN(const std::vector<HeldChunk> held, ChunksToAttest(deadline));
  LGPU_RETURN_IF_ERROR(Attest(channel, held, deadline));
  LGPU_ASSIGN_OR_RETURN(const std::vector<Orphan> owed, GoOnWith(std::move(channel)));
  GiveBack(owed, generation_.load());
  return absl::OkStatus();
}

absl::Status DaemonConnection::Greet(ClientChannel& channel, TimePoint deadline) {
  wire::Hello hello = Greeting();
  hello.resume = wire::Resume{.session_id = session_id_, .session_token = {token_}};
  LGPU_ASSIGN_OR_RETURN(ClientFrame answer, Ask(channel, {.body = std::move(hello)}, {}, deadline));
  if (answer.fds_cut) return CutError();
  const auto* const welcome = answer.frame.Get<wire::Welcome>();
  if (welcome == nullptr || !welcome->resumed || welcome->session_token.bytes != token_ ||
      answer.fds.size() != 2) {
    return absl::FailedPreconditionError(
        "lgpud at " + options_.directory +
        " was started again and takes no session up again; open a new Context");
  }
  version_ = welcome->protocol_version;
  LGPU_RETURN_IF_ERROR(SharedPages::ReplaceStatsPage(MapWithBoost, stats_, std::move(answer.fds[0])));
  LGPU_RETURN_IF_ERROR(SharedPages::ReplaceClientPage(MapWithBoost, page_, std::move(answer.fds[1])));
  NoteMakesNoUse();
  return absl::OkStatus();
}

absl::StatusOr<ClientFrame> DaemonConnection::Ask(ClientChannel& channel, const wire::Frame& frame,
                                                  std::span<const int> fds, TimePoint deadline) {
  const absl::Status sent = channel.Send(frame, fds, deadline);
  // A daemon that has hung up may have sent its reason.
  if (!sent.ok() && !absl::IsUnavailable(sent)) return sent;
  while (true) {
    const TimePoint look = std::min(deadline, Clock::now() + kLookForTheEnd);
    absl::StatusOr<ClientFrame> answer = channel.Receive(look);
    if (absl::IsUnavailable(answer.status())) return absl::CancelledError(answer.status().message());
    if (const auto* const goodbye = answer.ok() ? answer->frame.Get<wire::Goodbye>() : nullptr) {
      return GoodbyeStatus(*goodbye);
    }
    if (!absl::IsDeadlineExceeded(answer.status())) return answer;
    if (look == deadline) {
      return absl::DeadlineExceededError("it does not answer (stopped, or still at its start)");
    }
    MutexLock lock(mutex_);
    if (stopping_) return absl::AbortedError("the session is being dropped");
  }
}

absl::StatusOr<std::vector<DaemonConnection::HeldChunk>> DaemonConnection::ChunksToAttest(
    TimePoint deadline) {
  {
    // A chunk that came last may be on its way to its holder.
    MutexLock lock(mutex_);
    const auto is_at_work = [](const Waiter& waiter) { return waiter.has_pages || !waiter.inbox.empty(); };
    while (std::any_of(waiters_.begin(), waiters_.end(), is_at_work)) {
      if (stopping_ || Clock::now() >= deadline) return absl::UnavailableError("grants are still being used");
      changed_.WaitUntil(mutex_, deadline);
    }
  }
  std::vector<HeldChunk> held;
  {
    MutexLock lock(holders_mutex_);
    for (Holder* const holder : holders_) {
      LGPU_ASSIGN_OR_RETURN(std::vector<HeldChunk> chunks, holder->Held());
      held.insert(held.end(), std::make_move_iterator(chunks.begin()), std::make_move_iterator(chunks.end()));
    }
  }
  MutexLock lock(mutex_);
  // Chunks returned, or about to be, before this moment are not attested, which returns them. Chunks returned
  // later are attested, and then returned: by Return, or by GoOnWith where the daemon was still away.
  given_up_.insert(returning_.begin(), returning_.end());
  returning_.clear();
  std::unordered_set<std::uint64_t> unnamed = given_up_;
  for (const Orphan& returned : owed_) unnamed.insert(returned.chunks.begin(), returned.chunks.end());
  owed_.clear();
  std::erase_if(held, [&](const HeldChunk& chunk) { return unnamed.contains(chunk.chunk.id.value); });
  return held;
}

absl::Status DaemonConnection::Attest(ClientChannel& channel, const std::vector<HeldChunk>& held,
                                      TimePoint deadline) {
  std::size_t next = 0;
  do {
    wire::Attest page;
    std::vector<int> fds;
    page.device_id = next < held.size() ? held[next].device : 0;
    for (; next < held.size() && held[next].device == page.device_id && page.chunks.size() < kChunksOfAPage;
         ++next) {
      page.chunks.push_back({.id = held[next].chunk.id.value, .bytes = held[next].chunk.bytes.count()});
      if (held[next].fd != nullptr) fds.push_back(held[next].fd->get());
    }
    page.more = next < held.size();
    LGPU_ASSIGN_OR_RETURN(const ClientFrame answer, Ask(channel, {.body = std::move(page)}, fds, deadline));
    if (answer.frame.Get<wire::Attested>() == nullptr) {
      return absl::InternalError("lgpud did not answer an Attest");
    }
  } while (next < held.size());
  return absl::OkStatus();
}

absl::StatusOr<std::vector<DaemonConnection::Orphan>> DaemonConnection::GoOnWith(ClientChannel channel) {
  MutexLock send_lock(send_mutex_);
  MutexLock lock(mutex_);
  while (reading_) changed_.Wait(mutex_);
  LGPU_RETURN_IF_ERROR(channel_.TakeOver(std::move(channel)));
  generation_.fetch_add(1);
  next_attempt_.reset();
  status_ = absl::OkStatus();
  unacknowledged_ = 0;
  close_is_sent_ = false;
  unsent_.clear();   // were not attested
  orphans_.clear();  // of grants by the earlier daemon that were not attested
  // The new daemon knows nothing of them; none is being answered, that is done on this thread.
  trims_.clear();
  snapshots_.clear();
  releases_.clear();
  suspends_.clear();
  if (waiting_ == 0) Arm(true);
  return std::exchange(owed_, {});
}

// Giving back while the daemon may be gone.

void DaemonConnection::StartReturn(std::span<const ChunkId> chunks) {
  MutexLock lock(mutex_);
  for (const ChunkId chunk : chunks) returning_.insert(chunk.value);
}

void DaemonConnection::CancelReturn(std::span<const ChunkId> chunks) {
  MutexLock lock(mutex_);
  for (const ChunkId chunk : chunks) {
    returning_.erase(chunk.value);
    given_up_.erase(chunk.value);
  }
}

std::vector<ChunkId> DaemonConnection::StillToReturn(std::uint64_t device, std::span<const ChunkId> chunks) {
  std::vector<ChunkId> part;
  MutexLock lock(mutex_);
  for (const ChunkId chunk : chunks) {
    if (!given_up_.contains(chunk.value)) part.push_back(chunk);
  }
  if (!IsAway() || part.empty()) return part;
  Orphan owed{.grant = 0, .device = device, .chunks = {}};
  for (const ChunkId chunk : part) owed.chunks.push_back(chunk.value);
  owed_.push_back(std::move(owed));
  return {};
}

void DaemonConnection::FinishReturn(std::span<const ChunkId> chunks) {
  MutexLock lock(mutex_);
  for (const ChunkId chunk : chunks) {
    given_up_.erase(chunk.value);
    returning_.erase(chunk.value);
  }
}

}  // namespace lgpu
