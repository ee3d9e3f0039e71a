#include "client/session/daemon_connection.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <system_error>
#include <utility>

#include "base/blocked_signals.h"
#include "base/check.h"
#include "base/interrupt.h"
#include "base/utf8.h"
#include "lgpu/status.h"
#include "proto/mapped_region.h"
#include "proto/refusal_codec.h"
#include "proto/wire/connect.h"

namespace lgpu {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::hours kLongest{24};  // a deadline beyond this would overflow the clock at some point

class InterruptWatch final : public link::Watch {
 public:
  link::TimePoint NextLook(link::TimePoint deadline) override { return Interrupt::NextQuestion(deadline); }
  bool IsToStop() override { return Interrupt::Happened(); }
};

}  // namespace

DaemonConnection::DaemonConnection(UniqueFd socket, Options options)
    : options_(std::move(options)), channel_(std::move(socket)) {
  member_.makes_no_use = options_.makes_no_use;
}

absl::StatusOr<std::unique_ptr<DaemonConnection>> DaemonConnection::Open(UniqueFd socket, Options options) {
  std::unique_ptr<DaemonConnection> connection(new DaemonConnection(std::move(socket), std::move(options)));
  LGPU_RETURN_IF_ERROR(connection->StartSessionThread());
  LGPU_RETURN_IF_ERROR(connection->Join());
  MutexLock lock(connection->mutex_);
  connection->Arm(true);
  return connection;
}

absl::StatusOr<std::unique_ptr<DaemonConnection>> DaemonConnection::Connect(Options options) {
  PlainResult<UniqueFd> socket = ConnectUnix(options.reconnect_path, SOCK_SEQPACKET);
  if (!socket.ok()) return absl::Status(socket.status());
  return Open(*std::move(socket), std::move(options));
}

DaemonConnection::~DaemonConnection() {
  if (fork_guard_ && IsForked()) {
    // The thread is the parent's; joining it here would wait for ever, so its handle is left alone.
    (void)thread_.release();
    return;
  }
  if (thread_ != nullptr) {
    {
      MutexLock lock(mutex_);
      stopping_ = true;
      changed_.NotifyAll();
    }
    (void)::eventfd_write(wake_.get(), 1);
    thread_->join();
  }
  fork_guard_.reset();
}

absl::Status DaemonConnection::StartSessionThread() {
  epoll_ = UniqueFd(::epoll_create1(EPOLL_CLOEXEC));
  wake_ = UniqueFd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  quiet_ = UniqueFd(::timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK));
  epoll_event wake = {.events = EPOLLIN, .data = {.fd = wake_.get()}};
  epoll_event quiet = {.events = EPOLLIN, .data = {.fd = quiet_.get()}};
  if (!epoll_ || !wake_ || !quiet_ || ::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, wake_.get(), &wake) != 0 ||
      ::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, quiet_.get(), &quiet) != 0) {
    return absl::ResourceExhaustedError(std::string("no descriptors for a session thread: ") +
                                        std::strerror(errno) + "; raise ulimit -n");
  }
  fork_guard_.emplace(std::vector<int>{channel_.fd(), epoll_.get(), wake_.get(), quiet_.get()});
  const BlockedSignals blocked;
  try {
    thread_ = std::make_unique<std::thread>([this] { RunSessionThread(); });
  } catch (const std::system_error& error) {
    return absl::ResourceExhaustedError(std::string("no session thread: ") + error.what() +
                                        "; see ulimit -u and the cgroup's pids.max");
  }
  return absl::OkStatus();
}

wire::Hello DaemonConnection::Greeting() const {
  wire::Hello hello =
      link::HelloOf("liblgpu " LGPU_VERSION, wire::Protocol::kOldestVersion, options_.command);
  hello.answers_snapshots = options_.answers_snapshots;
  hello.runs_release = options_.runs_release;
  hello.suspends = options_.suspends;
  hello.suspends_itself = options_.suspends_itself;
  hello.has_suspended = has_suspended_.load();
  return hello;
}

