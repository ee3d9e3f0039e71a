#include "daemon/sessions/session.h"

#include <poll.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "allocator/broker/card_observer.h"
#include "allocator/broker/session_trims.h"
#include "lgpu/status.h"
#include "proto/refusal_messages.h"

namespace lgpu::daemon {
namespace {

constexpr std::chrono::milliseconds kGoodbyeTimeout{200};
constexpr std::chrono::hours kMaxGrowTimeout{24};

}  // namespace

Session::Session(const SessionServices& services, wire::FrameChannel channel, Peer peer,
                 std::shared_ptr<PollWaker> waker)
    : services_(services), channel_(std::move(channel)), peer_(std::move(peer)), waker_(std::move(waker)) {}

void Session::WarnNotServed(LogLimit& limit, const PeerCredentials& peer, const absl::Status& why) {
  if (const std::optional<std::uint64_t> kept_back = limit.Next()) {
    spdlog::warn("a session of pid {} (uid {}) was not served: {} ({} more such lines kept back)", peer.pid,
                 peer.uid, std::string(why.message()), *kept_back);
  }
}

void Session::RequestStop() {
  stop_.store(true);
  waker_->Wake();
}

void Session::Run() {
  if (Greet()) {
    Serve();
    state_->snapshots().Close(absl::UnavailableError(
        absl::StrCat("pid ", peer_.credentials.pid, " ended, or lost lgpud, before it had told its blocks")));
    services_.budget.Forget(peer_.id);
    services_.reclaimer.Unwatch(*state_);
    if (services_.suspender != nullptr) services_.suspender->RunnerGone(peer_.id);
    ReleaseInFlight();
    if (end_ == End::kLost && stop_.load() && services_.outlives_daemon && state_->lease()) {
      end_ = End::kLeft;  // cut off by the stop, in the middle of an answer: the next daemon decides on its
                          // chunks
    }
    if (end_ == End::kLost) {
      const bool may_come_back =
          state_->lease() && (attesting_ || unheard_ || KeepsCharges()) && state_->end_request().ok();
      may_come_back ? GoAbsent() : EndLost();
    }
  }
  {
    // The client sees the end now, and not when the thread is joined.
    MutexLock lock(closing_mutex_);
    channel_ = wire::FrameChannel();
  }
  state_.reset();
}

void Session::Cut() {
  MutexLock lock(closing_mutex_);
  channel_.Shutdown();
}

int Session::TimeUntilNextLook() const {
  // Unread descriptors matter only while other sessions wait for some, so this check is rare.
  constexpr int kLookAtUnread = 1000;
  if (gone_since_) return 0;
  Clock::time_point next = Clock::time_point::max();
  if (retry_at_) next = std::min(next, *retry_at_);
  if (next_snapshot_look_ && !attesting_ && !close_request_) next = std::min(next, *next_snapshot_look_);
  const int at_most = fds_in_flight_ > 0 ? kLookAtUnread : -1;
  if (next == Clock::time_point::max()) return at_most;
  const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(next - Clock::now());
  return static_cast<int>(std::clamp<std::int64_t>(left.count() + 1, 0, at_most < 0 ? 60'000 : at_most));
}

void Session::WaitForWork(bool& readable, bool& woken) {
  pollfd polled[] = {{.fd = channel_.fd(), .events = POLLIN, .revents = 0},
                     {.fd = waker_->fd(), .events = POLLIN, .revents = 0}};
  ::poll(polled, std::size(polled), TimeUntilNextLook());
  turn_ = Clock::now();
  readable = polled[0].revents != 0;
  woken = polled[1].revents != 0;
}

void Session::Serve() {
  // A wake-up that came while the greeting waited was taken for one of its own.
  if (end_ == End::kNone) CheckRequests();
  while (end_ == End::kNone) {
    bool readable = false;
    bool woken = false;
    WaitForWork(readable, woken);
    if (woken) {
      waker_->Clear();
      CheckRequests();
      if (end_ == End::kNone) AnswerWaiting();
      SendTrims();
      SendReleases();
      SendSuspends();
      if (!gone_since_ && state_->process().IsGone()) gone_since_ = turn_;
    }
    const bool last_frames = readable && (!gone_since_ || turn_ - *gone_since_ < kLastFrames);
    if (end_ == End::kNone && last_frames) {
      HandleFrame();
    } else if (end_ == End::kNone && gone_since_) {
      end_ = End::kLost;
    }
    if (end_ == End::kNone) {
      Pump();
      CheckUnread();
      SendSnapshots();
    }
    if (end_ == End::kNone && close_request_) FinishClose();
  }
}

void Session::CheckRequests() {
  if (stop_.load()) {
    SayGoodbye(absl::UnavailableError("the daemon is stopping"));
    // The journal has the session's chunks, for the next daemon.
    end_ = services_.outlives_daemon && state_->lease() ? End::kLeft : End::kLost;
    return;
  }
  if (const absl::Status why = state_->end_request(); !why.ok()) {
    SayGoodbye(why);
    end_ = End::kLost;
  }
}

void Session::HandleFrame() {
  const absl::Status status = channel_.Receive(received_, wire::Channel::kAtOnce);
  if (absl::IsDeadlineExceeded(status)) return;
  if (!status.ok()) {
    if (absl::IsInvalidArgument(status)) {
      Break(status);
    } else {
      end_ = End::kLost;
    }
    return;
  }
  if (const auto* const attest = received_.frame.Get<wire::Attest>(); attesting_ && attest != nullptr) {
    if (received_.fds_cut) {
      SayGoodbye(absl::UnavailableError("lgpud may open no more files now (LimitNOFILE=); try again"));
      end_ = End::kLost;
      return;
    }
    HandleAttest(*attest, received_.fds);
    return;
  }
  if (const auto* const charges = received_.frame.Get<wire::ChargeAttest>();
      attesting_ && charges != nullptr && received_.fds.empty() && !received_.fds_cut) {
    HandleChargeAttest(*charges);
    return;
  }
  if (attesting_) {
    Break(absl::InvalidArgumentError("a resumed session attests its chunks before it sends another frame"));
    return;
  }
  unheard_ = false;
  if (!received_.fds.empty() || received_.fds_cut) {
    Break(absl::InvalidArgumentError("a frame came with descriptors that it must not have"));
    return;
  }
  if (close_request_) {
    Break(absl::InvalidArgumentError("a frame came after Close"));
    return;
  }
  if (received_.frame.acknowledges != 0) HandleAck(received_.frame.acknowledges);
  if (end_ == End::kNone) Dispatch(received_.frame);
}

void Session::Dispatch(const wire::Frame& frame) {
  const auto handle = [this, &frame]<typename Body>(void (Session::*handler)(const Body&)) {
    const Body* const body = frame.Get<Body>();
    if (body != nullptr) (this->*handler)(*body);
    return body != nullptr;
  };
  if (handle(&Session::HandleGrow) || handle(&Session::HandleWithdraw) || handle(&Session::HandleAttach) ||
      handle(&Session::HandleCharge) || handle(&Session::HandleUncharge) || handle(&Session::HandleReturn) ||
      handle(&Session::HandleTrimmed) || handle(&Session::HandleReleased) ||
      handle(&Session::HandleSuspended) || handle(&Session::HandleSnapshotPage) ||
      handle(&Session::HandleClose)) {
    return;
  }
  if (const auto* const ack = frame.Get<wire::Ack>()) {
    HandleAck(ack->grant_id);
  } else if (frame.Get<wire::Hello>() != nullptr) {
    Break(absl::InvalidArgumentError("Hello came twice"));
  } else {
    Break(absl::InvalidArgumentError(
        "a frame came without a body, with an unknown one, or with one that only the daemon sends"));
  }
}

bool Session::IsNewRequest(std::uint64_t id, std::string_view frame) {
  const auto is_same = [id](const auto& open) { return open.request_id == id; };
  if (id == 0 || std::any_of(waiting_.begin(), waiting_.end(), is_same) ||
      std::any_of(outgoing_.begin(), outgoing_.end(), is_same)) {
    Break(absl::InvalidArgumentError(
        absl::StrCat("request_id ", id, " of ", std::string(frame), " is zero or in use")));
    return false;
  }
  return true;
}

absl::Status Session::TooManyOpen() {
  return absl::ResourceExhaustedError(
      absl::StrCat(kMaxOpenGrows, " requests of this session are open already; wait for one of them"));
}

std::chrono::milliseconds Session::GrowTimeout(std::uint64_t timeout_ms) {
  return std::chrono::milliseconds(std::min<std::uint64_t>(
      timeout_ms, std::chrono::duration_cast<std::chrono::milliseconds>(kMaxGrowTimeout).count()));
}

void Session::HandleGrow(const wire::GrowRequest& request) {
  const std::uint64_t id = request.request_id;
  if (!IsNewRequest(id, "Grow")) return;
  if (waiting_.size() + outgoing_.size() >= kMaxOpenGrows) {
    Refuse(id, TooManyOpen());
    return;
  }
  const LogicalId device{request.device_id};
  Answer(id, device, turn_,
         services_.broker.Grow({.session = peer_.id,
                                .device = device,
                                .at_least = Bytes(request.at_least_bytes),
                                .wanted = Bytes(request.wanted_bytes),
                                .asked_at = turn_,
                                .deadline = turn_ + GrowTimeout(request.timeout_ms),
                                .ahead = request.ahead}));
}

void Session::Answer(std::uint64_t request_id, LogicalId device, Clock::time_point asked_at,
                     Broker::Answer answer) {
  if (!answer.status.ok()) {
    Refuse(request_id, answer.status, answer.ahead ? Growth::kAhead : Growth::kNeeded);
  } else if (answer.wait) {
    waiting_.push_back(
        {.request_id = request_id, .device = device, .grow = *answer.wait, .asked_at = asked_at});
  } else {
    outgoing_.push_back({.request_id = request_id,
                         .device = device,
                         .chunks = std::move(answer.chunks),
                         .asked_at = asked_at});
    Pump();
  }
}

void Session::AnswerWaiting() {
  std::deque<Waiting> waiting = std::exchange(waiting_, {});
  for (Waiting& entry : waiting) {
    if (end_ != End::kNone) return;
    std::optional<Broker::Answer> answer = services_.broker.TakeAnswer(entry.grow);
    if (!answer) {
      TellLongerWait(entry);
      waiting_.push_back(entry);
    } else if (entry.is_charge) {
      AnswerCharge(entry.request_id, entry.asked_at, *answer);
    } else {
      Answer(entry.request_id, entry.device, entry.asked_at, *std::move(answer));
    }
  }
}

// The broker wakes this thread, and AnswerWaiting answers it. One that waits no more is not there: its answer
// is on its way.
void Session::HandleWithdraw(const wire::Withdraw& withdraw) {
  const auto found = std::find_if(waiting_.begin(), waiting_.end(), [&](const Waiting& waiting) {
    return waiting.request_id == withdraw.request_id && !waiting.is_charge;
  });
  if (found != waiting_.end()) services_.broker.Withdraw(found->grow);
}

void Session::HandleReturn(const wire::ReturnRequest& request) {
  absl::Status status;
  std::vector<ChunkId> chunks;
  if (request.chunk_ids.empty() || request.chunk_ids.size() > wire::Protocol::kMaxReturnChunks) {
    status = absl::InvalidArgumentError(absl::StrCat("1 to ", wire::Protocol::kMaxReturnChunks,
                                                     " chunks go into one Return, not ",
                                                     request.chunk_ids.size()));
  }
  for (const std::uint64_t id : request.chunk_ids) {
    chunks.push_back(ChunkId{id});
    if (status.ok() && IsUndelivered(ChunkId{id})) {
      status = absl::InvalidArgumentError(absl::StrCat("chunk ", id, " was not received yet"));
    }
  }
  if (status.ok()) status = services_.broker.Return(peer_.id, LogicalId{request.device_id}, chunks);
  // A program that takes memory itself asks by such a frame for figures that have all it sent before.
  if (request.chunk_ids.empty()) {
    services_.broker.observer().SumUnused();
    services_.leases.WriteStats(*state_);
  }
  Send({.body = wire::ReturnReply{.request_id = request.request_id,
                                  .code = static_cast<int>(status.code()),
                                  .message = std::string(status.message())}});
}

void Session::HandleTrimmed(const wire::Trimmed& trimmed) {
  const absl::Status status =
      services_.broker.trims().Answer(peer_.id, TrimId{trimmed.trim_id}, trimmed.pending);
  if (!status.ok()) Break(status);
}

bool Session::IsUndelivered(ChunkId chunk) const {
  return std::any_of(outgoing_.begin(), outgoing_.end(), [chunk](const Outgoing& outgoing) {
    const std::span<const Chunk> rest = outgoing.rest();
    return std::any_of(rest.begin(), rest.end(), [chunk](const Chunk& entry) { return entry.id == chunk; });
  });
}

void Session::HandleClose(const wire::CloseRequest& request) {
  close_request_ = request.request_id;
  waiting_.clear();
  outgoing_.clear();
  services_.budget.Forget(peer_.id);
  services_.broker.ReturnAll(peer_.id);
}

void Session::FinishClose() {
  if (!services_.broker.Held(peer_.id).is_zero()) return;
  state_->StartDraining();
  state_->placements().WriterIsGone();
  services_.leases.DrainPlacements(*state_);
  services_.broker.RemoveSession(peer_.id);
  services_.leases.SessionGone(*state_);
  services_.sessions.Remove(peer_.id);
  end_ = End::kClosed;
  const wire::Frame frame{.body = wire::Closed{.request_id = *close_request_}};
  // A client that does not read it any more loses nothing.
  (void)channel_.Send(frame, {}, Clock::now() + kGoodbyeTimeout);
}

void Session::Break(const absl::Status& why) {
  Tell(v1::Event::KIND_PROTOCOL_ERROR, absl::StrCat("disconnected: ", std::string(why.message())));
  SayGoodbye(why);
  end_ = End::kLost;
}

void Session::SayGoodbye(const absl::Status& why) {
  const wire::Frame frame{
      .body = wire::Goodbye{.code = static_cast<int>(why.code()), .message = std::string(why.message())}};
  (void)channel_.SendLast(frame, Clock::now() + kGoodbyeTimeout);
}

void Session::EndLost() {
  state_->ClosePageFds();
  state_->StartDraining();
  if (!state_->lease()) {
    services_.broker.ReturnAll(peer_.id);
    services_.broker.RemoveSession(peer_.id);
    services_.sessions.Remove(peer_.id);
    return;
  }
  services_.broker.StartDraining(peer_.id);
  services_.leases.SessionLost(*state_);
  services_.reclaimer.Adopt(state_);
}

void Session::Tell(v1::Event::Kind kind, std::string text, const absl::Status* refused) {
  v1::Event event;
  event.set_kind(kind);
  event.set_session_id(peer_.id.value);
  event.set_pid(peer_.credentials.pid);
  if (refused != nullptr) {
    if (const std::optional<Refusal> refusal = GetRefusal(*refused)) {
      *event.mutable_refusal() = RefusalToProto(*refusal);
    }
  }
  if (state_ != nullptr) {
    const auto [id, name] = services_.leases.Names(state_->lease());
    event.set_lease_id(id);
    event.set_lease_name(name);
  }
  if (kind == v1::Event::KIND_PROTOCOL_ERROR) {
    if (const std::optional<std::uint64_t> kept_back = services_.log_limit.Next()) {
      spdlog::warn("session {} (pid {}, uid {}): {} ({} more such lines kept back)", peer_.id.value,
                   peer_.credentials.pid, peer_.credentials.uid, text, *kept_back);
    }
  }
  event.set_text(std::move(text));
  services_.events.Append(std::move(event), peer_.credentials.uid);
}

}  // namespace lgpu::daemon
