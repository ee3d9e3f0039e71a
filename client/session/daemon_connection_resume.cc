// A DaemonConnection whose daemon is gone: it looks for the next daemon and attests this process's chunks to
// it.

#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <iterator>
#include <set>
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

// Of one attempt, and of callers that still work on earlier grants.
constexpr std::chrono::seconds kAttempt{5};
// Of a daemon that is too busy to accept; the next attempt follows.
constexpr std::chrono::milliseconds kConnectPatience{500};
// How often an attempt checks whether it is to stop; the destructor waits at most this long for it.
constexpr std::chrono::milliseconds kLookForTheEnd{100};
// Half of the most that a message carries: descriptors in flight count against a client that is short of
// them.
constexpr std::size_t kChunksOfAPage = 128;

/// Whether the daemon would say the same at the next attempt.
bool IsFinal(const absl::Status& status) {
  return !status.ok() && !link::MayBeAskedAgain(static_cast<PlainCode>(status.code()));
}

/// CANCELLED: the daemon hung up without a word; a Goodbye has another code. ABORTED: the connection is being
/// destroyed.
absl::Status StatusOf(const link::Reply& reply) {
  using Kind = link::Reply::Kind;
  const PlainStatus& status = reply.status;
  switch (reply.kind) {
    case Kind::kAnswered:
      return absl::OkStatus();
    case Kind::kStopped:
      return absl::AbortedError("the session is being dropped");
    case Kind::kHungUp:
      return absl::CancelledError(status.message);
    case Kind::kGoodbye: {
      const absl::Status goodbye = StatusFromWire(static_cast<int>(status.code), status.message);
      if (goodbye.ok()) return absl::UnavailableError(status.message);
      return absl::IsCancelled(goodbye) ? absl::UnknownError(status.message) : goodbye;
    }
    default:
      if (status.code != PlainCode::kDeadlineExceeded) return status;
      return absl::DeadlineExceededError("it does not answer (stopped, or still at its start)");
  }
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

bool DaemonConnection::IsAway() const { return attempts_.next().has_value(); }

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
  return attempts_.next();
}

void DaemonConnection::Lose(absl::Status status) {
  if (!status_.ok()) return;
  gone_ = status;
  Fail(std::move(status));
  if (options_.reconnect_path.empty() || closed_) return;
  attempts_.Start(Clock::now());
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
    if (!IsAway() || stopping_ || Clock::now() < *attempts_.next()) return;
  }
  absl::StatusOr<UniqueFd> socket = ConnectUnix(options_.reconnect_path, SOCK_SEQPACKET, kConnectPatience);
  const absl::Status status = socket.ok() ? Rejoin(wire::FrameChannel(*std::move(socket))) : socket.status();
  // A daemon that could not be reached has decided nothing: while it starts, its socket may not be open to
  // this user yet. Nor has a daemon that hung up: while it is being killed, its socket still accepts
  // connections.
  const bool has_spoken = socket.ok() && !absl::IsCancelled(status);
  MutexLock lock(mutex_);
  if (has_spoken && IsFinal(status)) {
    attempts_.Stop();
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
    attempts_.Fail(Clock::now());
    return;
  }
  NotifyChange();
  if (!closing_) return;
  mutex_.Unlock();
  (void)SayClose(Clock::now() + kClosePatience);  // if this daemon goes as well, the next one is told
  mutex_.Lock();
}

/// Ends an attempt of a connection that is being destroyed.
class DaemonConnection::StopWatch final : public link::Watch {
 public:
  explicit StopWatch(DaemonConnection& connection) : connection_(connection) {}
  link::TimePoint NextLook(link::TimePoint deadline) override {
    return std::min(deadline, Clock::now() + kLookForTheEnd);
  }
  bool IsToStop() override { return connection_.IsStopping(); }

 private:
  DaemonConnection& connection_;
};

bool DaemonConnection::IsStopping() {
  MutexLock lock(mutex_);
  return stopping_;
}

