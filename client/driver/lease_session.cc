#include "client/driver/lease_session.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <mutex>
#include <thread>
#include <utility>

namespace lgpu::shim {
namespace {

// Added to the waiting time of a charge: for the daemon's own work and the way.
constexpr std::chrono::milliseconds kAnswerSlack{1000};
// How long the first connection waits for a daemon that may be busy.
constexpr std::chrono::milliseconds kJoinPatience{2000};
constexpr std::chrono::milliseconds kAwayPause{20};
// A program that asks for figures while lgpud is away waits so long for a new one, and then asks it no more
// for a while.
constexpr std::chrono::milliseconds kLookPatience{100};
constexpr std::chrono::milliseconds kLookPause{1000};
// A daemon writes its figures in less time than so many readings; a killed one may have left them half
// written.
constexpr int kReadings = 1000;
// No frame of the shim's waits longer for room in the socket.
constexpr std::chrono::milliseconds kSendPatience{500};

// lgpu::RefusalReason::kLimit: the lease's limit, not the card.
constexpr wire::Refusal::Reason kLimitReason{1};

int HexDigit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

/// An entry of the environment, which may hold anything, as a text of the protocol.
std::string PrintableUuid(std::string_view entry) {
  constexpr std::size_t kLongest = 64;
  std::string text(entry.substr(0, kLongest));
  std::replace_if(
      text.begin(), text.end(), [](char c) { return c < ' ' || c > '~'; }, '?');
  return text;
}

/// Whether "GPU-10fa4e00-..." or "MIG-..." names these 16 bytes.
bool IsUuid(std::string_view text, const char (&uuid)[16]) {
  if (text.size() < 4) return false;
  std::size_t digits = 0;
  for (const char c : text.substr(4)) {
    if (c == '-') continue;
    const int digit = HexDigit(c);
    if (digit < 0 || digits >= 32) return false;
    const auto byte = static_cast<unsigned char>(uuid[digits / 2]);
    const int expected = digits % 2 == 0 ? byte >> 4 : byte & 15;
    if (digit != expected) return false;
    ++digits;
  }
  return digits == 32;
}

}  // namespace

/// The lock and condition of a session as a thread that waits uses them.
class LeaseSession::Waiting {
 public:
  Waiting(LeaseSession& session, Lock& lock) : session_(session), lock_(lock) {}
  void lock() { lock_.lock(); }
  void unlock() { lock_.unlock(); }
  void SleepUntil(Clock::time_point until) { session_.changed_.wait_until(lock_, until); }
  void WakeAll() { session_.changed_.notify_all(); }
  bool CanRead() {
    if (session_.HasItsSocket()) return true;
    session_.Lose();
    return false;
  }
  Clock::time_point NextLook(Clock::time_point until) { return until; }
  bool IsStopped() { return false; }

