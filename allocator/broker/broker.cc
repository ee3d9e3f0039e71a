#include "allocator/broker/broker.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "lgpu/status.h"

namespace lgpu {
namespace {

using Clock = std::chrono::steady_clock;

}  // namespace

absl::StatusOr<std::unique_ptr<Broker>> Broker::Create(DeviceMemory& backend, GrantLog& log,
                                                       const Options& options) {
  std::unique_ptr<Broker> broker(new Broker(backend, log, options));
  MutexLock lock(broker->mutex_);
  for (const BrokerCard& card : options.cards) {
    LGPU_ASSIGN_OR_RETURN(const CardId id, broker->ledger_.AddCard({.total = card.device.total,
                                                                    .reserve = options.reserve,
                                                                    .granularity = card.device.granularity}));
    broker->cards_.emplace(id, card);
  }
  return broker;
}

Broker::~Broker() {
  // Nothing waits for what is not confirmed: the process ends, and its references with it.
  MutexLock lock(mutex_);
  for (const auto& [id, chunk] : chunks_) {
    if (chunk.reference_gone || chunk.lost) {
      continue;
    }
    if (chunk.state == ChunkState::kGranted) {
      backend_.Release(chunk.memory).IgnoreError();
    } else {
      backend_.Reclaim(chunk.memory).IgnoreError();
    }
  }
}

void Broker::WakeAll(const Wakes& wakes) {
  for (const std::shared_ptr<Waker>& waker : wakes) {
    if (waker != nullptr) {
      waker->Wake();
    }
  }
}

absl::Status Broker::CheckGrow(const GrowSpec& spec) const {
  const auto session = sessions_.find(spec.session);
  const auto device = devices_.find(spec.device);
  if (session == sessions_.end() || !session->second.lease) {
    return absl::FailedPreconditionError(
        "memory was asked for before the session was attached to a lease; call CreateLease or AttachLease "
        "with the session's token first");
  }
  if (device == devices_.end() || device->second.spec.lease != session->second.lease) {
    return absl::NotFoundError(absl::StrCat("logical device ", spec.device.value,
                                            " is not of this session's lease; ask for an id that the lease "
                                            "names"));
  }
  if (spec.at_least.is_zero()) {
    return absl::InvalidArgumentError("zero bytes were asked for; ask for at least one granule of 2MiB");
  }
  return CheckReturned(session->second);
}

Broker::GrowAnswer Broker::Grow(const GrowSpec& spec) {
  GrowAnswer answer;
  Wakes wakes;
  GrowId id;
  Waiter mine;
  std::optional<Making> making;
  {
    MutexLock lock(mutex_);
    answer.status = CheckGrow(spec);
    if (!answer.status.ok()) {
      return answer;
    }
    id = GrowId{++last_grow_};
    const CardId card = devices_.at(spec.device).spec.card;
    const Bytes granularity = cards_.at(card).device.granularity;
    mine.spec = spec;
    mine.spec.at_least = RoundUp(spec.at_least, granularity);
    mine.spec.wanted = std::max(mine.spec.at_least, RoundUp(spec.wanted, granularity));
    making = Place(id, mine, answer, wakes);
  }
  WakeAll(wakes);
  return Logged(making ? Make(id, std::move(mine), *making) : std::move(answer));
}

std::optional<Broker::Making> Broker::Place(GrowId id, Waiter& mine, GrowAnswer& answer, Wakes& wakes) {
  Charge(id, mine, wakes);
  if (IsQueued(mine)) {
    const CardId card = devices_.at(mine.spec.device).spec.card;
    Park(id, std::move(mine));
    BreakDeadlock(card, wakes);
    if (!TakeIfSettled(id, mine, answer, wakes)) {
      return std::nullopt;
    }
  }
  return Conclude(mine, answer);
}

Broker::GrowAnswer Broker::Continue(GrowId id) {
  GrowAnswer answer;
  Wakes wakes;
  Waiter mine;
  std::optional<Making> making;
  {
    MutexLock lock(mutex_);
    if (!waiters_.contains(id)) {
      answer.status = absl::FailedPreconditionError("the session has ended");
      return answer;
    }
    if (TakeIfSettled(id, mine, answer, wakes)) {
      making = Conclude(mine, answer);
    }
  }
  WakeAll(wakes);
  return Logged(making ? Make(id, std::move(mine), *making) : std::move(answer));
}

void Broker::Park(GrowId id, Waiter waiter) {
  sessions_.at(waiter.spec.session).waiting.insert(id);
  waiters_.emplace(id, std::move(waiter));
}

void Broker::BreakDeadlock(CardId card, Wakes& wakes) {
  if (RefuseDeadlock(card, wakes)) {
    Serve(card, wakes);
  }
}

bool Broker::TakeIfSettled(GrowId id, Waiter& mine, GrowAnswer& answer, Wakes& wakes) {
  Waiter& waiter = waiters_.at(id);
  const CardId card = devices_.at(waiter.spec.device).spec.card;
  const TimePoint now = Clock::now();
  if (waiter.phase == Waiter::Phase::kBackend && !IsPutOff(waiter, now)) {
    waiter.phase = Waiter::Phase::kNew;
    Charge(id, waiter, wakes);
    if (waiter.phase == Waiter::Phase::kCard) {
      BreakDeadlock(card, wakes);
    }
  }
  if (IsQueued(waiter) && now < waiter.spec.deadline) {
    LookForIdle(id, waiter, wakes);
  }
  const bool late = now >= waiter.spec.deadline;
  if (IsQueued(waiter) && late && !IsBeingMade(waiter)) {
    const bool card_is_short = waiter.phase == Waiter::Phase::kCard;
    LeaveQueues(id, waiter);
    Refuse(waiter, {.reason = card_is_short ? RefusalReason::kCard : RefusalReason::kLimit});
    Serve(card, wakes);
  }
  if (IsPutOff(waiter, now)) {
    answer.wait = id;
    answer.next_look = std::min(waiter.spec.deadline, waiter.retry_at);
    return false;
  }
  if (IsQueued(waiter)) {
    const TimePoint last = late ? now + kBackendRetry : waiter.spec.deadline;
    answer.wait = id;
    answer.next_look = late || waiter.need.round == 0 ? last : std::min(last, waiter.need.look_again);
    return false;
  }
  mine = std::move(waiter);
  Forget(id);
  return true;
}

void Broker::LookForIdle(GrowId id, Waiter& waiter, Wakes& wakes) {
  if (waiter.need.round == 0 || Clock::now() < waiter.need.look_again) {
    return;
  }
  const CardId card = devices_.at(waiter.spec.device).spec.card;
  if (waiter.phase == Waiter::Phase::kLimit) {
    LeaveQueues(id, waiter);
    Charge(id, waiter, wakes);
  }
  if (waiter.phase == Waiter::Phase::kCard) {
    BreakDeadlock(card, wakes);
  }
  // Where nothing had to be asked, because what is missing is on its way.
  waiter.need.look_again = std::max(waiter.need.look_again, Clock::now() + TrimTable::kPatience);
}

std::optional<Broker::Making> Broker::Conclude(Waiter& mine, GrowAnswer& answer) {
  if (mine.phase == Waiter::Phase::kCharged) {
    const Device& device = devices_.at(mine.spec.device);
    // What is wanted beyond the need is to lie in chunks of its own: it may have to go again.
    Making making{.sizes = CutIntoChunks(device, mine.spec.at_least),
                  .backend_device = cards_.at(device.spec.card).backend_device};
    const std::vector<Bytes> more = CutIntoChunks(device, mine.charged - mine.spec.at_least);
    making.sizes.insert(making.sizes.end(), more.begin(), more.end());
    return making;
  }
  if (mine.phase == Waiter::Phase::kTooLarge || mine.phase == Waiter::Phase::kMissing) {
    return Making();
  }
  answer.ahead = mine.spec.ahead;
  answer.status = std::move(mine.refusal);
  answer.chunks = std::move(mine.taken);
  if (answer.status.ok()) {
    ++counters_.grants;
  } else if (!mine.spec.ahead) {
    ++counters_.refusals;
  }
  return std::nullopt;
}

bool Broker::IsQueued(const Waiter& waiter) {
  return waiter.phase == Waiter::Phase::kLimit || waiter.phase == Waiter::Phase::kCard;
}

bool Broker::IsPutOff(const Waiter& waiter, TimePoint now) {
  return waiter.phase == Waiter::Phase::kBackend && now < std::min(waiter.retry_at, waiter.spec.deadline);
}

void Broker::Forget(GrowId id) {
  const auto found = waiters_.find(id);
  sessions_.at(found->second.spec.session).waiting.erase(id);
  waiters_.erase(found);
}

void Broker::Charge(GrowId id, Waiter& waiter, Wakes& wakes) {
  const Device& device = devices_.at(waiter.spec.device);
  if (device.removed) {
    waiter.phase = Waiter::Phase::kRefused;
    waiter.refusal = absl::FailedPreconditionError(
        absl::StrCat("lease ", device.spec.lease_name, " has ended; create another one"));
  } else if (device.spec.preallocate) {
    TakeSpare(id, waiter, wakes);
  } else {
    ChargeLedger(id, waiter, wakes);
  }
}

void Broker::ChargeLedger(GrowId id, Waiter& waiter, Wakes& wakes) {
  Device& device = devices_.at(waiter.spec.device);
  const Bytes at_least = waiter.spec.at_least;
  const Bytes limit =
      RoundUp(ledger_.View(waiter.spec.device).limit, cards_.at(device.spec.card).device.granularity);
  if (at_least > limit) {
    Refuse(waiter, {.reason = RefusalReason::kLimit});
    return;
  }
  // Memory being freed for waiters is not spent on growth ahead of need.
  if (waiter.spec.ahead && (!device.limit_waiters.empty() || making_room_.contains(device.spec.card))) {
    Refuse(waiter, {.reason = RefusalReason::kLimit});
    return;
  }
  Bytes charged = std::min(waiter.spec.wanted, limit);
  Ledger::Verdict verdict = ledger_.Request(waiter.spec.device, charged);
  if (verdict.shortage != Ledger::Shortage::kNone && charged > at_least) {
    charged = at_least;
    verdict = ledger_.Request(waiter.spec.device, charged);
  }
  const auto in_time = [&] { return Clock::now() < waiter.spec.deadline; };
  switch (verdict.shortage) {
    case Ledger::Shortage::kNone:
      waiter.phase = Waiter::Phase::kCharged;
      waiter.charged = charged;
      device.charged += charged;
      return;
    case Ledger::Shortage::kLimit:
      if ((in_time() && verdict.coming_back >= verdict.short_by) ||
          (MayAsk(waiter) &&
           AskUnderLimit(waiter, SaturatingSub(verdict.short_by, verdict.coming_back), wakes))) {
        waiter.phase = Waiter::Phase::kLimit;
        device.limit_waiters.push_back(id);
      } else {
        Refuse(waiter, {.reason = RefusalReason::kLimit});
      }
      return;
    case Ledger::Shortage::kCard:
      if (!verdict.hopeless && (in_time() || (OthersMayHelp(waiter) && MayAsk(waiter)))) {
        waiter.phase = Waiter::Phase::kCard;
        waiter.need = {};  // of others than under the limit
        waiter.queued = ledger_.Enqueue(waiter.spec.device, at_least);
        queued_.emplace(waiter.queued, id);
      } else {
        Refuse(waiter, {.reason = RefusalReason::kCard});
      }
      return;
  }
}

void Broker::LeaveQueues(GrowId id, Waiter& waiter) {
  Device& device = devices_.at(waiter.spec.device);
  switch (waiter.phase) {
    case Waiter::Phase::kCard:
      ledger_.Leave(waiter.queued);
      queued_.erase(waiter.queued);
      break;
    case Waiter::Phase::kLimit:
      std::erase(device.limit_waiters, id);
      break;
    case Waiter::Phase::kCharged:
    case Waiter::Phase::kMissing:
      ledger_.Refund(waiter.spec.device, waiter.charged);
      device.charged -= waiter.charged;
      waiter.charged = Bytes();
      break;
    case Waiter::Phase::kNew:
    case Waiter::Phase::kBackend:
    case Waiter::Phase::kTaken:
    case Waiter::Phase::kTooLarge:
    case Waiter::Phase::kRefused:
      break;
  }
  waiter.phase = Waiter::Phase::kNew;
}

void Broker::DropWaiters(SessionId session, Wakes& wakes) {
  std::set<CardId> touched;
  const std::set<GrowId> waiting = sessions_.at(session).waiting;
  for (const GrowId id : waiting) {
    Waiter& waiter = waiters_.at(id);
    touched.insert(devices_.at(waiter.spec.device).spec.card);
    if (waiter.phase == Waiter::Phase::kTooLarge && unconfirmed_.insert(waiter.too_large).second) {
      wakes.push_back(unconfirmed_waker_);  // it is leaving, and who was to free it is gone
    }
    LeaveQueues(id, waiter);
    Forget(id);
  }
  for (const CardId card : touched) {
    Serve(card, wakes);
  }
}

// Sessions, not logical devices, decide: another session of a waiting one's lease may still return memory.
std::optional<GrowId> Broker::DeadlockVictim(CardId card) const {
  std::map<SessionId, GrowId> youngest;  // of each session that waits for the card
  for (const auto& [queued, id] : queued_) {
    const GrowSpec& spec = waiters_.at(id).spec;
    if (devices_.at(spec.device).spec.card == card) {
      youngest[spec.session] = id;
    }
  }
  if (youngest.empty() || !Leaving(card).is_zero() || CardIsHopeful(card)) {
    return std::nullopt;
  }
  std::optional<GrowId> victim;
  for (const LogicalId logical : ledger_.LogicalsOf(card)) {
    const Device& device = devices_.at(logical);
    // What is charged is about to be somebody's who does not wait. (Spare chunks are nobody's.)
    if (!device.charged.is_zero()) {
      return std::nullopt;
    }
    for (const auto& [session, held] : device.held_by) {
      const auto waits = youngest.find(session);
      if (waits == youngest.end()) {
        return std::nullopt;
      }
      victim = std::max(victim, std::optional(waits->second));
    }
  }
  return victim;
}

bool Broker::RefuseDeadlock(CardId card, Wakes& wakes) {
  AskForCard(card, wakes);
  if (RefuseInGrace(card, wakes)) {
    return true;
  }
  const std::optional<GrowId> victim = DeadlockVictim(card);
  if (!victim) {
    return false;
  }
  Waiter& waiter = waiters_.at(*victim);
  LeaveQueues(*victim, waiter);
  Refuse(waiter, {.reason = RefusalReason::kDeadlock});
  wakes.push_back(sessions_.at(waiter.spec.session).waker);
  return true;
}

void Broker::Serve(CardId card, Wakes& wakes) {
  do {
    const Ledger::Served served = ledger_.ServeQueue(card);
    for (const WaiterId queued : served.granted) {
      Waiter& waiter = waiters_.at(queued_.at(queued));
      queued_.erase(queued);
      waiter.phase = Waiter::Phase::kCharged;
      waiter.charged = waiter.spec.at_least;
      devices_.at(waiter.spec.device).charged += waiter.charged;
      wakes.push_back(sessions_.at(waiter.spec.session).waker);
    }
    for (const WaiterId queued : served.failed) {
      const GrowId id = queued_.at(queued);
      Waiter& waiter = waiters_.at(id);
      queued_.erase(queued);
      waiter.phase = Waiter::Phase::kNew;
      Charge(id, waiter, wakes);
      wakes.push_back(sessions_.at(waiter.spec.session).waker);
    }
    for (const LogicalId logical : ledger_.LogicalsOf(card)) {
      std::deque<GrowId> waiting = std::exchange(devices_.at(logical).limit_waiters, {});
      for (const GrowId id : waiting) {
        Waiter& waiter = waiters_.at(id);
        const TimePoint before = waiter.need.look_again;
        Charge(id, waiter, wakes);
        if (waiter.phase != Waiter::Phase::kLimit || waiter.need.look_again != before) {
          wakes.push_back(sessions_.at(waiter.spec.session).waker);
        }
      }
    }
  } while (RefuseDeadlock(card, wakes));
  freed_.NotifyAll();
}

void Broker::Refuse(Waiter& waiter, RefusalCause cause) {
  if (waiter.spec.ahead) {
    waiter.phase = Waiter::Phase::kRefused;
    waiter.refusal = absl::ResourceExhaustedError("no memory is free for growing ahead");
    return;
  }
  cause.asked = waiter.spec.at_least;
  const TimePoint now = Clock::now();
  const auto waited = std::chrono::duration_cast<std::chrono::milliseconds>(now - waiter.spec.asked_at);
  if (waited.count() > 0) {
    cause.waited = waited;
  }
  waiter.phase = Waiter::Phase::kRefused;
  waiter.refusal = RefusalStatus(MakeRefusal(devices_.at(waiter.spec.device), waiter.spec.device, cause));
}

}  // namespace lgpu