absl::Status DaemonConnection::Join() {
  using Kind = link::Reply::Kind;
  InterruptWatch watch;
  link::Handshake handshake(channel_, &watch);
  constexpr bool kResumes = false;
  const wire::Hello hello = Greeting();
  const link::Reply reply =
      handshake.Greet(hello, kResumes, member_, Clock::now() + options_.greeting_timeout);
  switch (reply.kind) {
    case Kind::kAnswered:
      break;
    case Kind::kStopped:
      return Interrupt::Error();
    case Kind::kGoodbye: {
      const absl::Status status = StatusFromWire(static_cast<int>(reply.status.code), reply.status.message);
      return status.ok() ? Unavailable("ended the session: " + reply.status.message) : status;
    }
    case Kind::kCut:
      return CutError();
    case Kind::kOtherVersion:
      return absl::FailedPreconditionError(
          "lgpud at " + options_.directory + " speaks version " + std::to_string(member_.version) +
          " of the session protocol, this liblgpu versions " +
          std::to_string(wire::Protocol::kOldestVersion) + " to " +
          std::to_string(wire::Protocol::kProtocolVersion) + "; use a liblgpu and an lgpud of one version");
    case Kind::kStrange:
    case Kind::kRefused:
      return Unavailable("did not greet as the protocol says; are liblgpu and lgpud of the same version?");
    case Kind::kSilent:
    case Kind::kHungUp:
    case Kind::kGarbled:
      return Unavailable("did not greet back (" + reply.status.message + ")");
  }
  return handshake.TakePages(MapWithBoost, kResumes, member_);
}

absl::Status DaemonConnection::Unavailable(const std::string& what) const {
  return absl::UnavailableError("lgpud at " + options_.directory + " " + what);
}

absl::Status DaemonConnection::Broken(const std::string& what) const {
  if (options_.reconnect_path.empty()) return Ended(what);
  return Unavailable(what + "; mapped memory stays usable, more can be granted when lgpud is back");
}

absl::Status DaemonConnection::Ended(const std::string& what) const {
  return Unavailable(what + "; mapped memory stays usable, no more is granted");
}

absl::Status DaemonConnection::CutError() {
  return absl::ResourceExhaustedError(
      "this process may open no more files, and a session with lgpud takes two; raise the limit: ulimit -n "
      "16384");
}

absl::Status DaemonConnection::ClosedError() {
  return absl::FailedPreconditionError("the session with lgpud is closed; open a new Context");
}

absl::Status DaemonConnection::NoAnswer() const { return Unavailable("does not answer; is it stopped?"); }

absl::Status DaemonConnection::status() const {
  if (IsForked()) return ForkedError();
  MutexLock lock(mutex_);
  return closed_ ? ClosedError() : status_;
}

absl::StatusOr<wire::Lease> DaemonConnection::Attach(const std::string& lease) {
  if (member_.version < wire::Protocol::kAttachVersion) {
    return absl::FailedPreconditionError(
        "lgpud at " + options_.directory + " speaks version " + std::to_string(member_.version) +
        " of the session protocol, and a program without gRPC attaches from version " +
        std::to_string(wire::Protocol::kAttachVersion) + " on\n  try: a newer lgpud");
  }
  if (!IsUtf8(lease)) {
    return absl::InvalidArgumentError("the name of a lease is UTF-8, and \"" + AsUtf8(lease) + "\" is not");
  }
  const absl::StatusOr<std::uint64_t> id = NewRequest();
  if (!id.ok()) return AttachError(lease, id.status());
  wire::Frame frame{.body = wire::Attach{.request_id = *id, .lease = lease}};
  absl::StatusOr<wire::ReceivedFrame> answer = Call(*id, &frame, Clock::now() + options_.answer_timeout);
  ForgetRequest(*id);
  if (!answer.ok()) return AttachError(lease, answer.status());
  wire::Lease attached;
  const link::Reply reply = link::LeaseOf(answer->frame, attached);
  if (reply.ok()) return attached;
  return reply.status.ok() ? Confused()
                           : StatusFromWire(static_cast<int>(reply.status.code), reply.status.message);
}

// The next daemon does not know a session that had no lease, and its answer speaks of memory.
absl::Status DaemonConnection::AttachError(const std::string& lease, const absl::Status& status) const {
  MutexLock lock(mutex_);
  if (gone_.ok() || absl::IsCancelled(status)) return status;
  return Unavailable("was stopped or started again while the program attached to lease \"" + lease +
                     "\"; try again");
}

absl::StatusOr<DaemonConnection::GrowCall> DaemonConnection::Grow(std::uint64_t device,
                                                                  const GrowRequest& request) {
  LGPU_ASSIGN_OR_RETURN(const std::uint64_t id, NewRequest());
  GrowCall call(*this, id);
  call.device_ = device;
  call.to_send_ = request;
  call.to_send_->timeout =
      std::clamp<std::chrono::nanoseconds>(request.timeout, std::chrono::nanoseconds(0), kLongest);
  return call;
}

DaemonConnection::GrowCall::GrowCall(GrowCall&& other) noexcept
    : connection_(std::exchange(other.connection_, nullptr)),
      request_(other.request_),
      device_(other.device_),
      to_send_(other.to_send_) {}

DaemonConnection::GrowCall::~GrowCall() {
  if (connection_ != nullptr && !connection_->IsForked()) connection_->ForgetRequest(request_);
}