absl::Status DaemonConnection::Rejoin(wire::FrameChannel channel) {
  const TimePoint deadline = Clock::now() + kAttempt;
  StopWatch watch(*this);
  link::Handshake handshake(channel, &watch);
  LGPU_RETURN_IF_ERROR(Greet(handshake, deadline));
  LGPU_ASSIGN_OR_RETURN(const std::vector<HeldChunk> held, ChunksToAttest(deadline));
  LGPU_RETURN_IF_ERROR(Attest(handshake, held, deadline));
  LGPU_ASSIGN_OR_RETURN(const std::vector<Batch> owed, GoOnWith(std::move(channel)));
  GiveBack(owed, generation_.load());
  return absl::OkStatus();
}

absl::Status DaemonConnection::Greet(link::Handshake& handshake, TimePoint deadline) {
  using Kind = link::Reply::Kind;
  constexpr bool kResumes = true;
  const link::Reply reply = handshake.Greet(Greeting(), kResumes, member_, deadline);
  if (reply.kind == Kind::kCut) return CutError();
  if (reply.kind == Kind::kStrange || reply.kind == Kind::kOtherVersion) {
    return absl::FailedPreconditionError(
        "lgpud at " + options_.directory +
        " was started again and takes no session up again; open a new Context");
  }
  LGPU_RETURN_IF_ERROR(StatusOf(reply));
  return handshake.TakePages(MapWithBoost, kResumes, member_);
}

absl::StatusOr<std::vector<DaemonConnection::HeldChunk>> DaemonConnection::ChunksToAttest(
    TimePoint deadline) {
  std::set<std::uint64_t> given_back;
  {
    // A chunk that came last may be on its way to its holder.
    MutexLock lock(mutex_);
    const auto is_at_work = [](const Waiter& waiter) { return waiter.has_pages || !waiter.inbox.empty(); };
    const std::vector<Waiter>& rows = requests_.rows();
    while (std::any_of(rows.begin(), rows.end(), is_at_work)) {
      if (stopping_ || Clock::now() >= deadline) return absl::UnavailableError("grants are still being used");
      changed_.WaitUntil(mutex_, deadline);
    }
    // An earlier attestation left them out. Their own Return may end while the holders are asked.
    given_back = returning_.Unattested();
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
  std::vector<HeldChunk> attested;
  for (HeldChunk& chunk : held) {
    const std::uint64_t id = chunk.chunk.id.value;
    if (!returning_.Contains(id) && !given_back.contains(id)) attested.push_back(std::move(chunk));
  }
  returning_.LeaveOutOfAttestation();
  return attested;
}

absl::Status DaemonConnection::Attest(link::Handshake& handshake, const std::vector<HeldChunk>& held,
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
    const link::Reply reply = handshake.Attest(std::move(page), fds, deadline);
    if (reply.kind == link::Reply::Kind::kStrange) {
      return absl::InternalError("lgpud did not answer an Attest");
    }
    LGPU_RETURN_IF_ERROR(StatusOf(reply));
  } while (next < held.size());
  return absl::OkStatus();
}

absl::StatusOr<std::vector<ReturningChunks::Batch>> DaemonConnection::GoOnWith(wire::FrameChannel channel) {
  MutexLock send_lock(send_mutex_);
  MutexLock lock(mutex_);
  while (requests_.is_reading()) changed_.Wait(mutex_);
  LGPU_RETURN_IF_ERROR(channel_.TakeOver(std::move(channel)));
  generation_.fetch_add(1);
  attempts_.Stop();
  status_ = absl::OkStatus();
  unacknowledged_ = 0;
  close_is_sent_ = false;
  // The new daemon knows nothing of them; none is being answered, that is done on this thread.
  trims_.clear();
  snapshots_.clear();
  releases_.clear();
  suspends_.clear();
  if (waiting_ == 0) Arm(true);
  return returning_.GoToNextDaemon();
}

// Giving back while the daemon may be gone.

void DaemonConnection::StartReturn(std::span<const ChunkId> chunks) {
  MutexLock lock(mutex_);
  returning_.Leave(chunks);
}

void DaemonConnection::CancelReturn(std::span<const ChunkId> chunks) {
  MutexLock lock(mutex_);
  returning_.Settle(chunks);
}

}  // namespace lgpu