 private:
  LeaseSession& session_;
  Lock& lock_;
};

bool LeaseSession::Join() {
  if (is_attached_.load(std::memory_order_acquire)) return true;
  Lock lock(mutex_);
  return EnsureJoined(lock, Clock::now() + kJoinPatience);
}

int LeaseSession::CardOf(const char (&uuid)[16]) {
  if (!Join()) return kNoCard;
  const auto card =
      std::find_if(cards_.begin(), cards_.end(), [&](const Card& known) { return IsUuid(known.uuid, uuid); });
  return card == cards_.end() ? kNoCard : static_cast<int>(card - cards_.begin());
}

int LeaseSession::CardOf(std::string_view uuid) {
  if (!Join()) return kNoCard;
  const auto card =
      std::find_if(cards_.begin(), cards_.end(), [&](const Card& known) { return known.uuid == uuid; });
  return card == cards_.end() ? kNoCard : static_cast<int>(card - cards_.begin());
}

std::optional<std::vector<std::string>> LeaseSession::CardUuids() {
  if (!Join()) return std::nullopt;
  std::vector<std::string> uuids;
  for (const Card& card : cards_) uuids.push_back(card.uuid);
  return uuids;
}

std::optional<std::vector<std::string>> LeaseSession::AwaitCardUuids() {
  const Clock::time_point deadline = Clock::now() + options_.memory_wait;
  for (;;) {
    std::optional<std::vector<std::string>> uuids = CardUuids();
    if (uuids || Clock::now() + kAwayPause >= deadline) return uuids;
    {
      const Lock lock(mutex_);
      if (state_ == State::kOver) return uuids;
    }
    std::this_thread::sleep_for(kAwayPause);
  }
}

void LeaseSession::TellForeignCard(std::string_view entry) {
  const Clock::time_point deadline = Clock::now() + kSendPatience;
  Lock lock(mutex_);
  if (state_ != State::kJoined) return;
  // A charge of a card that the lease does not have is refused, with an event.
  const std::uint64_t request = requests_.Add({.generation = generation_.load(), .kind = ChargeKind::kPlain});
  const wire::Frame frame{.body = wire::Charge{.request_id = request,
                                               .card_uuid = PrintableUuid(entry),
                                               .bytes = 1,
                                               .timeout_ms = 0,
                                               .kind = ChargeKind::kPlain,
                                               .what = "CUDA_VISIBLE_DEVICES",
                                               .driver_refusals = 0}};
  SendAndAwait(lock, request, frame, deadline);
}

void LeaseSession::CountExported(int card, std::uint64_t bytes) {
  if (card == kNoCard || !is_attached_.load(std::memory_order_acquire)) return;
  const std::lock_guard lock(ChargesLock(card));
  Words(card).exported.fetch_add(bytes, std::memory_order_relaxed);
}

void LeaseSession::NoteKernelHeap(std::uint64_t bytes) {
  const std::lock_guard lock(ChargesLock(0));
  // Kept also where there is no session: the first one is told.
  kernel_heap_.store(bytes, std::memory_order_relaxed);
  if (is_attached_.load(std::memory_order_acquire)) {
    member_.page->kernel_heap.store(bytes, std::memory_order_relaxed);
  }
}

void LeaseSession::CountImports(std::uint64_t pieces) {
  (void)Join();
  const std::lock_guard lock(ChargesLock(0));
  // Counted also where there is no session: the first one is told.
  imports_.fetch_add(pieces, std::memory_order_relaxed);
  if (is_attached_.load(std::memory_order_acquire)) {
    member_.page->imports.fetch_add(pieces, std::memory_order_relaxed);
  }
}

bool LeaseSession::Charge(int card, std::uint64_t bytes, ChargeKind kind, const char* call,
                          std::uint32_t driver_refusals) {
  if (card == kNoCard || !Join()) return false;
  if (bytes == 0) return true;
  if (driver_refusals == 0) {
    const std::lock_guard lock(ChargesLock(card));
    if (TakeFromAllowance(card, bytes, kind)) return true;
  }
  const Clock::time_point deadline = Clock::now() + options_.memory_wait + kAnswerSlack;
  Lock lock(mutex_);
  while (EnsureJoined(lock, deadline)) {
    const std::uint64_t late_grants = late_grants_;
    const std::chrono::milliseconds may_wait = WaitLeft(card);
    const std::uint64_t id = requests_.Add({.generation = generation_.load(),
                                            .card = card,
                                            .bytes = bytes,
                                            .kind = kind,
                                            .driver_refusals = driver_refusals,
                                            .may_wait = may_wait});
    if (!SendCharge(*requests_.Find(id), call, deadline)) {
      requests_.Remove(id);
      continue;  // the next daemon is asked again
    }
    Await(lock, id, std::min(deadline, Clock::now() + may_wait + kAnswerSlack));
    Request& request = *requests_.Find(id);
    const bool is_done = request.is_done, is_granted = request.is_granted;
    if (!is_done && IsOfNow(request)) {
      request.is_abandoned = true;
      return false;
    }
    requests_.Remove(id);
    // A late grant that went back meanwhile may have been in the way of this request.
    const bool may_fit_now = !is_granted && late_grants != late_grants_ && Clock::now() < deadline;
    if (is_done && !may_fit_now) return is_granted;
  }
  return false;
}

void LeaseSession::TellRefused(int card, std::uint64_t bytes, ChargeKind kind, const char* call) {
  // A daemon that does not know of refusals grants it.
  if (Charge(card, bytes, kind, call, 2)) Uncharge(card, bytes, kind);
}

std::chrono::milliseconds LeaseSession::WaitLeft(int card) {
  WaitRow& row = wait_rows_[static_cast<std::size_t>(card)];
  if (Clock::now() >= row.ends) row.in_vain = {};
  return options_.memory_wait - row.in_vain;
}

void LeaseSession::NoteRefusal(const Request& request, const wire::Refusal& refusal) {
  // The daemon may look for idle memory for a moment, also for a charge that may not wait.
  if (refusal.reason == kLimitReason || request.may_wait.count() == 0 || !refusal.waited_ms) return;
  WaitRow& row = wait_rows_[static_cast<std::size_t>(request.card)];
  const auto left = static_cast<std::uint64_t>((options_.memory_wait - row.in_vain).count());
  row.in_vain += std::chrono::milliseconds(std::min(left, *refusal.waited_ms));
  row.ends = Clock::now() + options_.wait_pause;
}

bool LeaseSession::SendCharge(const Request& request, const char* call, Clock::time_point deadline) {
  const auto left =
      std::min(request.may_wait,
               std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()) - kAnswerSlack);
  const wire::Frame frame{
      .body = wire::Charge{.request_id = request.id,
                           .card_uuid = cards_[static_cast<std::size_t>(request.card)].uuid,
                           .bytes = request.bytes,
                           .timeout_ms = static_cast<std::uint64_t>(std::max<std::int64_t>(left.count(), 0)),
                           .kind = request.kind,
                           .what = call,
                           .driver_refusals = request.driver_refusals}};
  if (Send(frame, std::min(deadline, Clock::now() + kSendPatience))) return true;
  Lose();
  return false;
}