absl::StatusOr<DaemonConnection::GrantPage> DaemonConnection::GrowCall::Next() {
  const bool first = to_send_.has_value();
  if (first) {
    const TimePoint asked_at = Clock::now();
    LGPU_RETURN_IF_ERROR(connection_->AwaitDaemon(asked_at + to_send_->timeout));
    to_send_->timeout = std::max<std::chrono::nanoseconds>(to_send_->timeout - (Clock::now() - asked_at),
                                                           std::chrono::nanoseconds(0));
  }
  TimePoint deadline = Clock::now() + connection_->options_.answer_timeout;
  wire::Frame frame;
  if (first) {
    deadline += to_send_->timeout;
    const auto timeout = std::chrono::ceil<std::chrono::milliseconds>(to_send_->timeout);
    frame.body = wire::GrowRequest{.request_id = request_,
                                   .device_id = device_,
                                   .at_least_bytes = to_send_->at_least.count(),
                                   .wanted_bytes = std::max(to_send_->at_least, to_send_->wanted).count(),
                                   .timeout_ms = static_cast<std::uint64_t>(timeout.count()),
                                   .ahead = to_send_->ahead};
    to_send_.reset();
  }
  absl::StatusOr<wire::ReceivedFrame> answer =
      connection_->Call(request_, first ? &frame : nullptr, deadline);
  if (absl::IsCancelled(answer.status())) connection_->Withdraw(request_);
  if (!answer.ok()) return answer.status();
  return connection_->TakePage(*std::move(answer));
}

absl::StatusOr<DaemonConnection::GrantPage> DaemonConnection::TakePage(wire::ReceivedFrame received) {
  if (const auto* const refused = received.frame.Get<wire::GrowRefused>()) {
    const absl::Status status = StatusFromWire(refused->code, refused->message, refused->refusal);
    return status.ok() ? Confused() : status;
  }
  const auto* const grant = received.frame.Get<wire::Grant>();
  const std::size_t count = grant == nullptr ? 0 : grant->chunks.size();
  if (count == 0 || (!received.fds_cut && count != received.fds.size())) return Confused();
  received.fds.resize(count);
  GrantPage page{.chunks = {}, .more = grant->more, .fds_cut = received.fds_cut};
  page.chunks.reserve(count);
  for (std::size_t i = 0; i < count; ++i) {
    const wire::Chunk& chunk = grant->chunks[i];
    page.chunks.push_back({{ChunkId{chunk.id}, Bytes(chunk.bytes)}, std::move(received.fds[i])});
  }
  return page;
}

absl::Status DaemonConnection::Confused() {
  MutexLock lock(mutex_);
  Fail(Ended("sent an answer that breaks the protocol"));
  return status_;
}

absl::Status DaemonConnection::Return(std::uint64_t device, std::span<const ChunkId> chunks) {
  absl::Status first_error;
  while (!chunks.empty()) {
    const auto part = chunks.first(std::min(chunks.size(), wire::Protocol::kMaxReturnChunks));
    chunks = chunks.subspan(part.size());
    first_error.Update(ReturnPart(device, part));
    MutexLock lock(mutex_);
    returning_.Settle(part);
  }
  return first_error;
}

absl::Status DaemonConnection::ReturnPart(std::uint64_t device, std::span<const ChunkId> chunks) {
  while (true) {
    const std::uint64_t generation = generation_.load();
    std::vector<ChunkId> part;
    {
      MutexLock lock(mutex_);
      part = returning_.StillToReturn(device, chunks, IsAway());
    }
    if (part.empty()) return absl::OkStatus();
    LGPU_ASSIGN_OR_RETURN(const std::uint64_t id, NewRequest());
    wire::ReturnRequest back{.request_id = id, .device_id = device, .chunk_ids = {}};
    back.chunk_ids.reserve(part.size());
    for (const ChunkId chunk : part) back.chunk_ids.push_back(chunk.value);
    wire::Frame frame{.body = std::move(back)};
    absl::StatusOr<wire::ReceivedFrame> answer =
        Call(id, &frame, Clock::now() + options_.answer_timeout, generation);
    ForgetRequest(id);
    // A daemon that is gone may have taken them back or not; the next one is not told of them.
    if (!answer.ok() && IsLost(generation)) continue;
    // It has the request, or gets it from the session thread.
    if (absl::IsCancelled(answer.status())) return absl::OkStatus();
    if (!answer.ok()) return answer.status();
    const auto* const reply = answer->frame.Get<wire::ReturnReply>();
    return reply == nullptr ? Confused() : StatusFromWire(reply->code, reply->message);
  }
}

std::vector<TrimOrder> DaemonConnection::TakeTrims() {
  MutexLock lock(mutex_);
  return std::exchange(trims_, {});
}

