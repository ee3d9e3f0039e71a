#include "daemon/recovery/reclaimer.h"

#include <poll.h>

#include <algorithm>
#include <utility>

#include "allocator/broker/card_observer.h"
#include "lgpu/status.h"

namespace lgpu::daemon {
namespace {

// How often the backend is asked again about memory that it did not confirm.
constexpr std::chrono::milliseconds kUnconfirmedRetry{20};
// How often a session that is over is looked at for charged memory that is there still.
constexpr std::chrono::milliseconds kChargesRetry{500};
// The same where a driver lists a process that is gone: most do so for a moment.
constexpr std::chrono::milliseconds kListedRetry{50};

}  // namespace

absl::StatusOr<std::unique_ptr<Reclaimer>> Reclaimer::Start(Broker& broker, LeaseTable& leases,
                                                            SessionDirectory& sessions, Options options) {
  std::unique_ptr<Reclaimer> reclaimer(new Reclaimer(broker, leases, sessions, std::move(options)));
  LGPU_ASSIGN_OR_RETURN(reclaimer->thread_,
                        Thread::Start("lgpud-reclaim", [raw = reclaimer.get()] { raw->Run(); }));
  return reclaimer;
}

void Reclaimer::Watch(std::shared_ptr<SessionState> session) {
  if (!session->process().pidfd) return;
  {
    MutexLock lock(mutex_);
    // The session was absent and was resumed or ended meanwhile: it must not take the place of its successor.
    if (session->phase() == SessionState::Phase::kDraining) return;
    const SessionId id = session->id();
    watched_.insert_or_assign(id, std::move(session));
  }
  options_.waker->Wake();
}

void Reclaimer::Unwatch(const SessionState& session) {
  {
    MutexLock lock(mutex_);
    const auto found = watched_.find(session.id());
    if (found == watched_.end() || found->second.get() != &session) return;
    watched_.erase(found);
  }
  options_.waker->Wake();  // it lets go of the descriptor
}

void Reclaimer::TellGone(const std::vector<SessionId>& gone) {
  std::vector<std::shared_ptr<SessionState>> sessions;
  {
    MutexLock lock(mutex_);
    for (const SessionId id : gone) {
      if (auto session = watched_.extract(id); !session.empty()) {
        sessions.push_back(std::move(session.mapped()));
      }
    }
  }
  for (const std::shared_ptr<SessionState>& session : sessions) {
    EndAbsent(session, /*is_gone=*/true);
    session->waker()->Wake();
  }
}

void Reclaimer::EndAbsent(std::shared_ptr<SessionState> session, bool is_gone) {
  if (!session->LeaveAbsent()) return;
  Unwatch(*session);
  broker_.StartDraining(session->id());
  leases_.SessionLost(*session);
  {
    MutexLock lock(mutex_);
    const Clock::time_point now = Clock::now();
    adopted_.push_back({.session = std::move(session),
                        .grace_ends = is_gone ? now : now + options_.grace,
                        .is_gone = is_gone,
                        .was_absent = true});
  }
  options_.waker->Wake();
}

void Reclaimer::Adopt(std::shared_ptr<SessionState> session) {
  {
    MutexLock lock(mutex_);
    adopted_.push_back({.session = std::move(session), .grace_ends = Clock::now() + options_.grace});
  }
  options_.waker->Wake();
}

void Reclaimer::Stop() {
  {
    MutexLock lock(mutex_);
    stopping_ = true;
  }
  options_.waker->Wake();
  thread_.Join();
}

void Reclaimer::WaitForWork(const std::vector<Draining>& draining, bool unconfirmed) {
  std::vector<pollfd> polled{{.fd = options_.waker->fd(), .events = POLLIN, .revents = 0}};
  std::vector<std::shared_ptr<SessionState>> watched;  // keeps the descriptors open
  {
    MutexLock lock(mutex_);
    for (const auto& [id, session] : watched_) {
      polled.push_back({.fd = session->process().pidfd.get(), .events = POLLIN, .revents = 0});
      watched.push_back(session);
    }
  }
  std::optional<Clock::time_point> next;
  if (unconfirmed) next = Clock::now() + kUnconfirmedRetry;
  for (const Draining& entry : draining) {
    if (entry.look_in.count() > 0) {
      const Clock::time_point look = Clock::now() + entry.look_in;
      next = next ? std::min(*next, look) : look;
    }
    if (!entry.is_gone || !entry.is_over) {
      // A negative descriptor (no pidfd) is ignored by poll.
      polled.push_back({.fd = entry.session->process().pidfd.get(), .events = POLLIN, .revents = 0});
      const Clock::time_point look = entry.is_over ? Clock::now() + kChargesRetry : entry.grace_ends;
      next = next ? std::min(*next, look) : look;
    }
  }
  int timeout = -1;
  if (next) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(*next - Clock::now());
    timeout = static_cast<int>(std::max<std::int64_t>(left.count() + 1, 0));
  }
  ::poll(polled.data(), polled.size(), timeout);
  options_.waker->Clear();
  std::vector<SessionId> gone;
  for (std::size_t i = 0; i < watched.size(); ++i) {
    if (polled[i + 1].revents != 0) gone.push_back(watched[i]->id());
  }
  if (!gone.empty()) TellGone(gone);
}

