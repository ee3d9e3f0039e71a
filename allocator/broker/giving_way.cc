#include "allocator/broker/giving_way.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"

namespace lgpu {
namespace {

using std::chrono::milliseconds;

LeaseKey LeaseOf(const BrokerTables& tables, const Waiter& waiter) {
  return waiter.spec.session ? tables.sessions.at(waiter.spec.session).lease : LeaseKey();
}

GivingWayView ViewOf(const BrokerTables& tables, LeaseKey lease, const Waiter& waiter) {
  if (waiter.guarantee) {
    const GuaranteeWish& wish = *waiter.guarantee;
    return {.lease = lease, .for_owner = waiter.user, .for_lease = wish.spec.lease_name, .for_pid = wish.pid};
  }
  return {.lease = lease,
          .for_owner = waiter.user,
          .for_lease = tables.devices.at(waiter.spec.device).spec.lease_name,
          .for_pid = tables.sessions.at(waiter.spec.session).pid};
}

}  // namespace

bool GivingWay::CanAnyGive() const {
  return !preemptible_.IsEmpty() || std::any_of(tables_.sessions.begin(), tables_.sessions.end(),
                                                [](const auto& entry) { return entry.second.runs_release; });
}

Bytes GivingWay::SurplusOf(LeaseKey lease, CardId card) const {
  Bytes sum;
  // A device that was removed holds what is leaving.
  for (const auto& [id, device] : tables_.devices) {
    if (device.spec.lease != lease || device.spec.card != card) continue;
    const Ledger::LogicalView view = tables_.ledger.View(id);
    sum += SaturatingSub(view.held(), view.guarantee);
  }
  return sum;
}

Bytes GivingWay::YieldOf(const Ask& ask) const {
  return ask.runner ? SurplusOf(ask.lease, ask.card) : preemptible_.YieldOf(ask.lease, ask.card);
}

Broker::TimePoint::duration GivingWay::CostOf(const Ask& ask) const {
  return (tables_.now() - ask.asked_at) * (ask.runner ? 1 : 2);  // a suspended lease comes back, too
}

ReleaseRecord* GivingWay::FindRecord(const Ask& ask) {
  if (!ask.runner) return tables_.FindPreempted(ask.lease);
  const auto runner = tables_.sessions.find(ask.runner);
  return runner == tables_.sessions.end() ? nullptr : &runner->second.release;
}

Waiter* GivingWay::HeadOf(const Ask& ask) const {
  const auto found = waiting_.waiters.find(ask.head);
  const bool waits = found != waiting_.waiters.end() && found->second.phase == Waiter::Phase::kCard;
  return waits ? &found->second : nullptr;
}

bool GivingWay::HasAsk(WaiterId head) const {
  return std::any_of(asks_.begin(), asks_.end(),
                     [head](const auto& entry) { return entry.second.head == head; });
}

void GivingWay::Close(WaiterId id, bool is_served) {
  if (is_served) askers_.Forgive(id);
  askers_.Settle();
}

bool GivingWay::HasHead(CardId card) const {
  return std::any_of(asks_.begin(), asks_.end(), [&](const auto& entry) {
    return entry.second.card == card && HeadOf(entry.second) != nullptr;
  });
}

void GivingWay::Collect(CardId card) {
  for (auto& [id, ask] : asks_) {
    if (ask.card != card) continue;
    ask.given = std::max(ask.given, SaturatingSub(ask.before, YieldOf(ask)));
    Waiter* const head = HeadOf(ask);
    if (head == nullptr) continue;
    // What was given may be free later: the card's report shows it.
    const Bytes free = RoundDown(tables_.ledger.View(card).free(), tables_.GranuleOf(card));
    const Bytes more = std::min({ask.given - ask.set_aside, free, admission_.NeedOf(*head)});
    if (more.is_zero()) continue;
    guarantees_.SetMoreAside(ask.head, *head, more);
    ask.set_aside += more;
  }
}

bool GivingWay::IsOver(const Ask& ask) const {
  if (HeadOf(ask) == nullptr && !ask.given.is_zero()) return true;
  if (!ask.runner) return tables_.now() >= ask.ends && !IsMoving(ask);
  const auto runner = tables_.sessions.find(ask.runner);
  const bool can_answer = runner != tables_.sessions.end() && runner->second.runs_release;
  return tables_.now() >= ask.ends || !can_answer;
}

bool GivingWay::IsMoving(const Ask& ask) const {
  // What moves itself is suspended in the account only when it has moved.
  const bool moves = tables_.suspensions.contains(ask.lease) || preemptible_.SuspendsItself(ask.lease);
  return !ask.runner && !ask.is_answered && moves;
}

void GivingWay::AwaitMove(Ask& ask) {
  if (ask.runner) return;
  const Broker::TimePoint now = tables_.now();
  // Its memory is on the way back.
  if (!preemptible_.Contains(ask.lease)) ask.ends = std::min(ask.ends, now + kSettle);
  Waiter* const head = HeadOf(ask);
  if (head == nullptr || !IsMoving(ask) || head->spec.deadline >= now + kSettle) return;
  head->WaitLonger(now + 2 * kSettle);
  waiting_.Wake(*head);
  waiting_.times_changed = true;
}

bool GivingWay::MoveOn(CardId card) {
  askers_.Settle();
  bool is_freed = false;
  for (auto ask = asks_.begin(); ask != asks_.end();) {
    const auto next = std::next(ask);
    if (ask->second.card == card) {
      AwaitMove(ask->second);
      if (IsOver(ask->second)) is_freed |= End(ask);
    }
    ask = next;
  }
  if (!HasHead(card)) AskNext(card);
  return is_freed;
}

bool GivingWay::End(Asks::iterator entry) {
  const Ask ask = entry->second;
  asks_.erase(entry);
  ++(ask.given.is_zero() ? counters_.in_vain : counters_.gave);
  counters_.bytes += ask.given;
  const Broker::TimePoint now = tables_.now();
  if (ReleaseRecord* const record = FindRecord(ask); record != nullptr && ask.counts) {
    if (!ask.is_answered && !ask.given.is_zero()) record->took = CostOf(ask);
    if (ask.given.is_zero()) {
      record->rests_until = now + kFirstRest * (1 << std::min(record->in_vain, 10));
      ++record->in_vain;
    } else {
      record->in_vain = 0;
    }
  }
  Waiter* const head = HeadOf(ask);
  if (ask.counts) {
    Note({.what = GivingWayNews::What::kGave,
          .lease = ask.lease,
          .bytes = ask.given,
          .took = now - ask.asked_at});
  }
  if (head == nullptr) return false;
  std::erase_if(head->asked_leases,
                [&ask](const AskedLease& before) { return before.lease == ask.lease; });  // of earlier times
  head->asked_leases.push_back(
      {.lease = ask.lease, .name = ask.name, .given = ask.given, .was_idle = ask.counts});
  if (HasAsk(ask.head)) return false;
  askers_.End(ask.head);
  // Nothing more comes for it: it waits as any other request.
  waiting_.times_changed = true;
  head->EndLongerWait();
  LetWait(*head);  // its own time may be over already
  return admission_.FreeAside(ask.head, *head);
}

bool GivingWay::LetWait(Waiter& waiter) {
  const bool may_wait = waiter.spec.session && waiter.phase == Waiter::Phase::kCard && waiter.is_patient &&
                        tables_.sessions.at(waiter.spec.session).waits_longer;
  if (!may_wait || !preemptible_.MayPreempt(waiter)) return false;
  const Bytes free = tables_.ledger.View(waiter.card).free() + tables_.ComingBack(waiter.card);
  const PreemptibleLeases::Later later = preemptible_.YieldLater(waiter);
  const Bytes lacking = SaturatingSub(admission_.NeedOf(waiter), free);
  if (lacking > later.likely) return false;
  const bool is_certain = lacking <= later.certain;
  const Broker::TimePoint until =
      (is_certain ? tables_.now() : waiter.spec.asked_at) + waiting_.give_way_wait;
  // Its program need not be told at each look.
  const milliseconds apart = is_certain ? waiting_.give_way_wait / 2 : milliseconds(0);
  if (until <= waiter.spec.deadline + apart) return true;
  waiter.WaitLonger(until);
  waiting_.Wake(waiter);
  waiting_.times_changed = true;
  return true;
}

bool GivingWay::WaitForLeases(CardId card) {
  if (waiting_.give_way_wait.count() == 0 || preemptible_.IsEmpty()) return false;
  bool are_any = false;
  for (const WaiterId id : waiting_.queues.at(card).Order()) {
    Waiter& waiter = waiting_.waiters.at(id);
    if (tables_.now() < waiter.spec.deadline) are_any |= LetWait(waiter);
  }
  return are_any;
}

bool GivingWay::MayBeHead(const Waiter& waiter) const {
  if (waiter.phase != Waiter::Phase::kCard || !waiter.is_patient || waiter.spec.ahead) return false;
  const Broker::TimePoint now = tables_.now();
  if (now >= waiter.spec.deadline || !askers_.MayAsk(waiter)) return false;
  if (waiter.guarantee) return waiter.guarantee->what == GuaranteeWish::For::kReservation;
  return tables_.sessions.at(waiter.spec.session).waits_longer &&
         (now < waiter.spec.asked_at + waiting_.give_way_wait || preemptible_.MayPreempt(waiter));
}

std::vector<WaiterId> GivingWay::HeadOrder(CardId card) const {
  std::vector<WaiterId> order = waiting_.queues.at(card).Order();
  const auto key = [this](WaiterId id) {
    const Waiter& waiter = waiting_.waiters.at(id);
    const auto last = last_head_.find(waiter.user);
    return std::pair(last == last_head_.end() ? Broker::TimePoint() : last->second, waiter.spec.asked_at);
  };
  std::stable_sort(order.begin(), order.end(), [&key](WaiterId a, WaiterId b) { return key(a) < key(b); });
  return order;
}

bool GivingWay::IsSureToBeServed(const Waiter& waiter, Bytes lacking) const {
  return preemptible_.MayPreempt(waiter) && lacking <= preemptible_.YieldLater(waiter).certain;
}

void GivingWay::AskNext(CardId card) {
  if (waiting_.give_way_wait.count() == 0 || waiting_.queues.at(card).empty() || !CanAnyGive()) return;
  const Bytes kept = admission_.KeptOn(card);
  for (const WaiterId id : HeadOrder(card)) {
    Waiter& waiter = waiting_.waiters.at(id);
    if (!MayBeHead(waiter)) continue;
    const Bytes wanted = admission_.FreeFor(waiter, kept);
    const Bytes lacking = SaturatingSub(wanted, tables_.ledger.View(card).free() + tables_.ComingBack(card));
    if (lacking.is_zero()) continue;
    const bool leaves_room = wanted > admission_.NeedOf(waiter);
    const std::vector<Candidate> chosen = Choose(CandidatesFor(waiter, leaves_room), lacking);
    if (chosen.empty() && IsSureToBeServed(waiter, lacking)) return;
    if (chosen.empty()) continue;
    // Idle chunks cost their holder less than a hook does.
    trims_.AskOnCard(waiter.need, card, waiter.spec.device, waiter.spec.session, lacking);
    if (trims_.IsHopeful(waiter.need, card, waiter.spec.device, waiter.spec.session)) return;
    AskLeases(id, waiter, chosen, lacking);
    return;
  }
}

void GivingWay::NoteUseOf(LeaseKey lease) {
  for (auto& [id, device] : tables_.devices) {
    if (device.spec.lease == lease) device.last_use = tables_.now();
  }
}

std::optional<Broker::TimePoint> GivingWay::LastUseOf(LeaseKey lease) const {
  for (const auto& [id, device] : tables_.devices) {
    if (device.spec.lease == lease && !device.removed) return device.last_use;
  }
  return std::nullopt;
}

Broker::TimePoint::duration GivingWay::IdleAfter(LeaseKey lease, const ReleaseRecord& record) const {
  for (const auto& [id, device] : tables_.devices) {
    const bool has_one = device.spec.lease == lease && device.idle_after.count() > 0;
    if (has_one) return std::max<Broker::TimePoint::duration>(kIdleAfter, device.idle_after);
  }
  return std::max<Broker::TimePoint::duration>(kIdleAfter, 2 * record.took);
}

bool GivingWay::LeaseWaits(LeaseKey lease) const {
  return std::any_of(tables_.sessions.begin(), tables_.sessions.end(), [lease](const auto& entry) {
    return entry.second.lease == lease && !entry.second.waiting.empty();
  });
}

bool GivingWay::IsAsked(LeaseKey lease) const {
  return std::any_of(asks_.begin(), asks_.end(),
                     [lease](const auto& entry) { return entry.second.lease == lease; });
}

std::optional<Broker::TimePoint> GivingWay::IdleSince(LeaseKey lease, const ReleaseRecord& record,
                                                      std::chrono::seconds least) const {
  const Broker::TimePoint now = tables_.now();
  if (now < record.rests_until) return std::nullopt;
  const std::optional<Broker::TimePoint> last_use = LastUseOf(lease);
  const auto idle_after = std::max<Broker::TimePoint::duration>(least, IdleAfter(lease, record));
  if (!last_use || now < *last_use + idle_after) return std::nullopt;
  return last_use;
}

bool GivingWay::HasWorkedEnough(LeaseKey lease, const ReleaseRecord& record) const {
  const Broker::TimePoint now = tables_.now();
  if (!preemptible_.GivesWayAtWork(lease) || now < record.rests_until) return false;
  return now >= record.runs_since + std::max<Broker::TimePoint::duration>(waiting_.min_run, 10 * record.took);
}

std::vector<GivingWay::Candidate> GivingWay::CandidatesFor(const Waiter& waiter, bool leaves_room) {
  std::vector<Candidate> candidates;
  const LeaseKey own = LeaseOf(tables_, waiter);
  for (const auto& [id, session] : tables_.sessions) {
    const LeaseKey lease = session.lease;
    if (!session.runs_release || !lease || lease == own) continue;
    const bool was_asked = std::any_of(waiter.asked_leases.begin(), waiter.asked_leases.end(),
                                       [lease](const AskedLease& asked) { return asked.lease == lease; });
    // Room is kept for what it frees, too.
    if (leaves_room && preemptible_.IsMovable(lease)) continue;
    if (was_asked || IsAsked(lease) || LeaseWaits(lease) || tables_.suspensions.contains(lease)) continue;
    const std::optional<Broker::TimePoint> last_use = IdleSince(lease, session.release, kIdleAfter);
    if (!last_use) continue;
    const Bytes surplus = SurplusOf(lease, waiter.card);
    if (surplus.is_zero()) continue;
    const auto other = std::find_if(candidates.begin(), candidates.end(),
                                    [lease](const Candidate& candidate) { return candidate.lease == lease; });
    if (other != candidates.end()) {  // the hooks of a lease take turns
      const ReleaseRecord& record = tables_.sessions.at(other->runner).release;
      if (session.release.asked_at < record.asked_at) other->runner = id;
      continue;
    }
    candidates.push_back(
        {.lease = lease, .runner = id, .yield = surplus, .at_work = false, .since = *last_use});
  }
  if (!preemptible_.MayPreempt(waiter)) return candidates;
  const auto is_there = [&candidates](LeaseKey lease) {
    return std::any_of(candidates.begin(), candidates.end(),
                       [lease](const Candidate& candidate) { return candidate.lease == lease; });
  };
  for (const LeaseKey lease : preemptible_.MovableNow()) {
    if (lease == own || IsAsked(lease) || is_there(lease) || tables_.suspensions.contains(lease)) continue;
    const ReleaseRecord& record = *tables_.FindPreempted(lease);
    const std::optional<Broker::TimePoint> last_use = IdleSince(lease, record, kIdleForSuspension);
    if (!last_use && !HasWorkedEnough(lease, record)) continue;
    const Bytes yield = preemptible_.YieldOf(lease, waiter.card);
    if (yield.is_zero()) continue;
    candidates.push_back({.lease = lease,
                          .runner = {},
                          .yield = yield,
                          .at_work = !last_use.has_value(),
                          .since = last_use.value_or(record.runs_since)});
  }
  return candidates;
}

std::vector<GivingWay::Candidate> GivingWay::Choose(std::vector<Candidate> candidates, Bytes lacking) {
  // A hook costs less than a suspension, and that of an idle lease less than that of one at work.
  std::stable_sort(candidates.begin(), candidates.end(), [](const Candidate& a, const Candidate& b) {
    return std::tuple(!a.runner, a.at_work, a.since) < std::tuple(!b.runner, b.at_work, b.since);
  });
  Bytes sum;
  std::size_t count = 0;
  for (; count < candidates.size() && sum < lacking; ++count) sum += candidates[count].yield;
  if (sum < lacking) return {};
  candidates.resize(count);
  for (std::size_t i = count; i-- > 0;) {
    if (sum - candidates[i].yield < lacking) continue;
    sum -= candidates[i].yield;
    candidates.erase(candidates.begin() + static_cast<std::ptrdiff_t>(i));
  }
  return candidates;
}

void GivingWay::AskLeases(WaiterId id, Waiter& waiter, const std::vector<Candidate>& chosen, Bytes lacking) {
  const Broker::TimePoint now = tables_.now();
  const bool from_now = waiter.guarantee || preemptible_.MayPreempt(waiter);
  const Broker::TimePoint ends = (from_now ? now : waiter.spec.asked_at) + waiting_.give_way_wait;
  for (const Candidate& candidate : chosen) {
    asks_.emplace(ReleaseId{++last_ask_}, Ask{.head = id,
                                              .card = waiter.card,
                                              .lease = candidate.lease,
                                              .name = tables_.NameOf(candidate.lease),
                                              .runner = candidate.runner,

                                              .at_work = candidate.at_work,
                                              .lacking = std::min(lacking, candidate.yield),
                                              .before = candidate.yield,
                                              .given = {},
                                              .set_aside = {},
                                              .asked_at = now,
                                              .ends = ends,
                                              .view = ViewOf(tables_, candidate.lease, waiter)});
    if (candidate.runner) {
      tables_.sessions.at(candidate.runner).release.asked_at = now;
      tables_.Wake(candidate.runner);
    } else {
      tables_.wakes.push_back(tables_.preempt_waker);
    }
  }
  counters_.asks += chosen.size();
  askers_.Begin(id, waiter);
  last_head_[waiter.user] = now;
  waiter.WaitLonger(ends);
  waiting_.Wake(waiter);
  waiting_.times_changed = true;
}

Broker::TimePoint GivingWay::NextChange(CardId card, Broker::TimePoint since) const {
  Broker::TimePoint next = Broker::TimePoint::max();
  for (const auto& [id, ask] : asks_) {
    if (ask.card != card) continue;
    // One whose programs are being moved when its time is over ends with the move.
    next = std::min(next, IsMoving(ask) ? std::max(ask.ends, since + kLookEvery) : ask.ends);
  }
  const bool looks = waiting_.give_way_wait.count() > 0 && !HasHead(card) && CanAnyGive();
  return looks ? std::min(next, since + kLookEvery) : next;
}

std::vector<ReleaseOrder> GivingWay::TakeOrders(SessionId session) {
  std::vector<ReleaseOrder> orders;
  const Broker::TimePoint now = tables_.now();
  for (auto& [id, ask] : asks_) {
    if (ask.runner != session || std::exchange(ask.is_sent, true)) continue;
    orders.push_back({.id = id,
                      .lease = ask.lease,
                      .bytes = ask.lacking,
                      .limit = std::chrono::duration_cast<std::chrono::milliseconds>(
                          std::max(ask.ends - now, Broker::TimePoint::duration::zero())),
                      .asker = ask.view.for_lease,
                      .asker_owner = ask.view.for_owner,
                      .at_work = ask.at_work});
  }
  return orders;
}

absl::StatusOr<std::optional<CardId>> GivingWay::Answer(SessionId session, ReleaseId id,
                                                        ReleaseOutcome outcome) {
  if (!id || id.value > last_ask_) {
    return absl::InvalidArgumentError(
        absl::StrCat("Released ", id.value, " answers nothing that this session was asked for"));
  }
  const auto found = asks_.find(id);
  if (found == asks_.end()) return std::nullopt;  // its time is over
  Ask& ask = found->second;
  if (ask.runner != session || !ask.is_sent) {
    return absl::InvalidArgumentError(absl::StrCat("Released ", id.value, " answers for another session"));
  }
  const Broker::TimePoint now = tables_.now();
  ask.is_answered = true;
  ask.counts = outcome != ReleaseOutcome::kNotIdle;
  if (ReleaseRecord* const record = FindRecord(ask); record != nullptr && outcome == ReleaseOutcome::kDone) {
    record->took = CostOf(ask);
  }
  // A hook is asked once for each request, a suspension as often as its lease is idle.
  if (outcome == ReleaseOutcome::kNotIdle && !ask.runner) NoteUseOf(ask.lease);
  ask.ends = std::min(ask.ends, outcome == ReleaseOutcome::kDone ? now + kSettle : now);
  waiting_.times_changed = true;
  return ask.card;
}

std::vector<GivingWayView> GivingWay::Views() const {
  std::vector<GivingWayView> views;
  for (const auto& [id, ask] : asks_) {
    if (!ask.is_answered) views.push_back(ask.view);
  }
  return views;
}

GivingWayCounters GivingWay::counters() const {
  GivingWayCounters counters = counters_;
  counters.waited = askers_.waited();
  return counters;
}

std::vector<GivingWayNews> GivingWay::TakeNews() { return std::exchange(waiting_.news, {}); }

}  // namespace lgpu
