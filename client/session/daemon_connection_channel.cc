// The channel of a DaemonConnection: the thread that reads it, and the waiter that a frame is for.

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <thread>
#include <utility>

#include "base/interrupt.h"
#include "client/session/daemon_connection.h"

namespace lgpu {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kPauseForMemory{5};

/// Whether nothing of the frame was sent, since the daemon did not read in time or the caller was
/// interrupted.
bool IsPutOff(const absl::Status& sent) { return absl::IsDeadlineExceeded(sent) || absl::IsCancelled(sent); }

/// As epoll_wait takes it; -1: for ever.
int MillisecondsUntil(std::optional<Clock::time_point> next) {
  if (!next) return -1;
  const Clock::time_point now = Clock::now();
  if (*next <= now) return 0;
  constexpr std::int64_t kMost = 60'000;
  return static_cast<int>(
      std::min<std::int64_t>(std::chrono::ceil<std::chrono::milliseconds>(*next - now).count(), kMost));
}

}  // namespace

/// The lock and condition of a connection as the thread of a call uses them, with its interrupts.
class DaemonConnection::Waiting {
 public:
  explicit Waiting(DaemonConnection& connection) : connection_(connection) {}
  void lock() ABSL_NO_THREAD_SAFETY_ANALYSIS { connection_.mutex_.Lock(); }
  void unlock() ABSL_NO_THREAD_SAFETY_ANALYSIS { connection_.mutex_.Unlock(); }
  void SleepUntil(TimePoint until) ABSL_NO_THREAD_SAFETY_ANALYSIS {
    Interrupt::WaitUntil(connection_.changed_, connection_.mutex_, until);
  }
  void WakeAll() { connection_.changed_.NotifyAll(); }
  bool CanRead() { return true; }
  TimePoint NextLook(TimePoint until) { return Interrupt::NextQuestion(until); }
  bool IsStopped() { return Interrupt::HasHappened(); }

 private:
  DaemonConnection& connection_;
};

// The session thread.

void DaemonConnection::RunSessionThread() {
  while (true) {
    std::array<epoll_event, 3> events;
    std::optional<TimePoint> next = maintenance_.next();
    if (const std::optional<TimePoint> attempt = next_attempt()) {
      next = std::min(next.value_or(*attempt), *attempt);
    }
    const int count =
        ::epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()), MillisecondsUntil(next));
    for (int i = 0; i < count; ++i) {
      const int fd = events[static_cast<std::size_t>(i)].data.fd;
      if (fd == wake_.get()) {
        if (DropAndSeeWhetherToStop()) return;
      } else if (fd == quiet_.get()) {
        TakeChannelBack();
      } else {
        ReadUnasked();
      }
    }
    maintenance_.RunIfDue();
    TryToReconnect();
  }
}

void DaemonConnection::StartMaintenance(Maintenance::Task task) {
  maintenance_.Start(std::move(task));
  WakeMaintenance();
}

void DaemonConnection::WakeMaintenance() {
  if (maintenance_.Wake()) (void)::eventfd_write(wake_.get(), 1);
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
  std::uint64_t generation = 0;
  std::vector<Batch> unsent;
  {
    MutexLock lock(mutex_);
    generation = generation_.load();
    unsent = returning_.Take(ReturningChunks::State::kUnsent);
    quiet_is_set_ = false;
    // While a call waits, this is an acknowledgement that could not be sent before; the call may be waiting
    // for it.
    grant = std::exchange(unacknowledged_, 0);
    if (waiting_ == 0) Arm(true);  // else the end of that call sets the timer again
  }
  if (grant != 0) Acknowledge(grant, generation);
  GiveBack(unsent, generation);
}

void DaemonConnection::ReadUnasked() {
  std::vector<Batch> unwanted;
  std::uint64_t generation = 0;
  {
    MutexLock lock(mutex_);
    generation = generation_.load();
    if (!armed_ || requests_.is_reading()) return;  // a waiter took over after the event was reported
    Waiting waiting(*this);
    requests_.ReadOne(waiting, channel_, wire::Channel::kAtOnce,
                      [this](const PlainStatus& status, wire::ReceivedFrame received) {
                        mutex_.AssertHeld();
                        constexpr std::uint64_t kNoRequest = 0;
                        (void)Take(status, std::move(received), kNoRequest);
                      });
    unwanted = returning_.Take(ReturningChunks::State::kUnwanted);
  }
  GiveBack(unwanted, generation);
}