bool LeaseSession::Send(const wire::Frame& frame, Clock::time_point deadline) {
  return HasItsSocket() && channel_.Send(frame, {}, deadline).ok();
}

bool LeaseSession::IsItsSocket(int descriptor) const {
  struct stat about {};
  return descriptor >= 0 && ::fstat(descriptor, &about) == 0 && about.st_dev == socket_device_.load() &&
         about.st_ino == socket_inode_.load();
}

bool LeaseSession::HasItsSocket() {
  if (channel_.fd() < 0) return false;
  if (IsItsSocket(channel_.fd())) return true;
  socket_.store(-1);
  channel_.Forget();
  return false;
}

void LeaseSession::Await(Lock& lock, std::uint64_t request, Clock::time_point deadline) {
  Waiting waiting(*this, lock);
  (void)requests_.Await(
      waiting, channel_, request, deadline,
      [this](const Request& one) { return one.is_done || !IsOfNow(one); },
      [this](const PlainStatus& status, const wire::ReceivedFrame& received) {
        Take(status, received.frame);
      });
}

void LeaseSession::TakeCharged(const wire::Charged& charged) {
  Request* const request = requests_.Find(charged.request_id);
  if (request == nullptr) return;
  request->is_done = true;
  request->is_granted = charged.code == 0;
  if (charged.refusal) NoteRefusal(*request, *charged.refusal);
  if (request->is_abandoned) {
    const wire::Frame back{
        .body = wire::Uncharge{.card_uuid = cards_[static_cast<std::size_t>(request->card)].uuid,
                               .bytes = request->bytes,
                               .kind = request->kind}};
    const bool is_granted = request->is_granted;
    requests_.Remove(charged.request_id);  // first: Lose removes every abandoned request
    if (!is_granted) return;
    ++late_grants_;
    if (!Send(back, Clock::now() + kSendPatience)) Lose();
  } else if (request->is_granted) {
    // Counted here, and not by the caller: the next attestation includes it.
    const std::lock_guard lock(ChargesLock(request->card));
    Count(request->card, request->kind, request->bytes);
  }
}

void LeaseSession::Take(const PlainStatus& status, const wire::Frame& frame) {
  if (status.code == PlainCode::kDeadlineExceeded) return;
  if (!status.ok()) return Lose();
  if (const auto* const charged = frame.Get<wire::Charged>()) {
    TakeCharged(*charged);
  } else if (const auto* const returned = frame.Get<wire::ReturnReply>()) {
    if (Request* const request = requests_.Find(returned->request_id)) request->is_done = true;
  } else if (const auto* const still = frame.Get<wire::StillWaiting>()) {
    requests_.Extend(*still, kAnswerSlack);
  } else if (const auto* const trim = frame.Get<wire::Trim>()) {
    const wire::Frame trimmed{.body = wire::Trimmed{.trim_id = trim->trim_id, .pending = false}};
    if (!Send(trimmed, Clock::now() + kSendPatience)) Lose();
  } else if (const auto* const goodbye = frame.Get<wire::Goodbye>()) {
    Lose();
    if (!link::Passes(*goodbye)) state_ = State::kOver;
  }
}

void LeaseSession::Lose() {
  if (state_ != State::kJoined) return;
  state_ = State::kAway;
  if (HasItsSocket()) channel_.Shutdown();
  std::erase_if(requests_.rows(), [](const Request& request) { return request.is_abandoned; });
  changed_.notify_all();
}

void LeaseSession::Uncharge(int card, std::uint64_t bytes, ChargeKind kind) {
  if (card == kNoCard || bytes == 0) return;
  Excess excess;
  {
    const std::lock_guard lock(ChargesLock(card));
    excess = PutBack(card, bytes, kind);
  }
  TellExcess(card, kind, excess);
}

void LeaseSession::SendExcess(int card, ChargeKind kind, const Excess& excess) {
  const Lock lock(mutex_);
  // A daemon that came since was told the totals, which are without these bytes.
  if (state_ != State::kJoined || excess.generation != generation_.load()) return;
  const wire::Frame frame{.body = wire::Uncharge{.card_uuid = cards_[static_cast<std::size_t>(card)].uuid,
                                                 .bytes = excess.bytes,
                                                 .kind = kind}};
  has_uncharged_.store(true);
  if (!HasItsSocket()) return Lose();
  const PlainStatus sent = channel_.Send(frame, {}, wire::Channel::kAtOnce);
  if (sent.code == PlainCode::kDeadlineExceeded) {
    // lgpud does not read now. It takes the bytes from the page when it needs them, without this process.
    Words(card).free.fetch_add(excess.bytes);
  } else if (!sent.ok()) {
    Lose();
  }
}

