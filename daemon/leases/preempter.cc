#include "daemon/leases/preempter.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "allocator/broker/giving_way.h"
#include "allocator/broker/lease_suspensions.h"
#include "allocator/broker/session_releases.h"
#include "daemon/leases/lease_idle.h"
#include "daemon/sessions/session_use.h"
#include "lgpu/status.h"

namespace lgpu::daemon {
namespace {

// How soon the use of a program that is away is seen.
constexpr std::chrono::milliseconds kUseLook{100};
constexpr std::chrono::seconds kRetry{1};
// So long the room that one GPU has for a lease is kept while it waits for another GPU.
constexpr std::chrono::minutes kKept{1};
// The broker knows the last use by another clock, which it read a little earlier.
constexpr std::chrono::milliseconds kDiffer{100};
// For programs that come back to a new lgpud.
constexpr std::chrono::seconds kComingBack{2};

/// Nobody learns the names of another user's leases.
std::string ForWhom(const ReleaseOrder& order, const Lease& lease) {
  if (order.asker_owner != lease.owner.name) return "another user";
  return order.asker.empty() ? "another program" : "lease " + order.asker;
}

std::int64_t SecondsOf(UseTime time) {
  return std::chrono::duration_cast<std::chrono::seconds>(time).count();
}

}  // namespace

absl::StatusOr<std::unique_ptr<Preempter>> Preempter::Start(Broker& broker, LeaseTable& leases,
                                                            SessionDirectory& sessions,
                                                            LeaseSuspender& suspender,
                                                            std::shared_ptr<ThreadWaker> waker) {
  std::unique_ptr<Preempter> preempter(new Preempter(broker, leases, sessions, suspender, std::move(waker)));
  LGPU_ASSIGN_OR_RETURN(preempter->thread_,
                        Thread::Start("lgpud-preempt", [raw = preempter.get()] { raw->Run(); }));
  return preempter;
}

void Preempter::Stop() {
  is_stopping_ = true;
  waker_->Wake();
  thread_.Join();
}

void Preempter::Run() {
  while (!is_stopping_) {
    moves_.remove_if([](const Move& move) { return move.is_over.load(); });
    for (const ReleaseOrder& order : broker_.releases().TakeOrders(SessionId())) Follow(order);
    const bool are_away = BringBack();
    waker_->WaitUntil(are_away ? Clock::now() + kUseLook : Clock::time_point::max());
  }
  moves_.clear();  // joins their threads
}

bool Preempter::StartMove(LeaseKey lease, const std::function<void()>& body) {
  Move& move = moves_.emplace_back();
  move.lease = lease;
  absl::StatusOr<Thread> thread = Thread::Start("lgpud-move", [this, &move, body] {
    body();
    move.is_over = true;
    waker_->Wake();
  });
  if (!thread.ok()) {
    moves_.pop_back();
    return false;
  }
  move.thread = *std::move(thread);
  return true;
}

bool Preempter::IsMoved(LeaseKey lease) const {
  return std::any_of(moves_.begin(), moves_.end(), [lease](const Move& move) { return move.lease == lease; });
}

void Preempter::Follow(const ReleaseOrder& order) {
  const auto answer = [this, order](ReleaseOutcome outcome) {
    broker_.releases().Answer(SessionId(), order.id, outcome).IgnoreError();  // its time may be over
  };
  const bool is_started = StartMove(order.lease, [this, order, answer] { answer(Suspend(order)); });
  if (!is_started) answer(ReleaseOutcome::kFailed);
}

ReleaseOutcome Preempter::Suspend(const ReleaseOrder& order) {
  const std::optional<Lease> lease = Find(order.lease);
  if (!lease) return ReleaseOutcome::kFailed;
  // From here on its programs note each use with this tick or a later one.
  const std::uint64_t tick = TickAt(UseTimeNow());
  for (const SessionId id : lease->live) {
    if (const std::shared_ptr<SessionState> session = sessions_.Find(id)) session->WriteTick(tick);
  }
  const std::optional<UseTime> last = LastUse(*lease, sessions_);
  const UseTime idle = last ? UseTimeNow() - *last : UseTime(0);
  const bool is_idle =
      last && idle + kDiffer >= std::max<UseTime>(LeastIdle(*lease), GivingWay::kIdleForSuspension);
  if (!order.at_work && !is_idle) return ReleaseOutcome::kNotIdle;
  leases_.TellOf(order.lease, [&](const LeaseEvents& events, const Lease& found) {
    events.AskedToGiveWay(
        found, absl::StrCat("asked to give way for ", ForWhom(order, found), ", which lacks ",
                            FormatBytes(order.bytes), ": ",
                            order.at_work ? std::string("its turn at work is over")
                                          : absl::StrCat("it has been idle for ", SecondsOf(idle), "s")));
  });
  // One that was at work wants to go on at once.
  const bool works = !last || idle < GivingWay::kIdleForSuspension;
  const UseTime since = works ? UseTime(1) : TimeOfTick(tick);
  const auto suspended = suspender_.Suspend(Caller{}, lease->id, since);
  return suspended.ok() ? ReleaseOutcome::kDone : ReleaseOutcome::kFailed;
}

bool Preempter::BringBack() {
  const std::vector<Lease> preempted = leases_.Preempted();
  std::erase_if(away_, [&](const auto& entry) {
    return !IsMoved(entry.first) && std::none_of(preempted.begin(), preempted.end(), [&](const Lease& lease) {
      return lease.key == entry.first;
    });
  });
  const Clock::time_point now = Clock::now();
  for (const Lease& lease : preempted) {
    if (IsMoved(lease.key)) continue;
    Away& away = away_[lease.key];
    if (now < std::max(away.retry_at, started_ + kComingBack)) continue;
    const bool wants_gpu = WantsGpu(lease);
    if (!wants_gpu && HasRoom(lease)) {
      if (!away.room_since) away.room_since = now;
    } else {
      away.room_since.reset();
    }
    const bool returns = wants_gpu || (away.room_since && now >= *away.room_since + kRoomFor);
    if (!returns) continue;
    const bool is_on_several = broker_.suspensions().NeedOf(lease.key).size() > 1;
    const Clock::time_point longest = is_on_several ? now + kKept : Clock::time_point::max();
    const Clock::time_point deadline = wants_gpu ? longest : now;
    if (!StartMove(lease.key, [this, lease, &away, deadline] { Return(lease, away, deadline); })) {
      away.retry_at = now + kRetry;
    }
  }
  return !preempted.empty();
}

void Preempter::Return(const Lease& lease, Away& away, Clock::time_point deadline) {
  const auto is_over = [this, &lease] {
    const std::optional<Lease> now = Find(lease.key);
    const auto suspension = broker_.suspensions().Find(lease.key);
    return is_stopping_ || !now || !now->suspended || !suspension || !suspension->has_programs;
  };
  const auto resumed = suspender_.Resume(Caller{}, lease.id, deadline, is_over);
  away.retry_at = Clock::now() + kRetry;
  away.room_since.reset();
  if (resumed.ok() || absl::IsUnavailable(resumed.status()) || is_over()) return;
  if (const auto now = Find(lease.key); now && now->suspended && !now->suspended->failed().empty()) return;
  std::string why(resumed.status().message());
  if (why == away.told) return;
  leases_.TellOf(lease.key, [&](const LeaseEvents& events, const Lease& found) {
    events.Suspended(found, absl::StrCat("is not resumed yet: ", why));
  });
  away.told = std::move(why);
}

bool Preempter::WantsGpu(const Lease& lease) const {
  const std::optional<UseTime> last = LastUse(lease, sessions_);
  if (!last || *last >= UseTime(lease.suspended->preempted_at_boottime_ns())) return true;
  const auto suspension = broker_.suspensions().Find(lease.key);
  return suspension && suspension->has_requests;
}

bool Preempter::HasRoom(const Lease& lease) const {
  const std::map<CardId, Bytes> need = broker_.suspensions().NeedOf(lease.key);
  const std::vector<Broker::CardInfo> cards = broker_.Cards();
  return std::all_of(cards.begin(), cards.end(), [&](const Broker::CardInfo& card) {
    const auto found = need.find(card.id);
    const bool is_waited_for =
        std::any_of(card.queue.begin(), card.queue.end(),
                    [](const Broker::Queued& queued) { return !queued.waits_for_kept; });
    return found == need.end() || (!is_waited_for && found->second <= card.view.free());
  });
}

std::optional<Lease> Preempter::Find(LeaseKey key) const {
  std::optional<Lease> found;
  leases_.TellOf(key, [&found](const LeaseEvents&, const Lease& lease) { found = lease; });
  return found;
}

}  // namespace lgpu::daemon