void DaemonConnection::DropLater(std::shared_ptr<void> object) {
  {
    MutexLock lock(mutex_);
    to_drop_.push_back(std::move(object));
  }
  (void)::eventfd_write(wake_.get(), 1);
}

// Requests and their answers.

absl::Status DaemonConnection::Send(const wire::Frame& frame, std::uint64_t generation, TimePoint deadline) {
  while (true) {
    const TimePoint until = Interrupt::NextQuestion(deadline);
    absl::Status sent = SendBefore(until, frame, generation);
    if (!absl::IsDeadlineExceeded(sent) || until == deadline) return sent;
    if (Interrupt::Happened()) return Interrupt::Error();
  }
}

absl::Status DaemonConnection::SendBefore(TimePoint deadline, const wire::Frame& frame,
                                          std::uint64_t generation) {
  MutexLock lock(send_mutex_);
  if (generation != generation_.load()) return absl::UnavailableError("the daemon was started again");
  // To the daemon a frame after Close is a broken protocol: it would take the session for lost.
  if (close_is_sent_) return ClosedError();
  absl::Status sent = channel_.Send(frame, {}, deadline);
  // A lack of memory in the kernel passes as a full socket does.
  while (absl::IsAborted(sent)) {
    if (Clock::now() >= deadline) return absl::DeadlineExceededError(sent.message());
    std::this_thread::sleep_for(kPauseForMemory);
    sent = channel_.Send(frame, {}, deadline);
  }
  close_is_sent_ = sent.ok() && frame.Get<wire::CloseRequest>() != nullptr;
  return sent;
}

absl::StatusOr<std::uint64_t> DaemonConnection::NewRequest() {
  if (IsForked()) return ForkedError();
  MutexLock lock(mutex_);
  if (closed_) return ClosedError();
  if (!status_.ok() && !IsAway()) return status_;
  return requests_.Add({});
}

void DaemonConnection::ForgetRequest(std::uint64_t request) {
  std::vector<Batch> unwanted;
  std::uint64_t generation = 0;
  {
    MutexLock lock(mutex_);
    generation = generation_.load();
    const Waiter* const waiter = requests_.Find(request);
    if (waiter == nullptr) return;
    for (const wire::ReceivedFrame& received : waiter->inbox) {
      if (const auto* const grant = received.frame.Get<wire::Grant>()) {
        unwanted.push_back(ReturningChunks::BatchOf(*grant));
      }
    }
    requests_.Remove(request);
    if (IsAway()) changed_.NotifyAll();  // the session thread may wait for just this
  }
  GiveBack(unwanted, generation);
}

void DaemonConnection::Withdraw(std::uint64_t grow) {
  const std::uint64_t generation = generation_.load();  // first: the version may be that of a later daemon
  if (member_.version < wire::Protocol::kWithdrawVersion) return;
  const wire::Frame frame{.body = wire::Withdraw{.request_id = grow}};
  (void)Send(frame, generation, Clock::now());
}

void DaemonConnection::StartWaiting() {
  ++waiting_;
  Arm(false);
}

void DaemonConnection::StopWaiting() {
  if (--waiting_ > 0) {
    if (!requests_.is_reading()) changed_.NotifyAll();  // one of them reads now
  } else {
    SetQuietTimer();
  }
}

void DaemonConnection::SetQuietTimer() {
  if (quiet_is_set_) return;
  const itimerspec soon = {.it_interval = {},
                           .it_value = {.tv_sec = 0, .tv_nsec = std::chrono::nanoseconds(kQuiet).count()}};
  quiet_is_set_ = ::timerfd_settime(quiet_.get(), 0, &soon, nullptr) == 0;
}

void DaemonConnection::Acknowledge(std::uint64_t grant, std::uint64_t generation) {
  const wire::Frame ack{.body = wire::Ack{.grant_id = grant}};
  if (IsPutOff(Send(ack, generation, Clock::now() + options_.answer_timeout))) {
    // The daemon does not read now. It gives this session no other grant before it knows of this one.
    MutexLock lock(mutex_);
    if (generation != generation_.load()) return;
    unacknowledged_ = grant;
    SetQuietTimer();
  }
  // Where it fails otherwise the session is at its end, which the next call finds.
}