void DaemonConnection::AnswerTrim(TrimId id, bool pending) {
  const wire::Frame frame{.body = wire::Trimmed{.trim_id = id.value, .pending = pending}};
  // If this fails the session has ended, and the daemon waits for no answer of it.
  (void)Send(frame, generation_.load(), Clock::now() + options_.answer_timeout);
}

std::vector<wire::Snapshot> DaemonConnection::TakeSnapshots() {
  MutexLock lock(mutex_);
  if (!snapshots_.empty()) asked_by_ = generation_.load();
  return std::exchange(snapshots_, {});
}

absl::Status DaemonConnection::AnswerSnapshot(const wire::SnapshotPage& page) {
  std::uint64_t asked_by = 0;
  {
    MutexLock lock(mutex_);
    asked_by = asked_by_;
  }
  return Send({.body = page}, asked_by, Clock::now() + options_.answer_timeout);
}

std::vector<DaemonConnection::ReleaseOfDaemon> DaemonConnection::TakeReleases() {
  MutexLock lock(mutex_);
  return std::exchange(releases_, {});
}

void DaemonConnection::AnswerRelease(const ReleaseOfDaemon& release, const absl::Status& status) {
  const wire::Frame frame{.body = wire::Released{.release_id = release.order.release_id,
                                                 .code = static_cast<std::int32_t>(status.code()),
                                                 .message = AsUtf8(std::string(status.message()))}};
  // If this fails the session has ended, and the daemon waits for no answer of it.
  (void)Send(frame, release.generation, Clock::now() + options_.answer_timeout);
}

bool DaemonConnection::HasSuspends() const {
  MutexLock lock(mutex_);
  return !suspends_.empty();
}

std::vector<DaemonConnection::SuspendOfDaemon> DaemonConnection::TakeSuspends() {
  MutexLock lock(mutex_);
  return std::exchange(suspends_, {});
}

absl::Status DaemonConnection::AnswerSuspend(const SuspendOfDaemon& suspend, const Suspension& answer) {
  const wire::Frame frame{.body = wire::Suspended{.order_id = suspend.order.order_id,
                                                  .code = static_cast<std::int32_t>(answer.status.code()),
                                                  .message = AsUtf8(std::string(answer.status.message())),
                                                  .left = answer.left,
                                                  .needs = answer.needs}};
  return Send(frame, suspend.generation, Clock::now() + options_.answer_timeout);
}

void DaemonConnection::NoteUse() const {
  const std::uint64_t tick = member_.stats->tick.load(std::memory_order_relaxed);
  if (tick != 0) member_.page->last_use.store(tick, std::memory_order_relaxed);
}

absl::Status DaemonConnection::Close() {
  if (IsForked()) return ForkedError();
  {
    MutexLock lock(mutex_);
    closing_ = true;
  }
  const TimePoint deadline = Clock::now() + options_.answer_timeout;
  while (true) {
    const std::uint64_t generation = generation_.load();
    const absl::Status status = SayClose(deadline);
    {
      MutexLock lock(mutex_);
      if (closed_) return absl::OkStatus();
    }
    if (!IsLost(generation) || Clock::now() >= deadline) return status;
    // The session thread sends the Close to a daemon that starts later.
    const absl::Status back = AwaitDaemon(std::min(deadline, Clock::now() + kClosePatience));
    if (absl::IsUnavailable(back) || absl::IsCancelled(back)) return back;
  }
}

absl::Status DaemonConnection::SayClose(TimePoint deadline) {
  MutexLock one_at_a_time(close_mutex_);
  bool is_said = false;
  {
    MutexLock lock(send_mutex_);
    is_said = close_is_sent_;
  }
  {
    MutexLock lock(mutex_);
    while (is_said && !closed_ && status_.ok() && Interrupt::WaitUntil(changed_, mutex_, deadline)) {
    }
    if (closed_) return absl::OkStatus();
    if (is_said && Interrupt::HasHappened()) return Interrupt::Error();
    if (is_said) return status_.ok() ? NoAnswer() : status_;
  }
  LGPU_ASSIGN_OR_RETURN(const std::uint64_t id, NewRequest());
  wire::Frame frame{.body = wire::CloseRequest{.request_id = id}};
  absl::StatusOr<wire::ReceivedFrame> answer = Call(id, &frame, deadline);
  ForgetRequest(id);
  MutexLock lock(mutex_);
  if (answer.ok() && answer->frame.Get<wire::Closed>() != nullptr) {
    Arm(false);  // the end of file that follows is no news
    EndHere();
    return absl::OkStatus();
  }
  return answer.ok() ? Broken("did not answer the end of the session as the protocol says") : answer.status();
}

void DaemonConnection::NotifyChange() {
  changed_.NotifyAll();
  if (options_.on_change) options_.on_change();
}

void DaemonConnection::EndHere() {
  closed_ = true;
  status_ = ClosedError();
  NotifyChange();
}

}  // namespace lgpu
