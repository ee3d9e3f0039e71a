#include "client/daemon_connection.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>
#include <system_error>
#include <utility>

#include "allocator/check.h"
#include "client/blocked_signals.h"
#include "lgpu/status.h"
#include "proto/refusal_codec.h"

namespace lgpu {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::hours kLongest{24};  // a deadline beyond this would overflow the clock at some point

/// The program's name as its user started it, for `lgpu ls`.
std::string OwnCommand() {
  std::ifstream file("/proc/self/cmdline", std::ios::binary);
  std::string command((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  while (!command.empty() && command.back() == '\0') command.pop_back();
  std::replace(command.begin(), command.end(), '\0', ' ');
  constexpr std::size_t kMost = 256;
  if (command.size() > kMost) command.resize(kMost);
  // A protobuf string is UTF-8; an argument may be anything, and may be cut within a character.
  for (char& c : command) {
    if (static_cast<unsigned char>(c) >= 0x80 || static_cast<unsigned char>(c) < 0x20) c = '?';
  }
  return command;
}

std::uint64_t RequestOf(const v1::Frame& frame) {
  switch (frame.body_case()) {
    case v1::Frame::kGrant:
      return frame.grant().request_id();
    case v1::Frame::kGrowRefused:
      return frame.grow_refused().request_id();
    case v1::Frame::kReturned:
      return frame.returned().request_id();
    case v1::Frame::kClosed:
      return frame.closed().request_id();
    default:
      return 0;
  }
}

absl::Status ClosedError() {
  return absl::FailedPreconditionError("the session with lgpud is closed; open a new Context");
}

}  // namespace

DaemonConnection::DaemonConnection(SessionChannel channel, Options options)
    : options_(std::move(options)), channel_(std::move(channel)) {}

absl::StatusOr<std::unique_ptr<DaemonConnection>> DaemonConnection::Open(SessionChannel channel,
                                                                         Options options) {
  std::unique_ptr<DaemonConnection> connection(new DaemonConnection(std::move(channel), std::move(options)));
  LGPU_RETURN_IF_ERROR(connection->StartSessionThread());
  LGPU_RETURN_IF_ERROR(connection->Handshake());
  MutexLock lock(connection->mutex_);
  connection->Arm(true);
  return connection;
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

absl::Status DaemonConnection::Handshake() {
  const TimePoint deadline = Clock::now() + options_.greeting_timeout;
  v1::Frame frame;
  v1::Hello& hello = *frame.mutable_hello();
  hello.set_protocol_version(SessionChannel::kProtocolVersion);
  hello.set_oldest_version(SessionChannel::kOldestVersion);
  hello.set_client("liblgpu " LGPU_VERSION);
  hello.set_pid(::getpid());
  hello.set_command(OwnCommand());
  // A daemon that does not want this client may have said so and closed before it reads anything.
  const absl::Status sent = channel_.Send(frame, {}, deadline);
  absl::StatusOr<ReceivedFrame> answer = channel_.Receive(deadline);
  if (!answer.ok()) {
    return Broken("did not greet back (" + std::string((sent.ok() ? answer.status() : sent).message()) + ")");
  }
  if (answer->frame.has_goodbye()) {
    const v1::Goodbye& goodbye = answer->frame.goodbye();
    const absl::Status status = StatusFromWire(goodbye.code(), goodbye.message(), nullptr);
    return status.ok() ? Broken("ended the session: " + goodbye.message()) : status;
  }
  const v1::Welcome& welcome = answer->frame.welcome();
  if (!answer->frame.has_welcome() || answer->fds.size() != 2 || welcome.session_token().empty()) {
    return Broken("did not greet as the protocol says; are liblgpu and lgpud of the same version?");
  }
  if (welcome.protocol_version() < SessionChannel::kOldestVersion ||
      welcome.protocol_version() > SessionChannel::kProtocolVersion) {
    return absl::FailedPreconditionError(
        "lgpud at " + options_.directory + " speaks version " + std::to_string(welcome.protocol_version()) +
        " of the session protocol, this liblgpu versions " + std::to_string(SessionChannel::kOldestVersion) +
        " to " + std::to_string(SessionChannel::kProtocolVersion) +
        "; use a liblgpu and an lgpud of one version");
  }
  LGPU_ASSIGN_OR_RETURN(stats_, SharedPages::OpenStatsPage(std::move(answer->fds[0])));
  LGPU_ASSIGN_OR_RETURN(page_, SharedPages::OpenClientPage(std::move(answer->fds[1])));
  stats_.CloseFd();
  page_.CloseFd();
  token_ = welcome.session_token();
  session_id_ = welcome.session_id();
  return absl::OkStatus();
}

absl::Status DaemonConnection::Broken(const std::string& what) const {
  return absl::UnavailableError("lgpud at " + options_.directory + " " + what +
                                "; memory that is mapped stays usable, more is not to be had");
}

absl::Status DaemonConnection::NoAnswer() const {
  return absl::UnavailableError("lgpud at " + options_.directory + " does not answer; is it stopped?");
}

absl::Status DaemonConnection::status() const {
  if (IsForked()) return ForkedError();
  MutexLock lock(mutex_);
  return closed_ ? ClosedError() : status_;
}

// The session thread.

void DaemonConnection::RunSessionThread() {
  while (true) {
    std::array<epoll_event, 3> events;
    const int count = ::epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()), -1);
    for (int i = 0; i < count; ++i) {
      const int fd = events[static_cast<std::size_t>(i)].data.fd;
      if (fd == wake_.get()) {
        if (DropAndSeeWhetherToStop()) return;
      } else if (fd == quiet_.get()) {
        TakeChannelBack();
      } else {
        ReadForNobody();
      }
    }
  }
}

bool DaemonConnection::DropAndSeeWhetherToStop() {
  eventfd_t ignored;
  (void)::eventfd_read(wake_.get(), &ignored);
  std::vector<std::shared_ptr<void>> to_drop;
  MutexLock lock(mutex_);
  to_drop.swap(to_drop_);
  if (stopping_) return true;
  mutex_.Unlock();
  to_drop.clear();
  mutex_.Lock();
  return false;
}

void DaemonConnection::TakeChannelBack() {
  std::uint64_t expirations;
  (void)!::read(quiet_.get(), &expirations, sizeof(expirations));
  std::uint64_t grant = 0;
  {
    MutexLock lock(mutex_);
    quiet_is_set_ = false;
    if (waiting_ > 0) return;  // the end of that call sets it again
    grant = std::exchange(unacknowledged_, 0);
    Arm(true);
  }
  if (grant != 0) Acknowledge(grant);
}

void DaemonConnection::ReadForNobody() {
  std::vector<Orphan> orphans;
  {
    MutexLock lock(mutex_);
    if (!armed_ || reading_) return;  // a waiter took over after the event was reported
    constexpr std::uint64_t kNobody = 0;
    (void)ReadOne(kNobody, SessionChannel::kAtOnce);
    if (waiting_ > 0) changed_.NotifyAll();
    orphans.swap(orphans_);
  }
  GiveBack(orphans);
}

void DaemonConnection::DropLater(std::shared_ptr<void> object) {
  {
    MutexLock lock(mutex_);
    to_drop_.push_back(std::move(object));
  }
  (void)::eventfd_write(wake_.get(), 1);
}

// Requests and their answers.

absl::Status DaemonConnection::Send(const v1::Frame& frame, TimePoint deadline) {
  MutexLock lock(send_mutex_);
  return channel_.Send(frame, {}, deadline);
}

absl::StatusOr<std::uint64_t> DaemonConnection::NewRequest() {
  if (IsForked()) return ForkedError();
  MutexLock lock(mutex_);
  if (closed_) return ClosedError();
  if (!status_.ok()) return status_;
  const std::uint64_t request = next_request_++;
  waiters_.push_back({.request = request, .inbox = {}});
  return request;
}

DaemonConnection::Waiter* DaemonConnection::FindWaiter(std::uint64_t request) {
  const auto found = std::find_if(waiters_.begin(), waiters_.end(),
                                  [request](const Waiter& waiter) { return waiter.request == request; });
  return found == waiters_.end() ? nullptr : &*found;
}

void DaemonConnection::ForgetRequest(std::uint64_t request) {
  std::vector<Orphan> orphans;
  {
    MutexLock lock(mutex_);
    Waiter* const waiter = FindWaiter(request);
    if (waiter == nullptr) return;
    for (const ReceivedFrame& received : waiter->inbox) {
      if (received.frame.has_grant()) orphans.push_back(OrphanOf(received.frame.grant()));
    }
    std::swap(*waiter, waiters_.back());
    waiters_.pop_back();
  }
  GiveBack(orphans);
}

void DaemonConnection::StartWaiting() {
  ++waiting_;
  Arm(false);
}

void DaemonConnection::StopWaiting() {
  if (--waiting_ > 0) {
    if (!reading_) changed_.NotifyAll();  // one of them reads now
  } else if (!quiet_is_set_) {
    const itimerspec soon = {.it_interval = {},
                             .it_value = {.tv_sec = 0, .tv_nsec = std::chrono::nanoseconds(kQuiet).count()}};
    quiet_is_set_ = ::timerfd_settime(quiet_.get(), 0, &soon, nullptr) == 0;
  }
}

void DaemonConnection::Acknowledge(std::uint64_t grant) {
  v1::Frame ack;
  ack.mutable_ack()->set_grant_id(grant);
  // Where this fails the session is at its end, which the next call finds.
  (void)Send(ack, Clock::now() + options_.answer_timeout);
}

void DaemonConnection::Arm(bool on) {
  if (on == armed_ || (on && (!status_.ok() || closed_))) return;
  epoll_event event = {.events = EPOLLIN, .data = {.fd = channel_.fd()}};
  (void)::epoll_ctl(epoll_.get(), on ? EPOLL_CTL_ADD : EPOLL_CTL_DEL, channel_.fd(), &event);
  armed_ = on;
}

absl::StatusOr<ReceivedFrame> DaemonConnection::Await(std::uint64_t request, TimePoint deadline) {
  for (bool first = true;; first = false) {
    std::vector<ReceivedFrame>& inbox = FindWaiter(request)->inbox;
    if (!inbox.empty()) {
      ReceivedFrame received = std::move(inbox.front());
      inbox.erase(inbox.begin());
      return received;
    }
    if (!status_.ok()) return status_;
    if (!first && Clock::now() >= deadline) return NoAnswer();
    if (reading_) {
      changed_.WaitUntil(mutex_, deadline);
      continue;
    }
    std::optional<ReceivedFrame> answer = ReadOne(request, deadline);
    if (waiting_ > 1) changed_.NotifyAll();
    if (answer) return *std::move(answer);
    // At once: the daemon sends no other grant before this one is acknowledged.
    if (std::vector<Orphan> orphans = std::exchange(orphans_, {}); !orphans.empty()) {
      mutex_.Unlock();
      GiveBack(orphans);
      mutex_.Lock();
    }
  }
}

absl::StatusOr<ReceivedFrame> DaemonConnection::Call(std::uint64_t request, v1::Frame* frame,
                                                     TimePoint deadline) {
  if (IsForked()) return ForkedError();
  absl::Status sent;
  absl::StatusOr<ReceivedFrame> answer = NoAnswer();
  std::uint64_t acknowledge = 0;
  std::vector<Orphan> orphans;
  {
    MutexLock lock(mutex_);
    StartWaiting();
    if (frame != nullptr) {
      acknowledge = std::exchange(unacknowledged_, 0);
      frame->set_acknowledges(acknowledge);
      mutex_.Unlock();
      sent = Send(*frame, deadline);
      mutex_.Lock();
      if (!sent.ok()) unacknowledged_ = acknowledge;
      acknowledge = 0;
    }
    // A daemon that is gone may have said why: whoever reads finds that before the end of file.
    if (sent.ok() || absl::IsUnavailable(sent)) {
      answer = Await(request, deadline);
    } else if (!absl::IsDeadlineExceeded(sent)) {
      answer = sent;
    }
    if (answer.ok() && answer->frame.has_grant()) {
      const v1::Grant& grant = answer->frame.grant();
      // The daemon sends nobody the next page or grant before it knows of this one.
      if (grant.more() || waiting_ > 1) {
        acknowledge = grant.grant_id();
      } else {
        unacknowledged_ = grant.grant_id();
      }
    }
    StopWaiting();
    orphans.swap(orphans_);
  }
  if (acknowledge != 0) Acknowledge(acknowledge);
  GiveBack(orphans);
  return answer;
}

std::optional<ReceivedFrame> DaemonConnection::ReadOne(std::uint64_t request, TimePoint deadline) {
  reading_ = true;
  mutex_.Unlock();
  absl::StatusOr<ReceivedFrame> received = channel_.Receive(deadline);
  mutex_.Lock();
  reading_ = false;
  if (received.ok()) return Deliver(*std::move(received), request);
  if (absl::IsUnavailable(received.status())) {
    Fail(Broken("is gone (it closed the session without a reason: stopped, or killed)"));
  } else if (!absl::IsDeadlineExceeded(received.status())) {
    Fail(Broken("sent something that is not of the protocol (" + std::string(received.status().message()) +
                ")"));
  }
  return std::nullopt;
}

std::optional<ReceivedFrame> DaemonConnection::Deliver(ReceivedFrame received, std::uint64_t request) {
  const v1::Frame& frame = received.frame;
  const std::uint64_t answered = RequestOf(frame);
  if (answered != 0 && answered == request) return received;
  if (frame.has_goodbye()) {
    Fail(Broken("ended the session: " + frame.goodbye().message()));
  } else if (answered == 0 || answered >= next_request_) {
    Fail(Broken("sent a frame that answers nothing that was asked"));
  } else if (Waiter* const waiter = FindWaiter(answered); waiter != nullptr) {
    waiter->inbox.push_back(std::move(received));
  } else if (frame.has_grant()) {
    orphans_.push_back(OrphanOf(frame.grant()));
  }
  return std::nullopt;
}

void DaemonConnection::Fail(absl::Status status) {
  if (!status_.ok()) return;
  Arm(false);
  status_ = std::move(status);
  changed_.NotifyAll();
}

DaemonConnection::Orphan DaemonConnection::OrphanOf(const v1::Grant& grant) {
  Orphan orphan{.grant = grant.grant_id(), .device = grant.device_id(), .chunks = {}};
  for (const v1::Chunk& chunk : grant.chunks()) orphan.chunks.push_back(chunk.id());
  return orphan;
}

void DaemonConnection::GiveBack(const std::vector<Orphan>& orphans) {
  for (const Orphan& orphan : orphans) {
    const TimePoint deadline = Clock::now() + options_.answer_timeout;
    v1::Frame ack;
    ack.mutable_ack()->set_grant_id(orphan.grant);
    v1::Frame back;
    {
      MutexLock lock(mutex_);
      // An id without an inbox: the answer is of no interest.
      back.mutable_return_chunks()->set_request_id(next_request_++);
    }
    back.mutable_return_chunks()->set_device_id(orphan.device);
    back.mutable_return_chunks()->mutable_chunk_ids()->Add(orphan.chunks.begin(), orphan.chunks.end());
    // Where this fails the session is at its end, and the daemon takes everything back by itself.
    if (Send(ack, deadline).ok()) (void)Send(back, deadline);
  }
}

// The requests themselves.

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
  TimePoint deadline = Clock::now() + connection_->options_.answer_timeout;
  v1::Frame frame;
  const bool first = to_send_.has_value();
  if (first) {
    deadline += to_send_->timeout;
    v1::GrowRequest& grow = *frame.mutable_grow();
    grow.set_request_id(request_);
    grow.set_device_id(device_);
    grow.set_at_least_bytes(to_send_->at_least.count());
    grow.set_wanted_bytes(std::max(to_send_->at_least, to_send_->wanted).count());
    grow.set_timeout_ms(
        static_cast<std::uint64_t>(std::chrono::ceil<std::chrono::milliseconds>(to_send_->timeout).count()));
    to_send_.reset();
  }
  absl::StatusOr<ReceivedFrame> answer = connection_->Call(request_, first ? &frame : nullptr, deadline);
  if (!answer.ok()) return answer.status();
  return connection_->TakePage(*std::move(answer));
}