void Reclaimer::Finish(std::vector<Draining>& draining, bool were_absent, bool stopping) {
  std::vector<SessionId> over;
  std::vector<SessionId> gone;
  for (Draining& entry : draining) {
    if (entry.was_absent != were_absent) continue;
    entry.is_gone = entry.is_gone || HasNoCharges(entry);
    entry.look_in = {};
    if (entry.is_gone && !stopping) {
      entry.look_in = IsListed(*entry.session)             ? kListedRetry
                      : StaysOpenElsewhere(*entry.session) ? kChargesRetry
                                                           : std::chrono::milliseconds();
    }
    if (entry.is_gone && entry.look_in.count() == 0) gone.push_back(entry.session->id());
    entry.is_over =
        entry.is_over || stopping || entry.session->process().IsGone() || Clock::now() >= entry.grace_ends;
    if (entry.is_over) over.push_back(entry.session->id());
  }
  for (const SessionId session : gone) broker_.LowerCharges(session, {});
  if (over.empty()) return;
  const std::vector<SessionId> empty = broker_.FinishDraining(over);
  std::erase_if(draining, [&](const Draining& entry) {
    if (std::find(empty.begin(), empty.end(), entry.session->id()) == empty.end()) return false;
    TakeOut(*entry.session);
    return true;
  });
}

bool Reclaimer::HasGrace(const Draining& entry) {
  return !entry.is_over && !entry.session->process().IsGone() && Clock::now() < entry.grace_ends;
}

bool Reclaimer::HasNoCharges(const Draining& entry) const {
  const Process& process = entry.session->process();
  if (process.IsGone()) return true;
  const bool has_grace = Clock::now() < entry.grace_ends;
  // A process that cannot be watched has the grace.
  return !has_grace && (!process.pidfd || broker_.ChargesOf(entry.session->id()).empty());
}

// A program that became another one (exec) has lost its page before its socket.
bool Reclaimer::FindUnmapped(std::vector<Draining>& draining) {
  std::vector<std::shared_ptr<SessionState>> living;
  for (const Draining& entry : draining) {
    if (!entry.is_gone && entry.session->process().pidfd && !entry.session->pages().empty() &&
        !broker_.ChargesOf(entry.session->id()).empty()) {
      living.push_back(entry.session);
    }
  }
  const std::map<SessionId, bool> maps = search_.Look(living);
  bool found = false;
  for (Draining& entry : draining) {
    const auto session = maps.find(entry.session->id());
    if (session == maps.end() || session->second) continue;
    entry.is_gone = found = true;
  }
  return found;
}

bool Reclaimer::IsListed(const SessionState& session) const {
  const Process& process = session.process();
  const absl::StatusOr<std::uint64_t> started = ProcessStartTime(process.pid);
  if (started.ok() && *started != process.start_time) return false;
  return broker_.observer().IsStillListed(session.id());
}

bool Reclaimer::StaysOpenElsewhere(const SessionState& session) const {
  if (!session.has_charge_words()) return false;
  std::map<std::string, Bytes> exported;
  for (const Broker::Charged& charge : broker_.ChargesOf(session.id())) {
    const Bytes bytes(session.client_page()->charges.cards[charge.index].exported.load());
    if (const Bytes part = std::min(bytes, charge.lent); !part.is_zero()) exported[charge.card_uuid] = part;
  }
  if (exported.empty()) return false;
  const std::vector<std::shared_ptr<SessionState>> all = sessions_.All();
  const bool is_open = std::any_of(all.begin(), all.end(), [&](const auto& other) {
    return other->id() != session.id() && other->lease() == session.lease() &&
           other->client_page()->imports.load() != 0 && !other->process().IsGone();
  });
  if (is_open) broker_.LowerCharges(session.id(), exported);
  return is_open;
}

void Reclaimer::TakeOut(SessionState& session) {
  session.placements().WriterIsGone();
  leases_.DrainPlacements(session);
  broker_.RemoveSession(session.id());
  leases_.SessionGone(session);
  sessions_.Remove(session.id());
}

void Reclaimer::Run() {
  std::vector<Draining> draining;
  while (true) {
    bool stopping = false;
    {
      MutexLock lock(mutex_);
      draining.insert(draining.end(), std::make_move_iterator(adopted_.begin()),
                      std::make_move_iterator(adopted_.end()));
      adopted_.clear();
      stopping = stopping_;
    }
    const bool confirmed = broker_.RetryUnconfirmed();
    for (const CardObserver::Unreturned& unreturned : broker_.observer().TakeUnreturned()) {
      if (const std::shared_ptr<SessionState> session = sessions_.Find(unreturned.session)) {
        leases_.TellOf(session->lease(), [&](const LeaseEvents& events, const Lease& lease) {
          events.Unreturned(lease, *session, unreturned.bytes);
        });
      }
    }
    const bool ends = stopping && std::none_of(draining.begin(), draining.end(), HasGrace);
    Finish(draining, /*were_absent=*/false, ends);
    Finish(draining, /*were_absent=*/true, ends);
    if (ends) return;
    // The last session may have lost its grace after `ends` was computed. No Wake comes for that.
    const bool has_work = FindUnmapped(draining) || (stopping && draining.empty());
    if (!has_work) WaitForWork(draining, !confirmed);
  }
}

}  // namespace lgpu::daemon