void LeaseSession::AwaitFigures() {
  has_uncharged_.store(false);
  const Clock::time_point deadline = Clock::now() + kSendPatience;
  Lock lock(mutex_);
  if (state_ != State::kJoined) return;
  // A Return of no chunks is answered, with an error, after all that was sent before it.
  wire::ReturnRequest barrier;
  barrier.request_id = requests_.Add({.generation = generation_.load()});
  const std::uint64_t request = barrier.request_id;
  SendAndAwait(lock, request, {.body = std::move(barrier)}, deadline);
}

void LeaseSession::SendAndAwait(Lock& lock, std::uint64_t request, const wire::Frame& frame,
                                Clock::time_point deadline) {
  if (Send(frame, deadline)) {
    Await(lock, request, deadline);
  } else {
    Lose();
  }
  requests_.Remove(request);
}

bool LeaseSession::FollowDaemon() {
  Lock lock(mutex_);
  // The end of a connection is seen by reading alone; a thread that reads now sees it by itself.
  Waiting waiting(*this, lock);
  for (bool is_there = true; is_there && state_ == State::kJoined && !requests_.is_reading();) {
    is_there = false;
    if (!waiting.CanRead()) break;
    requests_.ReadOne(waiting, channel_, wire::Channel::kAtOnce,
                      [&](const PlainStatus& status, const wire::ReceivedFrame& received) {
                        is_there = status.ok();
                        Take(status, received.frame);
                      });
  }
  if (state_ == State::kAway && Clock::now() >= next_look_ &&
      !EnsureJoined(lock, Clock::now() + kLookPatience)) {
    next_look_ = Clock::now() + kLookPause;
  }
  return state_ != State::kOver;
}

LeaseSession::Figures LeaseSession::ReadFigures(int card) const {
  const Card& asked = cards_[static_cast<std::size_t>(card)];
  std::uint64_t limit = 0, held = 0, unused = 0, card_free = 0;
  for (int reading = 0; reading < kReadings; ++reading) {
    limit = held = 0;
    bool is_first = true;
    const std::uint64_t epoch = member_.stats->epoch.load();
    // Allowances of the lease that nothing uses yet count as free: this process's as they are now, those of
    // the others as they were when the daemon wrote.
    unused = Words(card).free.load();
    for (const StatsPage::Device& device : member_.stats->devices) {
      if (std::find(asked.devices.begin(), asked.devices.end(), device.id.load()) == asked.devices.end()) {
        continue;
      }
      if (is_first) unused += device.unused_by_others.load();
      is_first = false;
      limit += device.limit.load();
      held += device.held.load();
      card_free = device.card_free.load();
    }
    if (epoch % 2 == 0 && epoch == member_.stats->epoch.load()) break;
  }
  held -= std::min(held, unused);
  const std::uint64_t left = limit - std::min(limit, held);
  return {.limit = limit, .free = std::min(left, card_free + unused)};
}

bool LeaseSession::SeemsFree(int card, std::uint64_t bytes) {
  if (card == kNoCard || !is_attached_.load(std::memory_order_acquire)) return false;
  if (ReadFigures(card).free >= bytes) return true;
  if (!has_uncharged_.load()) return false;
  AwaitFigures();
  return ReadFigures(card).free >= bytes;
}

std::optional<LeaseSession::Figures> LeaseSession::FiguresOf(int card, Reader reader) {
  if (card == kNoCard || !Join()) return std::nullopt;
  if (reader == Reader::kReadsAlone || has_uncharged_.load()) AwaitFigures();
  const bool is_over = !FollowDaemon();
  Figures figures = ReadFigures(card);
  if (is_over) figures.free = 0;
  return figures;
}

void LeaseSession::NoteUse(std::uint64_t tick) {
  // A child by a bare system call did not abandon this session, and does not have its pages.
  if (!is_attached_.load(std::memory_order_acquire) || process_ != ::getpid()) return;
  member_.page->last_use.store(tick, std::memory_order_relaxed);
}

void LeaseSession::NoteExit() {
  // A child by a bare system call did not abandon this session, and does not have its pages.
  if (!is_attached_.load(std::memory_order_acquire) || process_ != ::getpid()) return;
  member_.page->exiting.store(1, std::memory_order_relaxed);
}

void LeaseSession::Abandon() {
  if (const int socket = socket_.load(); IsItsSocket(socket)) ::close(socket);
}

}  // namespace lgpu::shim