void DaemonConnection::Arm(bool on) {
  if (on == armed_ || (on && (!status_.ok() || closed_))) return;
  epoll_event event = {.events = EPOLLIN, .data = {.fd = channel_.fd()}};
  (void)::epoll_ctl(epoll_.get(), on ? EPOLL_CTL_ADD : EPOLL_CTL_DEL, channel_.fd(), &event);
  armed_ = on;
}

absl::StatusOr<wire::ReceivedFrame> DaemonConnection::Await(std::uint64_t request, std::uint64_t generation,
                                                            TimePoint deadline) {
  std::optional<wire::ReceivedFrame> answer;
  Waiting waiting(*this);
  const link::Waited waited = requests_.Await(
      waiting, channel_, request, deadline,
      [&](const Waiter& waiter) {
        mutex_.AssertHeld();
        return answer || !waiter.inbox.empty() || !status_.ok() || generation != generation_.load();
      },
      [&](const PlainStatus& status, wire::ReceivedFrame received) {
        mutex_.AssertHeld();
        answer = Take(status, std::move(received), request);
        if (answer) return;
        GiveUnwantedBack(generation);  // at once: the daemon sends no other grant before
        Interrupt::Happened(mutex_);
      });
  if (answer) return *std::move(answer);
  if (std::vector<wire::ReceivedFrame>& inbox = requests_.Find(request)->inbox; !inbox.empty()) {
    wire::ReceivedFrame received = std::move(inbox.front());
    inbox.erase(inbox.begin());
    return received;
  }
  if (!status_.ok()) return status_;
  if (generation != generation_.load()) return LostError();
  return waited == link::Waited::kStopped ? Interrupt::Error() : NoAnswer();
}

absl::StatusOr<wire::ReceivedFrame> DaemonConnection::Call(std::uint64_t request, wire::Frame* frame,
                                                           TimePoint deadline,
                                                           std::optional<std::uint64_t> of) {
  if (IsForked()) return ForkedError();
  absl::Status sent;
  absl::StatusOr<wire::ReceivedFrame> answer = NoAnswer();
  std::uint64_t acknowledge = 0;
  std::uint64_t generation = 0;
  std::vector<Batch> unwanted;
  {
    MutexLock lock(mutex_);
    if (!status_.ok() && frame != nullptr) return status_;
    generation = generation_.load();
    if (of && *of != generation) return absl::UnavailableError("the daemon was started again");
    StartWaiting();
    if (frame != nullptr) {
      acknowledge = std::exchange(unacknowledged_, 0);
      frame->acknowledges = acknowledge;
      mutex_.Unlock();
      sent = Send(*frame, generation, deadline);
      mutex_.Lock();
      if (!sent.ok() && acknowledge != 0 && generation == generation_.load()) unacknowledged_ = acknowledge;
      acknowledge = 0;
    }
    // A daemon that is gone may have said why: its last frame is read before the end of file.
    if (sent.ok() || absl::IsUnavailable(sent)) {
      answer = Await(request, generation, deadline);
    } else if (!absl::IsDeadlineExceeded(sent)) {
      answer = sent;
    }
    if (const auto* const grant = answer.ok() ? answer->frame.Get<wire::Grant>() : nullptr) {
      requests_.Find(request)->has_pages = true;
      // The daemon sends the next page or grant of this session only after this acknowledgement.
      (grant->more || waiting_ > 1 ? acknowledge : unacknowledged_) = grant->grant_id;
    }
    StopWaiting();
    unwanted = returning_.Take(ReturningChunks::State::kUnwanted);
    const auto* const back = frame != nullptr ? frame->Get<wire::ReturnRequest>() : nullptr;
    if (back != nullptr && IsPutOff(sent)) {
      SendLater({.grant = 0, .device = back->device_id, .chunks = back->chunk_ids}, generation);
    }
  }
  if (acknowledge != 0) Acknowledge(acknowledge, generation);
  GiveBack(unwanted, generation);
  return answer;
}