absl::StatusOr<DaemonConnection::GrantPage> DaemonConnection::TakePage(ReceivedFrame received) {
  if (received.frame.has_grow_refused()) {
    const v1::GrowRefused& refused = received.frame.grow_refused();
    const absl::Status status = StatusFromWire(refused.code(), refused.message(),
                                               refused.has_refusal() ? &refused.refusal() : nullptr);
    return status.ok() ? Confused() : status;
  }
  const v1::Grant& grant = received.frame.grant();
  if (!received.frame.has_grant() || grant.chunks().empty() ||
      static_cast<std::size_t>(grant.chunks_size()) != received.fds.size()) {
    return Confused();
  }
  GrantPage page{.chunks = {}, .more = grant.more()};
  page.chunks.reserve(received.fds.size());
  for (std::size_t i = 0; i < received.fds.size(); ++i) {
    const v1::Chunk& chunk = grant.chunks(static_cast<int>(i));
    page.chunks.push_back({{ChunkId{chunk.id()}, Bytes(chunk.bytes())}, std::move(received.fds[i])});
  }
  return page;
}

absl::Status DaemonConnection::Confused() {
  MutexLock lock(mutex_);
  Fail(Broken("sent an answer that is not of the protocol"));
  return status_;
}

absl::Status DaemonConnection::Return(std::uint64_t device, std::span<const ChunkId> chunks) {
  absl::Status first_error;
  while (!chunks.empty()) {
    const auto part = chunks.first(std::min(chunks.size(), SessionChannel::kMaxReturnChunks));
    chunks = chunks.subspan(part.size());
    LGPU_ASSIGN_OR_RETURN(const std::uint64_t id, NewRequest());
    v1::Frame frame;
    frame.mutable_return_chunks()->set_request_id(id);
    frame.mutable_return_chunks()->set_device_id(device);
    frame.mutable_return_chunks()->mutable_chunk_ids()->Reserve(static_cast<int>(part.size()));
    for (const ChunkId chunk : part) frame.mutable_return_chunks()->add_chunk_ids(chunk.value);
    absl::StatusOr<ReceivedFrame> answer = Call(id, &frame, Clock::now() + options_.answer_timeout);
    ForgetRequest(id);
    if (!answer.ok()) return answer.status();
    if (!answer->frame.has_returned()) return Confused();
    const v1::ReturnReply& reply = answer->frame.returned();
    first_error.Update(StatusFromWire(reply.code(), reply.message(), nullptr));
  }
  return first_error;
}

absl::Status DaemonConnection::Close() {
  if (IsForked()) return ForkedError();
  {
    MutexLock lock(mutex_);
    if (closed_) return absl::OkStatus();
  }
  LGPU_ASSIGN_OR_RETURN(const std::uint64_t id, NewRequest());
  v1::Frame frame;
  frame.mutable_close()->set_request_id(id);
  absl::StatusOr<ReceivedFrame> answer = Call(id, &frame, Clock::now() + options_.answer_timeout);
  ForgetRequest(id);
  MutexLock lock(mutex_);
  if (answer.ok() && answer->frame.has_closed()) {
    Arm(false);  // the end of file that follows is no news
    closed_ = true;
    status_ = ClosedError();
    changed_.NotifyAll();
    return absl::OkStatus();
  }
  return answer.ok() ? Broken("did not answer the end of the session as the protocol says") : answer.status();
}

}  // namespace lgpu
