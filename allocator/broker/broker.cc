#include "allocator/broker/broker.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "allocator/broker/chunk_sizes.h"
#include "base/check.h"
#include "lgpu/status.h"

namespace lgpu {
absl::StatusOr<std::unique_ptr<Broker>> Broker::Create(DeviceMemory& backend, GrantLog& log,
                                                       const Options& options) {
  std::unique_ptr<Broker> broker(new Broker(backend, log, options));
  MutexLock lock(broker->mutex_);
  for (const BrokerCard& card : options.cards) {
    LGPU_ASSIGN_OR_RETURN(const CardId id, broker->ledger_.AddCard({.total = card.device.total,
                                                                    .reserve = options.reserve,
                                                                    .granularity = card.device.granularity}));
    broker->cards_.emplace(id, card);
    broker->queues_.emplace(id, CardQueue(options.max_drain));
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
  return CheckMayGrow(session->second);
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
    id = GrowId{++last_waiter_};
    const CardId card = devices_.at(spec.device).spec.card;
    if (queues_.at(card).IsTurnOver(now_())) {
      Serve(card, wakes);
    }
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
    const bool waits_for_card = mine.phase == Waiter::Phase::kCard;
    Park(id, std::move(mine));
    if (waits_for_card) {
      Serve(card, wakes);
    }
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
  answer = making ? Make(id, std::move(mine), *making) : LoggedCharge(std::move(answer));
  return Logged(std::move(answer));
}

void Broker::Park(GrowId id, Waiter waiter) {
  sessions_.at(waiter.spec.session).waiting.insert(id);
  waiters_.emplace(id, std::move(waiter));
}

bool Broker::TakeIfSettled(GrowId id, Waiter& mine, GrowAnswer& answer, Wakes& wakes) {
  Waiter& waiter = waiters_.at(id);
  const CardId card = devices_.at(waiter.spec.device).spec.card;
  const TimePoint now = now_();
  if (waiter.phase == Waiter::Phase::kBackend && !IsPutOff(waiter, now)) {
    waiter.phase = Waiter::Phase::kNew;
    Charge(id, waiter, wakes);
    if (waiter.phase == Waiter::Phase::kCard) {
      Serve(card, wakes);
    }
  }
  if (waiter.phase == Waiter::Phase::kLimit && now < waiter.spec.deadline) {
    LookForIdle(id, waiter, wakes);
  }
  if (waiter.phase == Waiter::Phase::kCard && now >= waiter.next_look) {
    Serve(card, wakes);
  }
  const bool late = now >= waiter.spec.deadline;
  if (IsQueued(waiter) && late && !IsBeingMade(waiter)) {
    RefuseLate(id, waiter);
    Serve(card, wakes);
  }
  if (IsPutOff(waiter, now)) {
    answer.wait = id;
    answer.next_look = std::min(waiter.spec.deadline, waiter.retry_at);
    return false;
  }
  if (IsQueued(waiter)) {
    waiter.next_look = NextLook(id, waiter, now);
    answer.wait = id;
    answer.next_look = waiter.next_look;
    return false;
  }
  mine = std::move(waiter);
  Forget(id);
  return true;
}

void Broker::RefuseLate(GrowId id, Waiter& waiter) {
  RefusalCause cause{.reason = RefusalReason::kLimit};
  if (waiter.phase == Waiter::Phase::kCard) {
    cause.reason = RefusalReason::kCard;
    cause.turns = queues_.at(devices_.at(waiter.spec.device).spec.card).TurnsOf(id);
  }
  LeaveQueues(id, waiter);
  Refuse(waiter, cause);
}

Broker::TimePoint Broker::NextLook(GrowId id, const Waiter& waiter, TimePoint now) const {
  if (now >= waiter.spec.deadline) {
    return now + kBackendRetry;
  }
  const CardQueue& queue = queues_.at(devices_.at(waiter.spec.device).spec.card);
  const bool waits_for_card = waiter.phase == Waiter::Phase::kCard;
  TimePoint next = waiter.spec.deadline;
  if (waits_for_card) {
    // So that a turn ends in time, even one that starts before this request looks again and whose own session
    // is slow.
    next = std::min({next, now + max_drain_, queue.NextChange(now).value_or(next)});
  }
  const bool asks = !waits_for_card || (queue.turn() && queue.turn()->of == id);
  if (!asks || waiter.need.round == 0) {
    return next;
  }
  const TimePoint look_again = waiter.need.look_again;
  return std::min(next, look_again > now ? look_again : now + TrimTable::kPatience);
}

void Broker::LookForIdle(GrowId id, Waiter& waiter, Wakes& wakes) {
  if (waiter.need.round == 0 || now_() < waiter.need.look_again) {
    return;
  }
  LeaveQueues(id, waiter);
  Charge(id, waiter, wakes);
  if (waiter.phase == Waiter::Phase::kCard) {
    Serve(devices_.at(waiter.spec.device).spec.card, wakes);
  }
  // Where nothing had to be asked, because what is missing is on its way.
  waiter.need.look_again = std::max(waiter.need.look_again, now_() + TrimTable::kPatience);
}

std::optional<Broker::Making> Broker::Conclude(Waiter& mine, GrowAnswer& answer) {
  if (mine.charge && mine.phase == Waiter::Phase::kTaken) {
    ++counters_.charges;
    answer.lent = Lend(mine);
    return std::nullopt;
  }
  if (mine.phase == Waiter::Phase::kCharged) {
    const BrokerCard& card = cards_.at(devices_.at(mine.spec.device).spec.card);
    // What is wanted beyond the need is to lie in chunks of its own: it may have to go again.
    Making making{.sizes = ChunkSizesForGrowth(card.device, mine.spec.at_least),
                  .backend_device = card.backend_device};
    const std::vector<Bytes> more = ChunkSizesForGrowth(card.device, mine.charged - mine.spec.at_least);
    making.sizes.insert(making.sizes.end(), more.begin(), more.end());
    return making;
  }
  if (mine.phase == Waiter::Phase::kTooLarge || mine.phase == Waiter::Phase::kMissing ||
      mine.phase == Waiter::Phase::kBallast) {
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
  } else if (waiter.charge) {
    ChargeSplit(id, waiter, wakes);
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
  // While requests wait for the card, its free memory is not spent on growth beyond need.
  const bool others_wait = !queues_.at(device.spec.card).empty();
  const bool takes_free = !ledger_.NeedOf(waiter.spec.device, at_least).is_zero();
  if (waiter.spec.ahead && (!device.limit_waiters.empty() || (others_wait && takes_free))) {
    Refuse(waiter, {.reason = RefusalReason::kLimit});
    return;
  }
  Bytes charged = std::min(waiter.spec.wanted, limit);
  if (charged > at_least && (ledger_.Check(waiter.spec.device, charged).shortage != Ledger::Shortage::kNone ||
                             (others_wait && !ledger_.NeedOf(waiter.spec.device, charged).is_zero()))) {
    charged = at_least;
  }
  Ledger::Verdict verdict = ledger_.Check(waiter.spec.device, charged);
  while (!waiter.spec.ahead && verdict.shortage != Ledger::Shortage::kNone &&
         TakeAllowances(device.spec.card,
                        verdict.shortage == Ledger::Shortage::kLimit ? device.spec.lease : LeaseKey())) {
    verdict = ledger_.Check(waiter.spec.device, charged);
  }
  const bool held_back =
      verdict.shortage == Ledger::Shortage::kNone && IsHeldBack(waiter.spec.device, charged);
  if (held_back) {
    verdict.shortage = Ledger::Shortage::kCard;
  } else if (verdict.shortage == Ledger::Shortage::kNone) {
    verdict = ledger_.Request(waiter.spec.device, charged);
  }
  const auto in_time = [&] { return now_() < waiter.spec.deadline; };
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
      if (!verdict.hopeless && (in_time() || ((held_back || MayTrim(waiter)) && MayAsk(waiter)))) {
        waiter.phase = Waiter::Phase::kCard;
        waiter.need = {};                     // of others than under the limit
        waiter.next_look = TimePoint::max();  // the caller serves the queue
        queues_.at(device.spec.card).Join(id, device.spec.owner);
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
      queues_.at(device.spec.card).Leave(id, now_());
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
    case Waiter::Phase::kBallast:
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
      wakes.push_back(unconfirmed_waker_);  // the request that was to free it is gone
    }
    for (const ChunkId chunk : std::exchange(waiter.ballast, {})) {
      unconfirmed_.insert(chunk);
      wakes.push_back(unconfirmed_waker_);
    }
    LeaveQueues(id, waiter);
    Forget(id);
  }
  for (const CardId card : touched) {
    Serve(card, wakes);
  }
}

void Broker::Refuse(Waiter& waiter, RefusalCause cause) {
  if (waiter.spec.ahead) {
    waiter.phase = Waiter::Phase::kRefused;
    waiter.refusal = absl::ResourceExhaustedError("no memory is free for growing ahead");
    return;
  }
  cause.asked = waiter.spec.at_least;
  const TimePoint now = now_();
  const auto waited = std::chrono::duration_cast<std::chrono::milliseconds>(now - waiter.spec.asked_at);
  if (waited.count() > 0) {
    cause.waited = waited;
  }
  waiter.phase = Waiter::Phase::kRefused;
  waiter.refusal =
      RefusalStatus(waiter.charge ? MakeChargeRefusal(waiter, cause)
                                  : MakeRefusal(devices_.at(waiter.spec.device), waiter.spec.device, cause));
}

}  // namespace lgpu