std::optional<wire::ReceivedFrame> DaemonConnection::Take(const PlainStatus& status,
                                                          wire::ReceivedFrame received,
                                                          std::uint64_t request) {
  if (status.ok()) return Deliver(std::move(received), request);
  if (status.code == PlainCode::kUnavailable) {
    Lose(Broken("is gone (it closed the session without a reason: stopped, or killed)"));
  } else if (status.code != PlainCode::kDeadlineExceeded) {
    Fail(Ended("sent a frame that breaks the protocol (" + status.message + ")"));
  }
  return std::nullopt;
}

std::optional<wire::ReceivedFrame> DaemonConnection::Deliver(wire::ReceivedFrame received,
                                                             std::uint64_t request) {
  const wire::Frame& frame = received.frame;
  const std::uint64_t answered = link::RequestOf(frame);
  if (answered != 0 && answered == request) return received;
  if (const auto* const goodbye = frame.Get<wire::Goodbye>()) {
    const std::string what = "ended the session: " + goodbye->message;
    link::Passes(*goodbye) ? Lose(Broken(what)) : Fail(Ended(what));
  } else if (const auto* const trim = frame.Get<wire::Trim>()) {
    trims_.push_back(
        {.id = TrimId{trim->trim_id}, .device = LogicalId{trim->device_id}, .bytes = Bytes(trim->bytes)});
    WakeMaintenance();
  } else if (const auto* const snapshot = frame.Get<wire::Snapshot>()) {
    snapshots_.push_back(*snapshot);
    WakeMaintenance();
  } else if (const auto* const release = frame.Get<wire::Release>()) {
    releases_.push_back({.order = *release, .generation = generation_.load()});
    NotifyChange();
  } else if (const auto* const suspend = frame.Get<wire::Suspend>()) {
    suspends_.push_back({.order = *suspend, .generation = generation_.load()});
    NotifyChange();
    WakeMaintenance();
  } else if (const auto* const still = frame.Get<wire::StillWaiting>()) {
    requests_.Extend(*still, options_.answer_timeout);
  } else if (!requests_.WasAsked(answered)) {
    Fail(Ended("sent a frame that answers nothing that was asked"));
  } else if (Waiter* const waiter = requests_.Find(answered); waiter != nullptr) {
    waiter->inbox.push_back(std::move(received));
  } else if (const auto* const grant = frame.Get<wire::Grant>()) {
    returning_.AddUnwanted(*grant);
  } else if (frame.Get<wire::Closed>() != nullptr) {
    Arm(false);
    EndHere();  // the call that asked for it has given up waiting
  }
  return std::nullopt;
}

void DaemonConnection::Fail(absl::Status status) {
  if (!status_.ok()) return;
  Arm(false);
  status_ = std::move(status);
  NotifyChange();
}

void DaemonConnection::GiveUnwantedBack(std::uint64_t generation) {
  const std::vector<Batch> unwanted = returning_.Take(ReturningChunks::State::kUnwanted);
  if (unwanted.empty()) return;
  mutex_.Unlock();
  GiveBack(unwanted, generation);
  mutex_.Lock();
}

void DaemonConnection::GiveBack(const std::vector<Batch>& batches, std::uint64_t generation) {
  for (const Batch& batch : batches) {
    const TimePoint deadline = Clock::now() + options_.answer_timeout;
    const wire::Frame ack{.body = wire::Ack{.grant_id = batch.grant}};
    wire::ReturnRequest back{.request_id = 0, .device_id = batch.device, .chunk_ids = batch.chunks};
    {
      MutexLock lock(mutex_);
      // An id without an inbox: the answer is of no interest.
      back.request_id = requests_.NewId();
    }
    Batch rest = batch;
    absl::Status sent = batch.grant == 0 ? absl::OkStatus() : Send(ack, generation, deadline);
    if (sent.ok()) {
      rest.grant = 0;
      sent = Send({.body = std::move(back)}, generation, deadline);
    }
    // After any other error the session is at its end, and the daemon takes everything back by itself.
    if (!IsPutOff(sent)) continue;
    MutexLock lock(mutex_);
    SendLater(rest, generation);
  }
}

void DaemonConnection::SendLater(const Batch& batch, std::uint64_t generation) {
  if (generation != generation_.load()) return;  // the chunks were not attested to the next daemon
  returning_.Postpone(batch);
  SetQuietTimer();
}

}  // namespace lgpu
